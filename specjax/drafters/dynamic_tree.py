"""A best-first token tree from a draft model: expand the likeliest nodes, then keep the best (EAGLE-2, Li et al. 2024, section 4)."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ..checks import whole
from ..errors import RequestError
from ..tree import Tree
from .parts import levels
from .parts.readers import TokenReader


@dataclasses.dataclass(frozen=True)
class DynamicTree:
    """Follows the ``tree_top_k`` likeliest nodes of each level, and of all their children keeps ``tree_nodes`` of the highest probability.

    A node's probability is the product of the draft's along its path, so the parents of what is kept are kept as well. The
    tokens are chosen, not drawn: the target is sampled and the walk follows what matches.

    Attributes:
      tree_nodes: drafted nodes, the root not counted, with which the default is a power of two.
      tree_depth: levels below the root, at least 2.
      tree_top_k: nodes expanded in a level, and children looked at of each.
      tree_temperature: at which probabilities are compared; 1 is the papers'. Lower ones make narrower and deeper trees, as suits a target that
        is surer of its next token than the draft is: one that decodes greedily, above all.
    """

    tree_nodes: int = 15
    tree_depth: int = 5
    tree_top_k: int = 4
    tree_temperature: float = 1.0
    reader: ClassVar[Any] = TokenReader()
    sampled: ClassVar[str] = ""
    taps: ClassVar[tuple[int, ...]] = ()
    needs_draft: ClassVar[bool] = True

    def __post_init__(self):
        for name, least in (("tree_nodes", 1), ("tree_depth", 2), ("tree_top_k", 1)):
            whole(name, getattr(self, name), least)
        if not self.tree_temperature > 0:
            raise RequestError(f"tree_temperature must be above 0, not {self.tree_temperature}")
        depth, most = self.tree_depth, self.tree_top_k + (self.tree_depth - 1) * self.tree_top_k**2
        least = depth + (self.tree_top_k > 1)  # as many nodes as levels would say that there are no branches, see ``Tree.is_chain``
        if not least <= self.tree_nodes <= most:
            raise RequestError(f"tree_nodes must be {least} to {most} at this tree_depth and tree_top_k, not {self.tree_nodes}")

    @property
    def depth(self) -> int:
        return self.tree_depth

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return self.reader.init(target, draft, tokens, lengths, taps, self.depth, chunk=chunk, dtype=dtype)

    def draft(self, target, draft, state, key):
        B, k, D = state.tokens.shape[0], self.tree_top_k, self.tree_depth

        def choose(d, level, scores):
            flat = (scores[:, :, None] + level.scores).reshape(B, k * k)
            scores, best = jax.lax.top_k(flat, k)
            return best // k, best % k, scores

        once = jnp.broadcast_to(_only_first(k), (B, k))
        found, (slot, rank), pending = levels.grow(
            self.reader, target, draft, state, key, choose, once, depth=D, width=k, k=k, how="top_k", temperature=self.tree_temperature
        )
        tree, row_of = jax.vmap(self._rerank, (0, 1, 1, 1, 1))(state.root, found.tokens, found.scores, slot, rank)
        return tree, pending.replace(row_of=row_of)

    def commit(self, target, draft, state, tree, out, verdict):
        return levels.commit(self.reader, target, draft, state, out, verdict)

    def _rerank(self, root, tokens, scores, slot, rank) -> tuple[Tree, jax.Array]:
        """The tree of one row, and ``row_of`` of its nodes, see ``readers.State``.

        Args:
          tokens, scores: [D, k, k], the candidates: children of each frontier node, and their log-probabilities.
          slot, rank: int32 [D - 1, k], which candidates became the next frontier.
        """
        D, k = self.tree_depth, self.tree_top_k
        above = jnp.arange(D - 1)[:, None] * k * k + slot * k + rank  # [D - 1, k]: the candidate that each frontier node was

        def descend(so_far, level):  # log-probability of the frontier to that of its children, and of the next frontier
            scores, slot, rank = level
            reached = so_far[:, None] + scores
            return reached[slot, rank], reached

        onward = (jnp.pad(leaf, ((0, 1), (0, 0))) for leaf in (slot, rank))  # after the last level none is followed
        _, reached = jax.lax.scan(descend, _only_first(k), (scores, *onward))
        value, kept = jax.lax.top_k(
            reached.reshape(-1), self.tree_nodes
        )  # of equals the shallower, so that parents come with their children
        kept = jnp.sort(jnp.where(value > -jnp.inf, kept, D * k * k))
        valid = kept < D * k * k
        kept = jnp.minimum(kept, D * k * k - 1)

        parents = jnp.concatenate([jnp.full((1, k), -1), above]).reshape(-1)[kept // k]  # candidates, -1 for the root
        parent = jnp.where(valid & (parents >= 0), jnp.searchsorted(kept, parents) + 1, 0)
        expanded = kept[:, None] == above.reshape(-1)
        row_of = jnp.where(valid & expanded.any(-1), 1 + jnp.argmax(expanded, -1), 0)
        first = lambda value, rest: jnp.concatenate([jnp.asarray(value, rest.dtype)[None], rest])
        tree = Tree(first(root, tokens.reshape(-1)[kept]), first(0, parent.astype(jnp.int32)), first(True, valid), max_depth=D)
        return tree, first(0, row_of.astype(jnp.int32))


def _only_first(k: int) -> jax.Array:
    """Float32 [k]: at first the root stands in every slot of the frontier, and counts once."""
    return jnp.where(jnp.arange(k) == 0, 0.0, -jnp.inf)
