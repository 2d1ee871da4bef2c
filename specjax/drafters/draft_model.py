"""A second, smaller language model drafts a chain (Leviathan et al. 2023; Chen et al. 2023)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from .. import cache as kv
from ..cache import KVCache
from ..decode import catch_up, fill
from ..request import whole
from . import chains


@struct.dataclass
class State:
    """The draft's cache, which holds all tokens but the newest two, and between draft and commit the rows of this round."""

    cache: KVCache
    rows: tuple = ()


@dataclasses.dataclass(frozen=True)
class DraftModel:
    """Draws ``num_speculative_tokens`` tokens one after another from the draft, under the same sampling options as the target.

    A round begins with the newest two tokens. When all drafts of the last round were kept, the draft has not seen the last of
    them; reading two closes that hole at the cost of none, since a second row is free where a step reads all weights anyway.
    """

    num_speculative_tokens: int = 5
    sampled: ClassVar[str] = "chain"
    taps: ClassVar[tuple[int, ...]] = ()
    needs_draft: ClassVar[bool] = True
    can_rest: ClassVar[bool] = True

    def __post_init__(self):
        whole("num_speculative_tokens", self.num_speculative_tokens)

    @property
    def depth(self) -> int:
        return self.num_speculative_tokens

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        cache, _, _ = fill(draft, tokens, lengths - 1, chunk, dtype)
        return State(cache.replace(length=jnp.maximum(lengths - 2, 0)))

    def draft(self, target, draft, state, key, least: jax.Array | None = None):
        """See ``Drafter``; ``least``: see ``chains.draw``."""
        n = state.cache.length  # the root is at position n
        cache = catch_up(draft, state.drafter.cache, state.tokens, jnp.maximum(n - 1, 0))
        before = jnp.take_along_axis(state.tokens, jnp.maximum(n - 1, 0)[:, None], 1)
        place = jnp.arange(self.depth + 1)  # rows of the round: the token before the root, the root, all drafts but the last
        exists = (place > 0) | (n > 0)[:, None]
        at = jnp.maximum(n[:, None] - 1 + place, 0)

        def read(i, token, rows):
            seen = jnp.concatenate([exists & (place <= i), jnp.ones_like(exists[:, :1])], 1)[:, None]
            position = (n + i)[:, None]
            out = draft(token, position, seen, cache, rows=rows, row_positions=jnp.concatenate([at, position], 1))
            rows = jax.tree.map(lambda old, new: lax.dynamic_update_slice_in_dim(old, new[:, :, -1:], i + 1, 2), rows, out.rows)
            return draft.logits(out.hidden), rows

        mask = jnp.tril(jnp.ones((2, 2), bool)) & exists[:, None, :2] | jnp.eye(2, dtype=bool)
        out = draft(jnp.concatenate([before, state.root[:, None]], 1), at[:, :2], mask, cache)
        rows = jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0), (0, 0), (0, self.depth - 1), (0, 0))), out.rows)
        chain = chains.begin(state, self.depth, target.config.vocab_size)
        chain = chains.draw(chain, draft.logits(out.hidden[:, -1:]), 0, state, key, least)
        chain, rows, _ = chains.grow(chain, 1, read, rows, state, key, least)
        return chain.tree, State(cache, rows)

    def commit(self, target, draft, state, tree, out, verdict):
        n, pending = state.cache.length, state.drafter
        kept = jnp.minimum(jnp.arange(self.depth + 1), verdict.length[:, None])
        path = jnp.minimum(kept + jnp.int32(n == 0)[:, None], self.depth)  # in a row of one token there was none before the root
        cache = kv.commit(pending.cache, pending.rows, path, pending.cache.length, jnp.maximum(n + verdict.length - 1, 0))
        return State(cache)
