"""A second, smaller language model drafts a chain (Leviathan et al. 2023; Chen et al. 2023)."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from .. import cache as kv
from ..cache import KVCache
from ..context import advance
from ..decode import catch_up, fill
from ..request import whole
from ..sampling import probabilities, sample
from ..tree import chain


@struct.dataclass
class State:
    """The draft's cache, which holds all tokens but the newest two, and between draft and commit the rows of this round."""

    cache: KVCache
    rows: tuple = ()


@struct.dataclass
class _Run:
    """What has been drafted so far in a round.

    Attributes:
      token: int32 [B], the newest.
      drafted: int32 [B, N], nodes of the chain.
      q: float32 [B, N, V], see ``Tree``.
      rows: for each layer keys and values of the token before the root and of the nodes.
      states: int32 [B], the state of the row's constraint after the newest.
      count: int32 [B], tokens that the row wanted.
      wanted: bool [B], whether it wants another.
    """

    token: jax.Array
    drafted: jax.Array
    q: jax.Array
    rows: tuple
    states: jax.Array
    count: jax.Array
    wanted: jax.Array


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

    def __post_init__(self):
        whole("num_speculative_tokens", self.num_speculative_tokens)

    @property
    def depth(self) -> int:
        return self.num_speculative_tokens

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        cache, _, _ = fill(draft, tokens, lengths - 1, chunk, dtype)
        return State(cache.replace(length=jnp.maximum(lengths - 2, 0)))

    def draft(self, target, draft, state, key, unsure: Callable | None = None):
        """See ``Drafter``. ``unsure``: ``(logits [B, V]) -> bool [B]``, rows that want no token after the one drawn from these; the loop
        ends when no row wants one, and what was drafted after a row's last is not valid."""
        n = state.cache.length  # the root is at position n
        cache = catch_up(draft, state.drafter.cache, state.tokens, jnp.maximum(n - 1, 0))
        before = jnp.take_along_axis(state.tokens, jnp.maximum(n - 1, 0)[:, None], 1)
        place = jnp.arange(self.depth + 1)  # rows of the round: the token before the root, the root, all drafts but the last
        exists = (place > 0) | (n > 0)[:, None]
        at = jnp.maximum(n[:, None] - 1 + place, 0)

        def draw(out, i, run):
            """Adds the token after node i, given the nodes so far and the state of the constraint after them."""
            path = jnp.broadcast_to((place > 0) & (place <= i), (n.size, 1, place.size))
            logits = draft.logits(out.hidden[:, -1:])
            q = probabilities(logits, state.sampling, state.context(run.drafted, path, run.states[:, None]))
            token = sample(jax.vmap(jax.random.fold_in, (0, None))(key, i), q[:, 0], state.sampling)
            constraint = state.sampling.constraint
            return run.replace(
                token=token,
                drafted=lax.dynamic_update_slice_in_dim(run.drafted, token[:, None], i + 1, 1),
                q=lax.dynamic_update_slice_in_dim(run.q, q, i, 1),
                states=run.states if constraint is None else advance(constraint, run.states, token),
                count=run.count + jnp.int32(run.wanted),
                wanted=run.wanted if unsure is None else run.wanted & ~unsure(logits[:, 0]),
            )

        def extend(i, run):
            seen = jnp.concatenate([exists & (place <= i), jnp.ones_like(exists[:, :1])], 1)[:, None]
            position = (n + i)[:, None]
            row_positions = jnp.concatenate([at, position], 1)
            out = draft(run.token[:, None], position, seen, cache, rows=run.rows, row_positions=row_positions)
            write = lambda old, new: lax.dynamic_update_slice_in_dim(old, new[:, :, -1:], i + 1, 2)
            return draw(out, i, run.replace(rows=jax.tree.map(write, run.rows, out.rows)))

        mask = jnp.tril(jnp.ones((2, 2), bool)) & exists[:, None, :2] | jnp.eye(2, dtype=bool)
        out = draft(jnp.concatenate([before, state.root[:, None]], 1), at[:, :2], mask, cache)
        run = draw(out, 0, self._begun(state.root, state.states, out.rows, target.config.vocab_size))
        if unsure is None:
            run = lax.fori_loop(1, self.depth, extend, run)
        else:
            more = lambda carry: (carry[0] < self.depth) & jnp.any(carry[1].wanted)
            _, run = lax.while_loop(more, lambda carry: (carry[0] + 1, extend(*carry)), (jnp.int32(1), run))
        return jax.vmap(chain)(run.drafted, run.q, place <= run.count[:, None]), State(cache, run.rows)

    def _begun(self, root, states, rows, vocab_size: int) -> "_Run":
        """A run of which the draft has read what comes before the first token."""
        B, depth = root.size, self.depth
        return _Run(
            token=root,
            drafted=jnp.zeros((B, depth + 1), jnp.int32).at[:, 0].set(root),
            q=jnp.zeros((B, depth + 1, vocab_size)),
            rows=jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0), (0, 0), (0, depth - 1), (0, 0))), rows),
            states=states,
            count=jnp.zeros(B, jnp.int32),
            wanted=jnp.ones(B, bool),
        )

    def commit(self, target, draft, state, tree, out, verdict):
        n, pending = state.cache.length, state.drafter
        kept = jnp.minimum(jnp.arange(self.depth + 1), verdict.length[:, None])
        path = jnp.minimum(kept + jnp.int32(n == 0)[:, None], self.depth)  # in a row of one token there was none before the root
        cache = kv.commit(pending.cache, pending.rows, path, pending.cache.length, jnp.maximum(n + verdict.length - 1, 0))
        return State(cache)
