"""A token tree from a draft model, of a shape that is known beforehand (SpecInfer, Miao et al. 2024, section 3; Sequoia)."""

import dataclasses
from collections import defaultdict
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..errors import RequestError
from ..tree import Topology, Tree, expansion
from .parts import levels
from .parts.readers import TokenReader

DEFAULT = (1, 1, 3, 1, 1, 1, 1, 1)


@dataclasses.dataclass(frozen=True)
class DraftTree:
    """Draws the children of every node from the draft, level by level.

    Attributes:
      tree: the shape; by default SpecInfer's <1,1,3,1,1,1,1,1>.
      siblings: "without_replacement" (draws, accepted best), "independent" (SpecInfer's own) or "top_k" (the likeliest tokens).
    """

    tree: Topology = expansion(DEFAULT)
    siblings: str = "without_replacement"
    reader: ClassVar[Any] = TokenReader()
    taps: ClassVar[tuple[int, ...]] = ()
    needs_draft: ClassVar[bool] = True

    def __post_init__(self):
        kinds = ("without_replacement", "independent", "top_k")
        if self.siblings not in kinds:
            raise RequestError(f"siblings {self.siblings!r} is unknown; use one of {', '.join(kinds)}")
        if self.siblings != "top_k" and not plan(self.tree).dense:
            raise RequestError("the tree leaves out a rank, which drawn siblings cannot; number children from 0 or use siblings='top_k'")

    @property
    def depth(self) -> int:
        return max(self.tree.depths)

    @property
    def sampled(self) -> str:
        return "" if self.siblings == "top_k" else self.siblings

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return self.reader.init(target, draft, tokens, lengths, taps, self.depth, chunk=chunk, dtype=dtype)

    def draft(self, target, draft, state, key):
        layout = plan(self.tree)
        B, F = state.tokens.shape[0], layout.slots.shape[1]

        def choose(d, level, carry):
            return *(jnp.broadcast_to(jnp.asarray(table)[d], (B, F)) for table in (layout.slots, layout.ranks)), carry

        found, _, pending = levels.grow(
            self.reader, target, draft, state, key, choose, (), depth=self.depth, width=F, k=max(self.tree.rank) + 1, how=self.siblings
        )
        at = layout.depth[1:] - 1, slice(None), layout.slot_of[layout.parent[1:]], layout.rank[1:]
        tokens = jnp.concatenate([state.root[:, None], found.tokens[at].T], 1)
        valid = jnp.concatenate([jnp.ones((B, 1), bool), found.exists[at].T], 1)
        inner = jnp.asarray(layout.inner, jnp.float32)
        q = found.q[np.minimum(layout.depth, self.depth - 1), :, layout.slot_of].swapaxes(0, 1) * inner[:, None]
        whole = lambda array: jnp.broadcast_to(jnp.asarray(array), (B, array.size))
        tree = Tree(tokens, whole(layout.parent), valid, None if self.siblings == "top_k" else q, max_depth=self.depth)
        return tree, pending.replace(row_of=whole(layout.row_of))

    def commit(self, target, draft, state, tree, out, verdict):
        return levels.commit(self.reader, target, draft, state, out, verdict)


class Layout(NamedTuple):
    """Where things are when a topology is read level by level; arrays over its nodes, int32 [N], but for the first two.

    Attributes:
      slots, ranks: int32 [depth, F], for each level the frontier: which child of which node of the frontier above.
      parent, rank, depth: see ``Topology``.
      inner: bool [N], nodes that have children.
      slot_of: the place of an inner node in the frontier of its level.
      row_of: see ``readers.State``.
      dense: bool, the children of every node have the ranks 0, 1, ...
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
def plan(tree: Topology) -> Layout:
    """The layout of a topology."""
    parent, rank, depth = (np.array(x, np.int32) for x in (tree.parent, tree.rank, tree.depths))
    children = defaultdict(list)
    for node in range(1, parent.size):
        children[tree.parent[node]].append(tree.rank[node])
    inner = np.isin(np.arange(parent.size), list(children))
    slot_of, frontiers = np.zeros_like(parent), [[node for node in children if depth[node] == d] for d in range(depth.max())]
    width = max(map(len, frontiers))
    slots, ranks = np.zeros((2, depth.max(), width), np.int32)
    for d, frontier in enumerate(frontiers):
        for slot, node in enumerate(frontier):
            slot_of[node], slots[d, slot], ranks[d, slot] = slot, slot_of[parent[node]], rank[node]
    row_of = np.where(inner, np.where(depth == 0, 0, 1 + (depth - 1) * width + slot_of), 0).astype(np.int32)
    dense = all(sorted(ranks) == list(range(len(ranks))) for ranks in children.values())
    return Layout(slots, ranks, parent, rank, depth, inner, slot_of, row_of, dense)
