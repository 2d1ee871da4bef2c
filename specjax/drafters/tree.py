"""A token tree of fixed shape from a draft model.

The method is that of SpecInfer (Miao et al. 2024, section 3) and Sequoia (Chen et al. 2024).
"""

import dataclasses
from collections import defaultdict
from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ..core.checks import check_known
from ..core.tree import Topology, Tree, as_topology, expansion
from ..errors import RequestError
from ..loop.drafter import Models
from ..rules.acceptance import Drawn
from .parts import levels
from .parts.draft_sampling import Drawing
from .parts.readers import Reading
from .parts.token_reader import TokenReader

DEFAULT = (1, 1, 3, 1, 1, 1, 1, 1)
"""The widths of the default tree, SpecInfer's."""

SIBLINGS = ("without_replacement", "independent", "top_k")
"""The ways to choose the children of a node, see ``sampling.siblings``."""


class LevelOrder(NamedTuple):
    """The order in which the N nodes of a topology are read, level by level.

    The *frontier* of a level are its nodes that have children.

    Attributes:
      slots, ranks: int32 [depth, F], for each frontier the slot of each node's parent in the
        frontier above, and the node's rank.
      parent, rank, depth: int32 [N], as in ``Topology``.
      inner: bool [N], the nodes that have children.
      slot_of: int32 [N], the slot of an inner node in the frontier of its level.
      row_of: int32 [N], see ``ReaderState``.
      dense: bool, whether the children of every node have the ranks 0, 1, ...
    """

    slots: np.ndarray
    ranks: np.ndarray
    parent: np.ndarray
    rank: np.ndarray
    depth: np.ndarray
    inner: np.ndarray
    slot_of: np.ndarray
    row_of: np.ndarray
    dense: bool


@lru_cache(64)
def level_order(tree: Topology) -> LevelOrder:
    """The order in which the nodes of a topology are read."""
    parent, rank, depth = (np.array(x, np.int32) for x in (tree.parent, tree.rank, tree.depths))
    children = defaultdict(list)
    for node in range(1, parent.size):
        children[tree.parent[node]].append(tree.rank[node])
    inner = np.isin(np.arange(parent.size), list(children))
    frontiers = [[node for node in children if depth[node] == d] for d in range(depth.max())]
    width = max(map(len, frontiers))
    slot_of = np.zeros_like(parent)
    (slots, ranks) = np.zeros((2, depth.max(), width), np.int32)
    for d, frontier in enumerate(frontiers):
        for slot, node in enumerate(frontier):
            slot_of[node], slots[d, slot], ranks[d, slot] = slot, slot_of[parent[node]], rank[node]
    row_of = np.where(inner, np.where(depth == 0, 0, 1 + (depth - 1) * width + slot_of), 0).astype(np.int32)
    dense = all(sorted(ranks) == list(range(len(ranks))) for ranks in children.values())
    return LevelOrder(slots, ranks, parent, rank, depth, inner, slot_of, row_of, dense)


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
        check_known("siblings", self.siblings, SIBLINGS)
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
