"""A draft model reads a token tree level by level: what all trees from draft models share.

Each level is one forward of the ``width`` nodes that will have children, the *frontier*; their rows stay outside the cache, and each
sees its own ancestors. All levels have one shape, so they are one ``lax.scan``, whatever the tree.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from .. import cache as kv
from ..cache import KVCache
from ..context import advance
from ..decode import catch_up, fill
from ..sampling import adjusted, siblings, warped


@struct.dataclass
class State:
    """The draft's cache, which holds all tokens but the newest two, and between draft and commit the rows of this round.

    Attributes:
      rows: for each layer keys and values of the token before the root, of the root, and of the frontier of each level but the last.
      row_of: int32 [B, N], which of them belongs to each node of the tree; 0 for one that the draft has not read.
    """

    cache: KVCache
    rows: tuple = ()
    row_of: jax.Array | None = None


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


def init(draft, tokens, lengths, *, chunk, dtype) -> State:
    """The state after the prompt."""
    cache, _, _ = fill(draft, tokens, lengths - 1, chunk, dtype)
    return State(cache.replace(length=jnp.maximum(lengths - 2, 0)))


def grow(draft, state, key, choose: Callable, carry, *, depth: int, width: int, k: int, how: str) -> tuple[Level, tuple, State]:
    """Reads ``depth`` levels below the root.

    Args:
      key: [B].
      choose: ``(d, level, carry) -> slot, rank, carry``: the frontier at depth d, int32 [B, F] each: a child of which node of the last
        frontier, and which child.
      carry: what ``choose`` begins with.
      how: see ``sampling.siblings``.

    Returns the levels, stacked [depth, B, ...], of which the first is that of the root in every slot; what was chosen from all but the
    last, ``slot`` and ``rank`` [depth - 1, B, F]; and the drafter's state, in which ``row_of`` is left to the caller.
    """
    n, F = state.cache.length, width
    cache = catch_up(draft, state.drafter.cache, state.tokens, jnp.maximum(n - 1, 0))
    B, slots = n.size, 1 + (depth - 1) * F  # the root, then the frontiers
    before = jnp.take_along_axis(state.tokens, jnp.maximum(n - 1, 0)[:, None], 1)
    exists = (n > 0)[:, None]
    level_of = jnp.concatenate([jnp.array([-1, 0]), 1 + jnp.arange((depth - 1) * F) // F])
    row_positions = jnp.maximum(n[:, None] + level_of, 0)

    def look(hidden, nodes, path, states, d) -> Level:
        logits = draft.logits(hidden).astype(jnp.float32)
        logits = adjusted(logits, state.sampling, state.context(nodes, path, states))
        q = warped(logits, state.sampling)
        keys = jax.vmap(jax.random.fold_in, (0, None))(key, d)
        tokens, exists = siblings(keys, logits, q, state.sampling, k, how)
        scores = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens, 2)
        return Level(q, tokens, exists, scores)

    def follow(level: Level, nodes, path, states, slot, rank, d):
        """The frontier at depth d: its tokens, the nodes with it, its ancestors, its constraint states."""
        of = lambda leaf: jnp.take_along_axis(leaf, slot[:, :, None], 1)
        tokens = jnp.take_along_axis(of(level.tokens), rank[:, :, None], 2)[..., 0]
        states = jnp.take_along_axis(states, slot, 1)
        if state.sampling.constraint is not None:
            states = advance(state.sampling.constraint, states, tokens)
        return tokens, lax.dynamic_update_slice_in_dim(nodes, tokens, 1 + (d - 1) * F, 1), of(path), states

    def turn(carry, d):
        level, rows, nodes, path, states, chosen = carry
        slot, rank, chosen = choose(d, level, chosen)
        tokens, nodes, above, states = follow(level, nodes, path, states, slot, rank, d)
        own = jnp.arange(slots) == (1 + (d - 1) * F + jnp.arange(F))[:, None]
        seen = jnp.concatenate([jnp.broadcast_to(exists[:, None], (B, F, 1)), jnp.ones((B, F, 1), bool), above[:, :, 1:]], 2)
        mask = jnp.concatenate([seen, jnp.broadcast_to(jnp.eye(F, dtype=bool), (B, F, F))], 2)
        position = jnp.broadcast_to((n + d)[:, None], (B, F))
        out = draft(tokens, position, mask, cache, rows=rows, row_positions=jnp.concatenate([row_positions, position], 1))
        rows = jax.tree.map(lambda old, new: lax.dynamic_update_slice_in_dim(old, new[:, :, -F:], 2 + (d - 1) * F, 2), rows, out.rows)
        path = above | own
        level = look(out.hidden, nodes, path, states, d)
        return (level, rows, nodes, path, states, chosen), (level, slot, rank)

    mask = jnp.tril(jnp.ones((2, 2), bool)) & jnp.concatenate([exists, jnp.ones_like(exists)], 1)[:, None] | jnp.eye(2, dtype=bool)
    out = draft(jnp.concatenate([before, state.root[:, None]], 1), row_positions[:, :2], mask, cache)
    rows = jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0), (0, 0), (0, (depth - 1) * F), (0, 0))), out.rows)
    nodes = jnp.zeros((B, slots), jnp.int32).at[:, 0].set(state.root)
    none = jnp.zeros((B, 1, slots), bool)
    first = look(out.hidden[:, -1:], nodes, none, state.states[:, None], 0)
    wide = lambda leaf: jnp.broadcast_to(leaf, (B, F, *leaf.shape[2:]))  # so that all levels have one shape
    first = jax.tree.map(wide, first)
    start = (first, rows, nodes, wide(none), wide(state.states[:, None]), carry)
    (_, rows, *_), (levels, *chosen) = lax.scan(turn, start, jnp.arange(1, depth))
    return jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), first, levels), tuple(chosen), State(cache, rows)


def commit(state, verdict) -> State:
    """The state after a verdict: the rows of the token before the root, the root, and the path but its last node."""
    n, pending = state.cache.length, state.drafter
    on_path = jnp.take_along_axis(pending.row_of, verdict.path, 1)
    after_before = jnp.concatenate([jnp.zeros_like(on_path[:, :1]), on_path[:, :-1]], 1)
    kept = jnp.where((n > 0)[:, None], after_before, on_path)  # in a row of one token there was none before the root
    return State(kv.commit(pending.cache, pending.rows, kept, pending.cache.length, jnp.maximum(n + verdict.length - 1, 0)))
