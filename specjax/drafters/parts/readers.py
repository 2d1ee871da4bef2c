"""The protocol of readers: a language model or a trained head reads the nodes of a draft.

Chains and trees grow in the same way with both. A round begins with R rows whose tokens are known;
the last of them is the root's row. The drafted nodes follow. All rows stay outside the cache until
the verdict decides which are kept.
"""

import dataclasses
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import struct

from ...core.cache import KVCache, Rows
from ...loop.drafter import Drafter
from ...models.base import Model, Output


class ReaderState(struct.PyTreeNode):
    """A reader's state between rounds, and between ``propose`` and ``commit``.

    Attributes:
      cache: the reader's own keys and values. The first rows of the next round are not in it.
      features: float32 [B, R, E], the target's features of the newest committed tokens, in order;
        void beyond. None for a language model.
      rows: keys and values of this round: its first R rows, then the drafted nodes that were read.
      row_of: int32 [B, N], for each node of a tree the place of its row, counted from the root's
        row; 0 if the node was not read.
    """

    cache: KVCache
    features: jax.Array | None = None
    rows: Rows = Rows(())
    row_of: jax.Array | None = None


class FirstRows(struct.PyTreeNode):
    """The first R rows of a round.

    Attributes:
      cache: the cache with which they were read.
      rows: their keys and values.
      hidden: float32 [B, 1, E], the hidden state after the newest token; None before the rows are
        read.
      seen: bool [B, R], the rows that drafted nodes see.
      positions: int32 [B, R], the positions of the rows.
      root: int32 [B], the position of the root's row. The position of a drafted node is higher by
        its depth.
      tokens: int32 [B, R], the tokens of the rows, for a head's next module.
      states: float32 [B, R, E], the hidden states of the rows, for a head's next module.
    """

    cache: KVCache
    rows: Rows
    hidden: jax.Array | None
    seen: jax.Array
    positions: jax.Array
    root: jax.Array
    tokens: jax.Array | None = None
    states: jax.Array | None = None


class Reader(Protocol):
    """The functions of ``TokenReader`` and ``FeatureReader``."""

    def init(
        self, target: Model, draft, tokens, lengths, taps, depth: int, *, chunk, dtype, filled=None
    ) -> ReaderState:
        """The state after the prompt, for rounds of ``depth`` levels.

        The other arguments are those of ``Drafter.init``. ``filled`` is the prompt, already read
        with ``reads``; by default ``init`` reads it.
        """
        ...

    def reads(self, target: Model, draft, tokens, lengths, taps, depth: int) -> tuple[Any, jax.Array]:
        """See ``Drafter.reads``, for rounds of ``depth`` levels."""
        ...

    def begin(self, target: Model, draft, state, depth: int) -> FirstRows:
        """Reads the first rows of a round."""
        ...

    def read(self, target: Model, module, tokens, features, positions, mask, cache, **rows) -> Output:
        """Reads drafted nodes.

        Args:
          module: the draft, or one module of a head.
          tokens: int32 [B, F], the tokens of the nodes.
          features: float32 [B, F, E], the hidden state of each node's parent. A language model
            ignores it.
          positions, mask, cache, rows: as in ``Model``.
        """
        ...

    def logits(self, target: Model, module, hidden: jax.Array) -> jax.Array:
        """Logits float32 [..., V] of hidden states [..., E]."""
        ...

    def commit(self, target: Model, draft, state, on_path: jax.Array, scored: Output, verdict) -> ReaderState:
        """The state after a verdict.

        ``on_path``: int32 [B, P], the rows of the path's nodes, counted from the root's row.
        """
        ...

    def rest(self, target: Model, draft, state, tree, scored: Output, verdict, depth: int) -> ReaderState:
        """See ``Drafter.rest``, for rounds of ``depth`` levels."""
        ...


@dataclasses.dataclass(frozen=True)
class Reading(Drafter):
    """A method whose nodes a reader reads.

    Attributes:
      reader: the reader, see ``Reader``.
    """

    reader: ClassVar[Any]

    def init(self, target, draft, tokens, lengths, taps, **reading) -> ReaderState:
        return self.reader.init(target, draft, tokens, lengths, taps, self.depth, **reading)

    def reads(self, target, draft, tokens, lengths, taps):
        return self.reader.reads(target, draft, tokens, lengths, taps, self.depth)

    def rest(self, target, draft, state, tree, scored, verdict) -> ReaderState:
        return self.reader.rest(target, draft, state, tree, scored, verdict, self.depth)

    def commit_tree(self, target: Model, draft, state: Any, scored: Output, verdict) -> ReaderState:
        """The state after a verdict on a tree whose ``row_of`` is known."""
        on_path = jnp.take_along_axis(state.drafter.row_of, verdict.path, 1)
        return self.reader.commit(target, draft, state, on_path, scored, verdict)

    def commit_chain(self, target: Model, draft, state: Any, scored: Output, verdict) -> ReaderState:
        """The state after a verdict on a chain, whose last token was not read."""
        path = jnp.minimum(jnp.arange(self.depth + 1), jnp.maximum(verdict.length - 1, 0)[:, None])
        return self.reader.commit(target, draft, state, jnp.minimum(path, self.depth - 1), scored, verdict)
