"""A second, smaller language model drafts a chain (Leviathan et al. 2023; Chen et al. 2023)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from .. import cache as kv
from ..cache import KVCache
from ..context import advance
from ..decode import fill
from ..request import whole
from ..sampling import probabilities, sample
from ..tree import chain


@struct.dataclass
class State:
    """The draft's cache, which holds all tokens but the newest, and between draft and commit the rows of this round."""

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
    unread: ClassVar[int] = 2  # the newest tokens, the root last, that are not in the cache at the beginning of a round, at most
    taps: ClassVar[tuple[int, ...]] = ()
    needs_draft: ClassVar[bool] = True

    def __post_init__(self):
        whole("num_speculative_tokens", self.num_speculative_tokens)

    @property
    def depth(self) -> int:
        return self.num_speculative_tokens

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        cache, _, _ = fill(draft, tokens, lengths - 1, chunk, dtype)
        return State(cache.replace(length=jnp.maximum(lengths - 2, 0)))

    def draft(self, target, draft, state, key):
        n, cache, newest = state.cache.length, state.drafter.cache, self.unread  # the root is at position n
        node = jnp.arange(self.depth + 1)  # the root and all drafts
        row = jnp.arange(newest - 1 + self.depth)  # what this round reads: the newest tokens, the root last, and all drafts but the last
        place = n[:, None] + row - (newest - 1)
        exists, at = place >= cache.length[:, None], jnp.maximum(place, 0)

        def draw(out, drafted, states, i):
            """The token after node i, given the nodes so far and the state of the constraint after them."""
            path = jnp.broadcast_to((node > 0) & (node <= i), (n.size, 1, node.size))
            q = probabilities(draft.logits(out.hidden[:, -1:]), state.sampling, state.context(drafted, path, states[:, None]))[:, 0]
            token = sample(jax.vmap(jax.random.fold_in, (0, None))(key, i), q, state.sampling)
            states = states if state.sampling.constraint is None else advance(state.sampling.constraint, states, token)
            return token, q, lax.dynamic_update_slice_in_dim(drafted, token[:, None], i + 1, 1), states

        def extend(carry, i):
            token, rows, drafted, states = carry
            own = newest - 1 + i
            seen = jnp.concatenate([exists & (row < own), jnp.ones_like(exists[:, :1])], 1)[:, None]
            position = (n + i)[:, None]
            out = draft(token[:, None], position, seen, cache, rows=rows, row_positions=jnp.concatenate([at, position], 1))
            rows = jax.tree.map(lambda old, new: lax.dynamic_update_slice_in_dim(old, new[:, :, -1:], own, 2), rows, out.rows)
            token, q, drafted, states = draw(out, drafted, states, i)
            return (token, rows, drafted, states), q

        mask = jnp.tril(jnp.ones((newest, newest), bool)) & exists[:, None, :newest] | jnp.eye(newest, dtype=bool)
        out = draft(jnp.take_along_axis(state.tokens, at[:, :newest], 1), at[:, :newest], mask, cache)
        drafted = jnp.where(node == 0, state.root[:, None], 0)
        token, q, drafted, states = draw(out, drafted, state.states, 0)
        rows = jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0), (0, 0), (0, self.depth - 1), (0, 0))), out.rows)
        (_, rows, drafted, _), qs = lax.scan(extend, (token, rows, drafted, states), jnp.arange(1, self.depth))
        qs = jnp.concatenate([q[None], qs, jnp.zeros_like(q)[None]])
        return jax.vmap(chain, (0, 1))(drafted, qs), State(cache, rows)

    def commit(self, target, draft, state, tree, out, verdict):
        n, pending = state.cache.length, state.drafter
        kept = jnp.minimum(jnp.arange(self.depth + 1), verdict.length[:, None])
        path = jnp.minimum(kept + jnp.int32(n == 0)[:, None], self.depth)  # in a row of one token there was none before the root
        cache = kv.commit(pending.cache, pending.rows, path, pending.cache.length, jnp.maximum(n + verdict.length - 1, 0))
        return State(cache)
