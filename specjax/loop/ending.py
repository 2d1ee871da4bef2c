"""The end of a row: a stop token, a complete stop string, the row's limit, or a failure."""

import jax
import jax.numpy as jnp
from flax import struct

from ..core.automata import advance_along
from ..core.state import DecodeState
from ..core.tree import Tree
from ..core.verdict import Verdict


class Emission(struct.PyTreeNode):
    """The tokens that a round emits. P is ``tree.max_depth + 1``.

    Attributes:
      tokens: int32 [B, P]. The first ``verdict.length`` are emitted, the rest are void.
      from_draft: bool [B, P], whether each token is an accepted draft; false for void tokens.
      done: bool [B], whether the row has ended.
      constraint_state, stop_state: int32 [B], the states of both automata after the newest token.
    """

    tokens: jax.Array
    from_draft: jax.Array
    done: jax.Array
    constraint_state: jax.Array
    stop_state: jax.Array


def cut_at_end(state: DecodeState, tree: Tree, verdict: Verdict, failed: jax.Array) -> tuple[Verdict, Emission]:
    """Cuts a verdict after the first token that ends the row, and at the row's limit.

    A finished row keeps nothing.

    ``failed``: bool [B], the rows that failed, see ``has_failed``. They end without a token.

    Returns the verdict, with the last token that is kept as its bonus token, and the emission.
    """
    options = state.request
    place = jnp.arange(verdict.path.shape[1])
    drafted = jnp.take_along_axis(tree.tokens, jnp.roll(verdict.path, -1, 1), 1)
    emitted = jnp.where(place == verdict.length[:, None] - 1, verdict.bonus[:, None], drafted)

    ends = (emitted[:, :, None] == options.stop_ids[:, None, :]).any(-1)
    if options.stops is not None:
        stop_states = advance_along(options.stops, state.stop_state, emitted)
        ends |= options.stops.accept[stop_states]
    room = options.limit - state.cache.length - 1
    length = jnp.minimum(verdict.length, jnp.minimum(jnp.where(ends, place + 1, place.size).min(-1), room))
    length = jnp.where(state.done | failed, 0, length)

    bonus = _last(emitted, length, state.root)
    constraint_state = state.constraint_state
    stop_state = state.stop_state
    if options.sampling.table is not None:
        states = advance_along(options.sampling.table, constraint_state, emitted)
        constraint_state = _last(states, length, constraint_state)
    if options.stops is not None:
        stop_state = _last(stop_states, length, stop_state)
    emission = Emission(
        tokens=emitted,
        from_draft=place < jnp.minimum(length, verdict.length - 1)[:, None],
        done=state.done | failed | (length == room) | (ends & (place < length[:, None])).any(-1),
        constraint_state=constraint_state,
        stop_state=stop_state,
    )
    return verdict.replace(length=length, bonus=bonus), emission


def has_failed(logits: jax.Array, p: jax.Array, verdict: Verdict) -> jax.Array:
    """Bool [B], whether logits [B, N, V] are NaN or the options allow no token.

    The second case is tested at the root and at the end of the path only.
    """
    nodes = jnp.stack([jnp.zeros_like(verdict.length), verdict.path[:, -1]], 1)
    impossible = jnp.isnan(jnp.take_along_axis(p, nodes[..., None], 1)).any((1, 2))
    return jnp.isnan(logits).any((1, 2)) | impossible


def _last(values: jax.Array, length: jax.Array, otherwise: jax.Array) -> jax.Array:
    """``values[b, length[b] - 1]`` for each row b, or ``otherwise[b]`` if the length is 0."""
    last = jnp.take_along_axis(values, jnp.maximum(length - 1, 0)[:, None], 1)[:, 0]
    return jnp.where(length > 0, last, otherwise)
