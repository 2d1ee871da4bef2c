"""A token tree of fixed shape from a draft model.

The method is that of SpecInfer (Miao et al. 2024, section 3) and Sequoia (Chen et al. 2024).
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from ..core.tree import Topology, Tree, as_topology, expansion
from ..errors import RequestError
from ..loop.drafter import Models
from ..rules.acceptance import Drawn
from .parts import levels
from .parts.draft_sampling import Drawing
from .parts.level_order import level_order
from .parts.readers import Reading
from .parts.token_reader import TokenReader

DEFAULT = (1, 1, 3, 1, 1, 1, 1, 1)
"""The widths of the default tree, SpecInfer's."""

SIBLINGS = ("without_replacement", "independent", "top_k")
"""The ways to choose the children of a node, see ``sampling.siblings``."""


@dataclasses.dataclass(frozen=True)
class DraftTree(Drawing, Reading):
    """Draws the children of every node from the draft, level by level.

    The default shape is SpecInfer's <1,1,3,1,1,1,1,1>.

    Attributes:
      tree: the shape: children at each level such as "2,2,1", a TOML file, or a list of paths.
      siblings: how children are drawn: "without_replacement", "independent" (SpecInfer's own;
        accepts most above temperature 0, and equals a chain at 0) or "top_k" (the likeliest
        tokens).
    """

    tree: Topology = expansion(DEFAULT)
    siblings: str = "without_replacement"
    needs = Models()
    with_encoder = True
    reader = TokenReader()

    def __post_init__(self):
        object.__setattr__(self, "tree", as_topology(self.tree))
        if self.siblings not in SIBLINGS:
            raise RequestError(f"siblings {self.siblings!r} is unknown; use one of {', '.join(SIBLINGS)}")
        if self.siblings != "top_k" and not level_order(self.tree).dense:
            raise RequestError(
                "the tree leaves out a rank, and drawn siblings have all ranks from 0; number children from 0 or use "
                "siblings='top_k'"
            )
        super().__post_init__()

    @property
    def depth(self) -> int:
        return max(self.tree.depths)

    @property
    def drawn(self) -> Drawn:
        return Drawn.CHOSEN if self.siblings == "top_k" else Drawn(self.siblings)

    def propose(self, target, draft, state, key):
        state = self.drafting(state)
        order = level_order(self.tree)
        B = state.tokens.shape[0]
        F = order.slots.shape[1]

        def choose(d, level, carry):
            slot, rank = (jnp.broadcast_to(jnp.asarray(table)[d], (B, F)) for table in (order.slots, order.ranks))
            return slot, rank, carry

        growth = levels.Growth(self.depth, width=F, k=max(self.tree.rank) + 1, how=self.siblings)
        grown, _, pending = levels.grow(self.reader, target, draft, state, key, choose, (), growth)
        at = order.depth[1:] - 1, slice(None), order.slot_of[order.parent[1:]], order.rank[1:]
        tokens = jnp.concatenate([state.root[:, None], grown.tokens[at].T], 1)
        valid = jnp.concatenate([jnp.ones((B, 1), bool), grown.exists[at].T], 1)
        inner = jnp.asarray(order.inner, jnp.float32)
        q = grown.q[np.minimum(order.depth, self.depth - 1), :, order.slot_of].swapaxes(0, 1) * inner[:, None]
        for_all = lambda array: jnp.broadcast_to(jnp.asarray(array), (B, array.size))
        q = None if self.siblings == "top_k" else q
        tree = Tree(tokens, for_all(order.parent), valid, q, max_depth=self.depth)
        return tree, pending.replace(row_of=for_all(order.row_of))

    def commit(self, target, draft, state, tree, scored, verdict):
        return self.commit_tree(target, draft, state, scored, verdict)
