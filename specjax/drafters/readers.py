"""Who reads the nodes of a draft: a language model, or a trained head that continues the target's features.

Trees (``levels``) and chains (``draft_model``) grow in the same way for both. A round begins with R rows whose tokens are known, the
last of them that of the root. Then come the drafted nodes, each read with the hidden state that it was drafted from, which only heads
look at. All rows stay beside the cache until the verdict says which of them are kept.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from .. import cache as kv
from ..cache import KVCache
from ..decode import fill
from ..models.decoder import Decoder, Output


@struct.dataclass
class State:
    """What is kept between rounds, and between draft and commit.

    Attributes:
      cache: the reader's own keys and values: all but what a round begins with.
      features: float32 [B, P, E], for a head: the target's features of the newest committed tokens, in order, of which the cache
        knows nothing yet; void after them.
      rows: for each layer keys and values [B, K, M, D] of this round: its first R rows, and the drafted nodes that were read.
      row_of: int32 [B, N], where the row of each node of a tree lies, counted from the root's; 0 for one that was not read.
    """

    cache: KVCache
    features: jax.Array | None = None
    rows: tuple = ()
    row_of: jax.Array | None = None


@struct.dataclass
class Begun:
    """The first R rows of a round, read.

    Attributes:
      cache: what they were read with, and the drafted nodes will be.
      rows: for each layer keys and values [B, K, R, D].
      hidden: float32 [B, 1, E], after the root.
      seen: bool [B, R], which of the rows the drafted nodes see.
      positions: int32 [B, R], theirs.
      root: int32 [B], the position of the root's row. A drafted node's is higher by its depth.
    """

    cache: KVCache
    rows: tuple
    hidden: jax.Array
    seen: jax.Array
    positions: jax.Array
    root: jax.Array

    def room(self, nodes: int) -> tuple:
        """The rows, with room for those of so many drafted nodes."""
        return jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0), (0, 0), (0, nodes), (0, 0))), self.rows)


@dataclasses.dataclass(frozen=True)
class TokenReader:
    """A language model. Its cache holds all tokens but the newest two, with which a round begins: when all drafts of the last one were
    kept, it has not seen the last of them, and a second row is free where a step reads all weights anyway."""

    def init(self, target: Decoder, draft, tokens, lengths, taps, depth: int, *, chunk, dtype) -> State:
        """The state after the prompt, for rounds of ``depth`` levels; the rest as in ``Drafter``."""
        cache, _, _ = fill(draft, tokens, lengths - 1, chunk, dtype)
        return State(cache.replace(length=jnp.maximum(lengths - 2, 0)))

    def begin(self, target: Decoder, draft, state, depth: int) -> Begun:
        """Reads the token before the root, where there is one, and the root, at position n."""
        n, cache = state.cache.length, state.drafter.cache
        before = jnp.take_along_axis(state.tokens, jnp.maximum(n - 1, 0)[:, None], 1)
        seen = jnp.stack([n > 0, jnp.ones_like(n > 0)], 1)
        positions = jnp.stack([jnp.maximum(n - 1, 0), n], 1)
        mask = jnp.tril(jnp.ones((2, 2), bool)) & seen[:, None] | jnp.eye(2, dtype=bool)
        out = draft(jnp.concatenate([before, state.root[:, None]], 1), positions, mask, cache)
        return Begun(cache, out.rows, out.hidden[:, -1:], seen, positions, n)

    def read(self, target: Decoder, draft, tokens, features, positions, mask, cache, **rows) -> Output:
        """Reads drafted nodes int32 [B, F], each drafted from ``features`` float32 [B, F, E], the hidden state of its parent; the rest
        as in ``Decoder``."""
        return draft(tokens, positions, mask, cache, **rows)

    def logits(self, target: Decoder, draft, hidden: jax.Array) -> jax.Array:
        """Float32 [..., V] of hidden states [..., E]."""
        return draft.logits(hidden)

    def commit(self, target: Decoder, draft, state, on_path: jax.Array, out: Output, verdict) -> State:
        """The state after a verdict: the rows of the token before the root, the root, and the path but its last node are kept.

        Args:
          on_path: int32 [B, P], the rows of the path's nodes, counted from the root's.
        """
        n, pending = state.cache.length, state.drafter
        after_before = jnp.concatenate([jnp.zeros_like(on_path[:, :1]), on_path[:, :-1] + 1], 1)
        kept = jnp.where((n > 0)[:, None], after_before, on_path + 1)  # in a row of one token there was none before the root
        return State(kv.commit(pending.cache, pending.rows, kept, pending.cache.length, jnp.maximum(n + verdict.length - 1, 0)))


@dataclasses.dataclass(frozen=True)
class FeatureReader:
    """A head (``heads.base.FeatureHead``). Its cache holds pairs of a token's feature and the token after it, at the position of the
    feature: pair i is (f_i, t_{i + 1}), and of n committed tokens the last, pair n - 1, has the root.

    A round begins with the pairs that the last one committed, whose features are the target's own; what the head made of the drafts,
    it made of its own hidden states, and that is dropped (EAGLE, Li et al. 2024, section 3.1). A prompt of one token leaves nothing to draft from: its root
    is read beside a feature of zeros, and that row is dropped too.
    """

    def init(self, target: Decoder, draft, tokens, lengths, taps, depth: int, *, chunk, dtype) -> State:
        """As in ``TokenReader``. All of the prompt's pairs are read, and the last one again when the first round begins."""
        n = lengths - 1
        cache, _, _ = fill(_Pairs(target, draft, taps), jnp.roll(tokens, -1, 1), n, chunk, dtype)
        at = jnp.maximum(n - 1, 0)[:, None, None]
        newest = draft.fuse(target, tuple(jnp.take_along_axis(tap, at, 1) for tap in taps))
        features = jnp.pad(jnp.where((n > 0)[:, None, None], newest, 0), ((0, 0), (0, depth), (0, 0)))
        return State(cache.replace(length=jnp.maximum(n - 1, 0)), features)

    def begin(self, target: Decoder, draft, state, depth: int) -> Begun:
        """Reads the pairs that are not in the cache, at most P = depth + 1 of them; the last has the root."""
        n, own, place = state.cache.length, state.drafter, jnp.arange(depth + 1)
        count = jnp.maximum(n - own.cache.length, 1)
        positions = own.cache.length[:, None] + place
        tokens = jnp.take_along_axis(state.tokens, jnp.minimum(positions + 1, n[:, None]), 1)
        out = draft(target, tokens, own.features, positions, jnp.tril(jnp.ones((place.size, place.size), bool)), own.cache)
        hidden = jnp.take_along_axis(out.hidden, (count - 1)[:, None, None], 1)
        return Begun(own.cache, out.rows, hidden, place < count[:, None], positions, own.cache.length + count - 1)

    def read(self, target: Decoder, draft, tokens, features, positions, mask, cache, **rows) -> Output:
        """As in ``TokenReader``."""
        return draft(target, tokens, features, positions, mask, cache, **rows)

    def logits(self, target: Decoder, draft, hidden: jax.Array) -> jax.Array:
        """As in ``TokenReader``."""
        return draft.logits(target, hidden)

    def commit(self, target: Decoder, draft, state, on_path: jax.Array, out: Output, verdict) -> State:
        """The state after a verdict: of the rows those that the round began with are kept, of the path the target's features."""
        pending, P = state.drafter, verdict.path.shape[1]
        rows = jax.tree.map(lambda leaf: leaf[:, :, :P], pending.rows)
        # A row that emitted nothing has ended and may be written anywhere; this makes the write depend on all that was read, without
        # which XLA:CPU would copy the cache.
        start = jnp.where(verdict.length > 0, pending.cache.length, 0)
        taps = tuple(jnp.take_along_axis(tap, verdict.path[..., None], 1) for tap in out.taps)
        return State(kv.commit(pending.cache, rows, None, start, state.cache.length), draft.fuse(target, taps))


@dataclasses.dataclass(frozen=True, eq=False)
class _Pairs:
    """A head as a model of the tokens *after* those whose taps float32 [B, T, E] are given, for ``decode.fill``."""

    target: Decoder
    head: Any
    taps: tuple

    @property
    def config(self):
        return self.head.config.layers

    def __call__(self, tokens, positions, mask, cache, **_) -> Output:
        piece = lambda tap: lax.dynamic_slice_in_dim(tap, positions[0, 0], positions.shape[1], 1)  # of one place in all rows
        taps = tuple(map(piece, self.taps))
        return self.head(self.target, tokens, self.head.fuse(self.target, taps), positions, mask, cache)
