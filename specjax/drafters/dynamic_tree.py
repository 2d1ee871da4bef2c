"""The most probable token tree from a draft model: expand the likeliest nodes, then keep the best.

It is the tree of EAGLE-2 (Li et al. 2024, section 4), without EAGLE's head.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ..core.checks import per_row
from ..core.tree import Tree, node_count
from ..errors import RequestError
from ..loop.drafter import Models
from .parts import levels
from .parts.readers import Reading
from .parts.token_reader import TokenReader


@dataclasses.dataclass(frozen=True)
class DynamicTree(Reading):
    """Expands the likeliest nodes of each level, and keeps the most probable of all their children.

    A node's probability is the product of the draft's probabilities along its path. A parent is
    therefore at least as probable as its children, and the parents of kept nodes are kept as well.
    Tokens are chosen, not drawn: acceptance samples the target and follows the nodes that match.
    By default the target scores 16 nodes, the root included.

    Attributes:
      tree_nodes: drafted nodes, without the root.
      tree_depth: levels below the root, at least 2.
      tree_top_k: nodes expanded in a level, and children considered of each.
      tree_temperature: the temperature at which probabilities are compared; 1 in the papers. Lower
        values make narrower and deeper trees, which suit a target that is surer of its next token
        than the draft.
    """

    tree_nodes: int = 15
    tree_depth: int = 5
    tree_top_k: int = 4
    tree_temperature: float = 1.0
    needs = Models()
    with_encoder = True
    reader = TokenReader()

    def __post_init__(self):
        for name, value, least in (
            ("nodes", self.tree_nodes, 1),
            ("depth", self.tree_depth, 2),
            ("top_k", self.tree_top_k, 1),
        ):
            node_count(f"tree_{name}", value, least)
        per_row("tree_temperature", self.tree_temperature, 1, np.float32, above=True)
        depth = self.tree_depth
        most = self.tree_top_k + (self.tree_depth - 1) * self.tree_top_k**2
        least = depth + (self.tree_top_k > 1)  # as many nodes as levels would mean a chain, see ``Tree.is_chain``
        if not least <= self.tree_nodes <= most:
            raise RequestError(
                f"tree_nodes must be {least} to {most} at this tree_depth and tree_top_k, not {self.tree_nodes}"
            )

    @property
    def depth(self) -> int:
        return self.tree_depth

    def propose(self, target, draft, state, key):
        B = state.tokens.shape[0]
        k = self.tree_top_k
        D = self.tree_depth

        def choose(d, level, scores):
            flat = (scores[:, :, None] + level.scores).reshape(B, k * k)
            scores, best = jax.lax.top_k(flat, k)
            return best // k, best % k, scores

        start = jnp.broadcast_to(_only_first(k), (B, k))
        growth = levels.Growth(D, width=k, k=k, how="top_k", temperature=self.tree_temperature)
        candidates, (slot, rank), pending = levels.grow(self.reader, target, draft, state, key, choose, start, growth)
        tree, row_of = jax.vmap(self._rerank, (0, 1, 1, 1, 1))(
            state.root, candidates.tokens, candidates.scores, slot, rank
        )
        return tree, pending.replace(row_of=row_of)

    def commit(self, target, draft, state, tree, scored, verdict):
        return self.commit_tree(target, draft, state, scored, verdict)

    def _rerank(self, root, tokens, scores, slot, rank) -> tuple[Tree, jax.Array]:
        """The tree of one row, and ``row_of`` of its nodes, see ``ReaderState``.

        Args:
          tokens, scores: [D, k, k], the candidates: children of each frontier node, and their
            log-probabilities.
          slot, rank: int32 [D - 1, k], the candidates that became the next frontier.
        """
        D = self.tree_depth
        k = self.tree_top_k
        # above [D - 1, k]: each frontier node's number as a candidate.
        above = jnp.arange(D - 1)[:, None] * k * k + slot * k + rank

        def descend(reached, level):
            """The log-probabilities of the next frontier and of all children of this one."""
            scores, slot, rank = level
            children = reached[:, None] + scores
            return children[slot, rank], children

        onward = (jnp.pad(leaf, ((0, 1), (0, 0))) for leaf in (slot, rank))  # the last level has no next frontier
        _, reached = jax.lax.scan(descend, _only_first(k), (scores, *onward))
        # If values are equal, top_k prefers the first, which is the shallower: parents come with
        # their children.
        value, indices = jax.lax.top_k(reached.reshape(-1), self.tree_nodes)
        indices = jnp.sort(jnp.where(value > -jnp.inf, indices, D * k * k))
        valid = indices < D * k * k
        indices = jnp.minimum(indices, D * k * k - 1)

        parents = jnp.concatenate([jnp.full((1, k), -1), above]).reshape(-1)  # candidates, -1 for the root
        parents = parents[indices // k]
        parent = jnp.where(valid & (parents >= 0), jnp.searchsorted(indices, parents) + 1, 0)
        expanded = indices[:, None] == above.reshape(-1)
        row_of = jnp.where(valid & expanded.any(-1), 1 + jnp.argmax(expanded, -1), 0)
        first = lambda value, rest: jnp.concatenate([jnp.asarray(value, rest.dtype)[None], rest])
        tokens = first(root, tokens.reshape(-1)[indices])
        parent = first(0, parent.astype(jnp.int32))
        return Tree(tokens, parent, first(True, valid), max_depth=D), first(0, row_of.astype(jnp.int32))


def _only_first(k: int) -> jax.Array:
    """Float32 [k], 0 and then minus infinity.

    The root stands in every slot of the first frontier, and must count in one slot only.
    """
    return jnp.where(jnp.arange(k) == 0, 0.0, -jnp.inf)
