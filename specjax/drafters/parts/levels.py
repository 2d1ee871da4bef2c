"""A token tree is read level by level: what all trees share that are grown by a draft, be it a language model or a head.

Each level is one forward of the ``width`` nodes that will have children, the *frontier*; their rows stay outside the cache, and each
sees its own ancestors. All levels have one shape, so they are one ``lax.scan``, whatever the tree.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ...context import advance
from ...sampling import adjusted, siblings, warped
from .readers import State


@struct.dataclass
class Level:
    """What follows the frontier of one level, F nodes in each row.

    Attributes:
      q: float32 [B, F, V].
      tokens, exists: int32 and bool [B, F, k], children in the order of choice, and whether there was such a token.
      scores: float32 [B, F, k], their log-probabilities before truncation.
    """

    q: jax.Array
    tokens: jax.Array
    exists: jax.Array
    scores: jax.Array


def grow(
    reader, target, draft, state, key, choose: Callable, carry, *, depth: int, width: int, k: int, how: str, temperature: float = 1.0
) -> tuple[Level, tuple, State]:
    """Reads ``depth`` levels below the root.

    Args:
      reader: who reads, see ``readers``.
      key: [B].
      choose: ``(d, level, carry) -> slot, rank, carry``: the frontier at depth d, int32 [B, F] each: a child of which node of the last
        frontier, and which child.
      carry: what ``choose`` begins with.
      how: see ``sampling.siblings``.
      temperature: of the scores.

    Returns the levels, stacked [depth, B, ...], of which the first is that of the root in every slot; what was chosen from all but the
    last, ``slot`` and ``rank`` [depth - 1, B, F]; and the drafter's state, in which ``row_of`` is left to the caller.
    """
    begun, F = reader.begin(target, draft, state, depth), width
    (B, R), slots = begun.seen.shape, 1 + (depth - 1) * F  # the root, then the frontiers
    below = begun.root[:, None] + 1 + jnp.arange((depth - 1) * F) // F
    row_positions = jnp.concatenate([begun.positions, below], 1)

    def look(hidden, nodes, path, states, d) -> Level:
        logits = reader.logits(target, draft, hidden).astype(jnp.float32)
        logits = adjusted(logits, state.sampling, state.context(nodes, path, states))
        q = warped(logits, state.sampling)
        keys = jax.vmap(jax.random.fold_in, (0, None))(key, d)
        tokens, exists = siblings(keys, logits, q, state.sampling, k, how)
        scores = jnp.take_along_axis(jax.nn.log_softmax(logits / temperature), tokens, 2)
        return Level(q, tokens, exists, scores)

    of = lambda leaf, slot: jnp.take_along_axis(leaf, slot[:, :, None], 1)

    def follow(level: Level, nodes, path, states, slot, rank, d):
        """The frontier at depth d: its tokens, the nodes with it, its ancestors, its constraint states."""
        tokens = jnp.take_along_axis(of(level.tokens, slot), rank[:, :, None], 2)[..., 0]
        states = jnp.take_along_axis(states, slot, 1)
        if state.sampling.constraint is not None:
            states = advance(state.sampling.constraint, states, tokens)
        return tokens, lax.dynamic_update_slice_in_dim(nodes, tokens, 1 + (d - 1) * F, 1), of(path, slot), states

    def turn(carry, d):
        level, hidden, rows, nodes, path, states, chosen = carry
        slot, rank, chosen = choose(d, level, chosen)
        tokens, nodes, above, states = follow(level, nodes, path, states, slot, rank, d)
        own = jnp.arange(slots) == (1 + (d - 1) * F + jnp.arange(F))[:, None]
        seen = jnp.concatenate([jnp.broadcast_to(begun.seen[:, None], (B, F, R)), above[:, :, 1:]], 2)
        mask = jnp.concatenate([seen, jnp.broadcast_to(jnp.eye(F, dtype=bool), (B, F, F))], 2)
        position = jnp.broadcast_to((begun.root + d)[:, None], (B, F))
        at = jnp.concatenate([row_positions, position], 1)
        out = reader.read(target, draft, tokens, of(hidden, slot), position, mask, begun.cache, rows=rows, row_positions=at)
        rows = jax.tree.map(lambda old, new: lax.dynamic_update_slice_in_dim(old, new[:, :, -F:], R + (d - 1) * F, 2), rows, out.rows)
        path = above | own
        level = look(out.hidden, nodes, path, states, d)
        return (level, out.hidden, rows, nodes, path, states, chosen), (level, slot, rank)

    nodes = jnp.zeros((B, slots), jnp.int32).at[:, 0].set(state.root)
    none = jnp.zeros((B, 1, slots), bool)
    first = look(begun.hidden, nodes, none, state.states[:, None], 0)
    wide = lambda leaf: jnp.broadcast_to(leaf, (B, F, *leaf.shape[2:]))  # so that all levels have one shape
    first = jax.tree.map(wide, first)
    start = (first, wide(begun.hidden), begun.room((depth - 1) * F), nodes, wide(none), wide(state.states[:, None]), carry)
    (_, _, rows, *_), (levels, *chosen) = lax.scan(turn, start, jnp.arange(1, depth))
    levels = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), first, levels)
    return levels, tuple(chosen), state.drafter.replace(cache=begun.cache, rows=rows)


def commit(reader, target, draft, state, out, verdict) -> State:
    """The state after a verdict."""
    on_path = jnp.take_along_axis(state.drafter.row_of, verdict.path, 1)
    return reader.commit(target, draft, state, on_path, out, verdict)
