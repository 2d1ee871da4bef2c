"""The reader for trained heads, which continue the target's features."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ...core.cache import Rows, commit
from ...loop.prefill import fill
from ...models.base import Model, Output
from .readers import FirstRows, ReaderState


@dataclasses.dataclass(frozen=True)
class FeatureReader:
    """Reads nodes with a feature head, see ``Reader`` and ``heads.base``.

    The head's cache holds pairs (f_i, t_{i+1}) of a token's feature and the next token, at the
    position i of the feature. With n committed tokens, the last pair is pair n - 1, and its token
    is the root.

    A round begins by reading the pairs that the last round committed. Their features are the
    target's own. The head's hidden states of drafted nodes are dropped after the round (EAGLE, Li
    et al. 2024, section 3.1). After a prompt of one token there is no feature: the root is read
    with a feature of zeros, and this row is dropped too.

    A head may have D modules, each with keys and values of its own. In row i, module k (from 0)
    reads the hidden state of module k - 1 and the token t_{i+1+k}. Its last row predicts the draft
    at depth k + 1. The last k rows of module k therefore contain drafts. For this reason no
    module's cache keeps the last D - 1 rows: the next round reads them again, with the tokens that
    were emitted.
    """

    def reads(self, target: Model, draft, tokens, lengths, taps, depth: int) -> tuple["_Pairs", jax.Array]:
        return _Pairs(target, draft, self.modules(draft, depth), tokens, taps), lengths - 1

    def init(
        self, target: Model, draft, tokens, lengths, taps, depth: int, *, chunk, dtype, filled=None
    ) -> ReaderState:
        """Reads all pairs of the prompt. The first round reads the last D of them again."""
        pairs, n = self.reads(target, draft, tokens, lengths, taps, depth)
        D = len(pairs.modules)
        (cache, _, _) = fill(pairs, tokens, n, chunk, dtype) if filled is None else filled
        length = jnp.maximum(n - D, 0)
        at = (length[:, None] + jnp.arange(D))[..., None]
        newest = draft.fuse(target, tuple(jnp.take_along_axis(tap, at, 1) for tap in taps))
        features = jnp.pad(jnp.where(at < n[:, None, None], newest, 0), ((0, 0), (0, depth), (0, 0)))
        return ReaderState(cache.replace(length=length), features)

    def modules(self, draft, depth: int) -> tuple:
        """The head's modules that rounds of ``depth`` levels use."""
        return tuple(draft.modules)[:depth]

    def begin(self, target: Model, draft, state, depth: int) -> FirstRows:
        """Reads the pairs that are not in the cache. The last one has the root.

        There are at most R = depth + D such pairs; further rows are void.
        """
        return self._read_rows(target, draft.modules[0], self.pairs(state))

    def pairs(self, state) -> FirstRows:
        """The pairs that are not in the cache, before they are read."""
        n = state.cache.length
        own = state.drafter
        place = jnp.arange(own.features.shape[1])
        count = jnp.maximum(n - own.cache.length, 1)[:, None]
        positions = own.cache.length[:, None] + place
        tokens = jnp.take_along_axis(state.tokens, jnp.minimum(positions + 1, n[:, None]), 1)
        root = own.cache.length + count[:, 0] - 1
        return FirstRows(own.cache, Rows(()), None, place < count, positions, root, tokens, own.features)

    def follow(self, target: Model, module, first: FirstRows, newest: jax.Array) -> FirstRows:
        """Reads the same rows with the next module.

        Each row reads the token one place further on; the last row reads ``newest`` int32 [B].
        """
        assert first.tokens is not None  # ``pairs`` sets them
        last = jnp.arange(first.seen.shape[1]) == first.seen.sum(-1, keepdims=True) - 1
        tokens = jnp.where(last, newest[:, None], jnp.roll(first.tokens, -1, 1))
        return self._read_rows(target, module, first.replace(tokens=tokens, root=first.root - 1))

    def _read_rows(self, target: Model, module, first: FirstRows) -> FirstRows:
        assert first.tokens is not None  # ``pairs`` sets them
        R = first.tokens.shape[1]
        mask = jnp.tril(jnp.ones((R, R), bool))
        out = module(target, first.tokens, first.states, first.positions, mask, first.cache)
        hidden = jnp.take_along_axis(out.hidden, first.seen.sum(-1)[:, None, None] - 1, 1)
        return first.replace(rows=Rows(out.rows), hidden=hidden, states=out.hidden)

    def read(self, target: Model, module, tokens, features, positions, mask, cache, **rows) -> Output:
        return module(target, tokens, features, positions, mask, cache, **rows)

    def logits(self, target: Model, module, hidden: jax.Array) -> jax.Array:
        return module.logits(target, hidden)

    def commit(self, target: Model, draft, state, on_path: jax.Array, scored: Output, verdict) -> ReaderState:
        """Keeps the first rows of the round without the last D - 1, and the path's features.

        The features come from the target.
        """
        n = state.cache.length
        pending = state.drafter
        P = verdict.path.shape[1]
        R = pending.features.shape[1]
        length = jnp.maximum(n - (R - P), 0)
        rows = pending.rows.first(P).layers
        cache = commit(pending.cache, rows, None, length, valid=state.done | (verdict.length > 0))

        path = draft.fuse(target, tuple(jnp.take_along_axis(tap, verdict.path[..., None], 1) for tap in scored.taps))
        at = length[:, None] + jnp.arange(R)
        place = jnp.where(at < n[:, None], at - pending.cache.length[:, None], R + at - n[:, None])
        known = jnp.concatenate([pending.features, path], 1)
        features = jnp.take_along_axis(known, jnp.minimum(place, R + P - 1)[..., None], 1)
        return ReaderState(cache, features)

    def rest(self, target: Model, draft, state, tree, scored: Output, verdict, depth: int) -> ReaderState:
        """Reads the pairs that were not in the cache, and keeps the path's features.

        The path has at most ``depth`` edges.
        """
        first = self.begin(target, draft, state, depth)
        layers = first.rows.layers
        for module in self.modules(draft, depth)[1:]:
            first = self.follow(target, module, first, state.root)  # the last rows are not kept
            layers += first.rows.layers
        pending = state.drafter.replace(rows=Rows(layers))
        return self.commit(target, draft, state.replace(drafter=pending), verdict.path, scored, verdict)


@dataclasses.dataclass(frozen=True, eq=False)
class _Pairs:
    """The modules of a head as a ``Model`` for ``fill``, which reads a known text.

    Attributes:
      tokens: int32 [B, T], the text.
      taps: float32 [B, T, E] each, its taps.
    """

    target: Model
    head: Any
    modules: tuple
    tokens: jax.Array
    taps: tuple

    @property
    def config(self):
        layers = self.head.config.layers
        return layers.with_layers([*range(layers.num_layers)] * len(self.modules))

    def __call__(self, tokens, positions, mask, cache, **_) -> Output:
        piece = lambda whole, at: jnp.take_along_axis(whole, at, 1, mode="clip")
        hidden = self.head.fuse(self.target, tuple(piece(tap, positions[..., None]) for tap in self.taps))
        rows = ()
        for k, module in enumerate(self.modules):
            tokens = piece(self.tokens, positions + 1 + k)
            out = module(self.target, tokens, hidden, positions, mask, cache)
            hidden = out.hidden
            rows = rows + out.rows
        return Output(hidden, rows)
