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

from ... import cache as kv
from ...cache import KVCache
from ...decode import fill
from ...models.decoder import Decoder, Output


@struct.dataclass
class State:
    """What is kept between rounds, and between draft and commit.

    Attributes:
      cache: the reader's own keys and values: all but what a round begins with.
      features: float32 [B, R, E], for a head: the target's features of the newest committed tokens, in order, of which the cache
        knows nothing yet; void after them.
      rows: for each layer keys and values [B, K, M, D] of this round: its first R rows, and the drafted nodes that it read.
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
      hidden: float32 [B, 1, E], after the newest token that they hold; None before they are read.
      seen: bool [B, R], which of the rows the drafted nodes see.
      positions: int32 [B, R], theirs.
      root: int32 [B], the position of the root's row. A drafted node's is higher by its depth.
      tokens, states: int32 [B, R] and float32 [B, R, E], what the rows hold and their hidden states, for the next module of a head.
    """

    cache: KVCache
    rows: tuple
    hidden: jax.Array
    seen: jax.Array
    positions: jax.Array
    root: jax.Array
    tokens: jax.Array | None = None
    states: jax.Array | None = None

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

    def modules(self, draft, depth: int) -> tuple:
        """What reads the first rows of a round, one after another: module k says the token of depth k + 1, the last all further ones."""
        return (draft,)

    def begin(self, target: Decoder, draft, state, depth: int) -> Begun:
        """Reads the token before the root, where there is one, and the root, at position n."""
        n, cache = state.cache.length, state.drafter.cache
        before = jnp.take_along_axis(state.tokens, jnp.maximum(n - 1, 0)[:, None], 1)
        seen = jnp.stack([n > 0, jnp.ones_like(n > 0)], 1)
        positions = jnp.stack([jnp.maximum(n - 1, 0), n], 1)
        mask = jnp.tril(jnp.ones((2, 2), bool)) & seen[:, None] | jnp.eye(2, dtype=bool)
        out = draft(jnp.concatenate([before, state.root[:, None]], 1), positions, mask, cache)
        return Begun(cache, out.rows, out.hidden[:, -1:], seen, positions, n)

    def read(self, target: Decoder, module, tokens, features, positions, mask, cache, **rows) -> Output:
        """Reads drafted nodes int32 [B, F], each drafted from ``features`` float32 [B, F, E], the hidden state of its parent; the rest
        as in ``Decoder``."""
        return module(tokens, positions, mask, cache, **rows)

    def logits(self, target: Decoder, module, hidden: jax.Array) -> jax.Array:
        """Float32 [..., V] of hidden states [..., E]."""
        return module.logits(hidden)

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

    In a head of D modules each has keys and values of its own. Module k, from 0, reads in row i what the one before made of row i, and
    t_{i + 1 + k}; its last row says the draft of depth k + 1. Of n committed tokens its last k rows therefore hold drafts. No module's
    cache keeps the last D - 1 rows: a round reads them again, by then with the tokens that came.
    """

    def init(self, target: Decoder, draft, tokens, lengths, taps, depth: int, *, chunk, dtype) -> State:
        """As in ``TokenReader``. All of the prompt's pairs are read, and the last D again when the first round begins."""
        n, modules = lengths - 1, self.modules(draft, depth)
        D = len(modules)
        cache, _, _ = fill(_Pairs(target, draft, modules, tokens, taps), tokens, n, chunk, dtype)
        length = jnp.maximum(n - D, 0)
        at = (length[:, None] + jnp.arange(D))[..., None]
        newest = draft.fuse(target, tuple(jnp.take_along_axis(tap, at, 1) for tap in taps))
        features = jnp.pad(jnp.where(at < n[:, None, None], newest, 0), ((0, 0), (0, depth), (0, 0)))
        return State(cache.replace(length=length), features)

    def modules(self, draft, depth: int) -> tuple:
        """As in ``TokenReader``: those of the head that rounds of ``depth`` levels use."""
        return tuple(draft.modules)[:depth]

    def begin(self, target: Decoder, draft, state, depth: int) -> Begun:
        """Reads the pairs that are not in the cache, at most R = depth + D of them; the last has the root."""
        return self._read(target, draft.modules[0], self.pairs(state))

    def pairs(self, state) -> Begun:
        """Those pairs, before they are read."""
        n, own = state.cache.length, state.drafter
        place = jnp.arange(own.features.shape[1])
        count = jnp.maximum(n - own.cache.length, 1)[:, None]
        positions = own.cache.length[:, None] + place
        tokens = jnp.take_along_axis(state.tokens, jnp.minimum(positions + 1, n[:, None]), 1)
        root = own.cache.length + count[:, 0] - 1
        return Begun(own.cache, (), None, place < count, positions, root, tokens, own.features)

    def follow(self, target: Decoder, module, begun: Begun, newest: jax.Array) -> Begun:
        """Reads the same rows with the next module, from the hidden states of the one before: each has the token one further on, the last
        the ``newest`` draft int32 [B]."""
        last = jnp.arange(begun.seen.shape[1]) == begun.seen.sum(-1, keepdims=True) - 1
        tokens = jnp.where(last, newest[:, None], jnp.roll(begun.tokens, -1, 1))
        return self._read(target, module, begun.replace(tokens=tokens, root=begun.root - 1))

    def _read(self, target: Decoder, module, begun: Begun) -> Begun:
        R = begun.tokens.shape[1]
        out = module(target, begun.tokens, begun.states, begun.positions, jnp.tril(jnp.ones((R, R), bool)), begun.cache)
        hidden = jnp.take_along_axis(out.hidden, begun.seen.sum(-1)[:, None, None] - 1, 1)
        return begun.replace(rows=out.rows, hidden=hidden, states=out.hidden)

    def read(self, target: Decoder, module, tokens, features, positions, mask, cache, **rows) -> Output:
        """As in ``TokenReader``."""
        return module(target, tokens, features, positions, mask, cache, **rows)

    def logits(self, target: Decoder, module, hidden: jax.Array) -> jax.Array:
        """As in ``TokenReader``."""
        return module.logits(target, hidden)

    def commit(self, target: Decoder, draft, state, on_path: jax.Array, out: Output, verdict) -> State:
        """The state after a verdict: of the rows those that the round began with are kept, but the last D - 1, and of the path the target's
        features."""
        n, pending, P = state.cache.length, state.drafter, verdict.path.shape[1]
        rows = jax.tree.map(lambda leaf: leaf[:, :, :P], pending.rows)
        R = pending.features.shape[1]
        length = jnp.maximum(n - (R - P), 0)
        # A row that emitted nothing has ended and may be written anywhere; this makes the write depend on all that was read, without
        # which XLA:CPU would copy the cache.
        start = jnp.where(verdict.length > 0, pending.cache.length, 0)
        cache = kv.commit(pending.cache, rows, None, start, length)

        path = draft.fuse(target, tuple(jnp.take_along_axis(tap, verdict.path[..., None], 1) for tap in out.taps))
        at = length[:, None] + jnp.arange(R)
        place = jnp.where(at < n[:, None], at - pending.cache.length[:, None], R + at - n[:, None])
        features = jnp.take_along_axis(jnp.concatenate([pending.features, path], 1), jnp.minimum(place, R + P - 1)[..., None], 1)
        return State(cache, features)


@dataclasses.dataclass(frozen=True, eq=False)
class _Pairs:
    """The modules of a head as one model of a text int32 [B, T] whose taps float32 [B, T, E] are given, for ``decode.fill``."""

    target: Decoder
    head: Any
    modules: tuple
    tokens: jax.Array
    taps: tuple

    @property
    def config(self):
        layers = self.head.config.layers
        return layers.replace(num_layers=len(self.modules) * layers.num_layers)

    def __call__(self, tokens, positions, mask, cache, **_) -> Output:
        piece = lambda whole: lax.dynamic_slice_in_dim(whole, positions[0, 0], positions.shape[1], 1)  # of one place in all rows
        hidden, rows = self.head.fuse(self.target, tuple(map(piece, self.taps))), ()
        for k, module in enumerate(self.modules):
            out = module(self.target, piece(jnp.roll(self.tokens, -1 - k, 1)), hidden, positions, mask, cache)
            hidden, rows = out.hidden, rows + out.rows
        return Output(hidden, rows)
