"""Heads on the target's last hidden state fill a tree of fixed shape (Medusa, Cai et al. 2024, sections 2.1 and 2.3.3; Hydra, Ankner et al. 2024)."""

import dataclasses
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..errors import RequestError
from ..sampling import likeliest
from ..tree import Topology, Tree, from_paths
from .parts.readers import FeatureReader

PATHS = [
    (0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0, 0),
]  # fmt: skip
"""Twelve nodes. Published trees have 63, which pays where scoring them costs no more than scoring one."""


@dataclasses.dataclass(frozen=True)
class Medusa:
    """Head k, from 0, chooses the tokens at depth k + 1 from the hidden state of the token before the root, all of them at once.

    That token is the newest that the target has read: what the target itself says after it became the root, and the heads say what
    comes then. They do not see the tokens between, so all nodes of a depth have children of the same tokens.

    Attributes:
      tree: the shape; a node of rank r at depth k + 1 is head k's r-th choice. By default ``PATHS``, as deep as there are heads.
        Published lists (``medusa_choices``) are what ``tree.from_paths`` takes.
      head: the configuration of the heads.
    """

    tree: Topology | None = None
    head: Any = None
    heads: ClassVar[tuple[str, ...]] = ("medusa",)
    sampled: ClassVar[str] = ""
    needs_draft: ClassVar[bool] = True

    def __post_init__(self):
        if self.head is None:
            return
        heads, rank = self.head.num_heads, max(self.shape.rank)
        if self.depth > heads:
            raise RequestError(f"the tree is {self.depth} deep and there are {heads} heads; leave out what lies deeper, or leave out tree")
        if rank >= self.head.vocab_size:
            raise RequestError(f"the tree asks for rank {rank} and the vocabulary has {self.head.vocab_size} tokens; leave that node out")

    @property
    def shape(self) -> Topology:
        """The tree's: the one that was given, or the default."""
        if self.tree is not None:
            return self.tree
        return from_paths(path for path in PATHS if self.head is None or len(path) <= self.head.num_heads)

    @property
    def depth(self) -> int:
        return max(self.shape.depths)

    @property
    def taps(self) -> tuple[int, ...]:
        return () if self.head is None else self.head.taps

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        """The hidden state float32 [B, E] of the last token that was read; zeros where a prompt has but its root."""
        read = jnp.take_along_axis(taps[0], jnp.maximum(lengths - 2, 0)[:, None, None], 1)
        return jnp.where((lengths > 1)[:, None], draft.fuse(target, (read,))[:, 0], 0)

    def draft(self, target, draft, state, key):
        return self.filled(target, draft, state.root, state.drafter), state.drafter

    def filled(self, target, draft, root, hidden) -> Tree:
        """The tree below ``root`` int32 [B], from the hidden state float32 [B, E] of the token before it."""
        shape, B, tokens = self.shape, root.size, root[:, None]
        for k, level in enumerate(plan(shape)):
            scores = draft.logits(target, k, hidden[:, None], tokens[:, level.above])
            _, best = likeliest(scores, int(max(level.rank)) + 1)  # [B, A, ...]; Medusa's A is 1
            best = jnp.broadcast_to(best, (B, len(level.above), best.shape[2]))
            tokens = jnp.concatenate([tokens, best[:, level.slot, level.rank]], 1)
        parent = jnp.broadcast_to(jnp.array(shape.parent, jnp.int32), tokens.shape)
        return Tree(tokens, parent, jnp.ones(tokens.shape, bool), max_depth=self.depth)

    def commit(self, target, draft, state, tree, out, verdict):
        """The hidden state of the last node that was kept. The bonus token is the next root and has none yet."""
        last = jnp.take_along_axis(verdict.path, jnp.maximum(verdict.length - 1, 0)[:, None], 1)
        return draft.fuse(target, (jnp.take_along_axis(out.taps[0], last[..., None], 1),))[:, 0]


@dataclasses.dataclass(frozen=True)
class Hydra(Medusa):
    """As ``Medusa``, but a head also reads the tokens on the way to each node, so that every node has children of its own. One depth after
    another, each depth at once.

    A prefix layer (Hydra++) reads the hidden states of the newest tokens when a round begins, as other heads read features.
    """

    heads: ClassVar[tuple[str, ...]] = ("hydra",)
    reader: ClassVar = FeatureReader()

    @property
    def prefixed(self) -> bool:
        return self.head is not None and self.head.layers is not None

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        if not self.prefixed:
            return super().init(target, draft, tokens, lengths, taps, chunk=chunk, dtype=dtype)
        return self.reader.init(target, draft, tokens, lengths, taps, self.depth, chunk=chunk, dtype=dtype)

    def draft(self, target, draft, state, key):
        if not self.prefixed:
            return super().draft(target, draft, state, key)
        begun = self.reader.begin(target, draft, state, self.depth)
        return self.filled(target, draft, state.root, begun.hidden[:, 0]), state.drafter.replace(rows=begun.rows)

    def commit(self, target, draft, state, tree, out, verdict):
        if not self.prefixed:
            return super().commit(target, draft, state, tree, out, verdict)
        return self.reader.commit(target, draft, state, verdict.path, out, verdict)


class Level(NamedTuple):
    """The nodes at one depth, C of them, below A parents.

    Attributes:
      above: int32 [A, depth], for each parent the nodes from the root down to itself.
      slot, rank: int32 [C], which of the parents each node has, and which of its choices it is.
    """

    above: np.ndarray
    slot: np.ndarray
    rank: np.ndarray


@lru_cache(64)
def plan(shape: Topology) -> tuple[Level, ...]:
    """The levels below the root, from the top; a topology's nodes lie level by level."""
    number, levels = {path: node for node, path in enumerate(shape.paths)}, []
    for depth in range(1, max(shape.depths) + 1):
        nodes = [path for path in shape.paths if len(path) == depth]
        parents = list(dict.fromkeys(path[:-1] for path in nodes))
        above = [[number[parent[:d]] for d in range(depth)] for parent in parents]
        slot, rank = [parents.index(path[:-1]) for path in nodes], [path[-1] for path in nodes]
        levels.append(Level(*(np.array(x, np.int32) for x in (above, slot, rank))))
    return tuple(levels)
