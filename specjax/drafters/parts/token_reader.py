"""The reader for language models."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from ...core.cache import Rows, commit
from ...loop.prefill import catch_up, fill
from ...models.base import Model, Output
from .readers import FirstRows, ReaderState


@dataclasses.dataclass(frozen=True)
class TokenReader:
    """Reads nodes with a draft model, see ``Reader``.

    The model's cache holds all tokens but the newest two, and a round begins by reading these two.
    The reason: after a round that accepts all drafts, the model has not read the last of them. The
    second row costs next to nothing, because a step reads all weights anyway. A text's first token,
    which in an encoder-decoder stands behind the source, has no token before it.
    """

    def reads(self, target: Model, draft, tokens, lengths, taps, depth: int) -> tuple[Model, jax.Array]:
        return draft, jnp.maximum(lengths - 2, 0)

    def init(
        self, target: Model, draft, tokens, lengths, taps, depth: int, *, chunk, dtype, filled=None
    ) -> ReaderState:
        filled = fill(draft, tokens, lengths, chunk, dtype, unread=2) if filled is None else filled
        return ReaderState(filled.cache)

    def begin(self, target: Model, draft, state, depth: int) -> FirstRows:
        """Reads the root, which is at position n, and the token before it, if there is one."""
        n = state.cache.length
        cache = state.drafter.cache
        follows = n > cache.begin
        before = jnp.maximum(n - 1, cache.begin)
        token = jnp.take_along_axis(state.tokens, before[:, None], 1)
        seen = jnp.stack([follows, jnp.ones_like(follows)], 1)
        positions = jnp.stack([before, n], 1)
        mask = jnp.tril(jnp.ones((2, 2), bool)) & seen[:, None] | jnp.eye(2, dtype=bool)
        out = draft(jnp.concatenate([token, state.root[:, None]], 1), positions, mask, cache)
        return FirstRows(cache, Rows(out.rows), out.hidden[:, -1:], seen, positions, n)

    def read(self, target: Model, module, tokens, features, positions, mask, cache, **rows) -> Output:
        return module(tokens, positions, mask, cache, **rows)

    def logits(self, target: Model, module, hidden: jax.Array) -> jax.Array:
        return module.logits(hidden)

    def commit(self, target: Model, draft, state, on_path: jax.Array, scored: Output, verdict) -> ReaderState:
        """Keeps the rows of the token before the root, and of the path's nodes but the last."""
        n = state.cache.length
        pending = state.drafter
        after_before = jnp.concatenate([jnp.zeros_like(on_path[:, :1]), on_path[:, :-1] + 1], 1)
        begin = pending.cache.begin
        path = jnp.where((n > begin)[:, None], after_before, on_path + 1)  # the first token has none before it
        length = jnp.maximum(n + verdict.length - 1, begin)
        return ReaderState(
            commit(pending.cache, pending.rows.layers, path, length, valid=state.done | (verdict.length > 0))
        )

    def rest(self, target: Model, draft, state, tree, scored: Output, verdict, depth: int) -> ReaderState:
        """Reads the tokens that the round emitted, but for the newest two."""
        n = state.cache.length
        cache = state.drafter.cache
        text = jax.vmap(lax.dynamic_update_slice)(state.tokens, tree.tokens, n[:, None])
        length = jnp.maximum(n + verdict.length - 1, cache.length)
        return state.drafter.replace(cache=catch_up(draft, cache, text, length))
