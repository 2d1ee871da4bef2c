"""Growth of a token tree level by level, for all trees from a draft model or a head.

Each level is one forward over its *frontier*: the ``width`` nodes that will have children. Their
rows stay outside the cache, and each node sees its own ancestors. All levels have the same shape,
so one ``lax.scan`` runs them for any tree.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ...core.automata import advance
from ...core.sampling import adjust, siblings, warp
from .readers import Reader, ReaderState


class Level(struct.PyTreeNode):
    """The candidates below a frontier of F nodes in each row.

    Attributes:
      q: float32 [B, F, V], the distributions from which the children were drawn.
      tokens, exists: int32 and bool [B, F, k], children in the order of choice, and whether each
        exists.
      scores: float32 [B, F, k], the children's log-probabilities before truncation.
    """

    q: jax.Array
    tokens: jax.Array
    exists: jax.Array
    scores: jax.Array


class Growth(NamedTuple):
    """The size of a tree's candidates, and the choice of children.

    Attributes:
      depth: the number of levels.
      width: F, the number of nodes in a frontier.
      k: the number of children of each frontier node.
      how: the way to choose children, see ``sampling.siblings``.
      temperature: the temperature of the scores.
    """

    depth: int
    width: int
    k: int
    how: str
    temperature: float = 1.0


def grow(
    reader: Reader, target, draft, state, key, choose: Callable, carry, growth: Growth
) -> tuple[Level, tuple, ReaderState]:
    """Grows ``growth.depth`` levels of candidates below the root.

    Args:
      key: typed keys [B].
      choose: ``(d, level, carry) -> slot, rank, carry`` chooses the frontier at depth d from the
        candidates of the level above. ``slot`` and ``rank`` are int32 [B, F]: each node is child
        number ``rank`` of node ``slot`` in the frontier above.
      carry: the first ``carry`` of ``choose``.

    Returns three things. The levels are stacked [depth, B, ...]; the first one has the root in
    every slot. ``slot`` and ``rank`` [depth - 1, B, F] describe all frontiers below the root. The
    reader's state has all fields but ``row_of``, which the caller sets.
    """
    # 1. Read the root, and lay out the places of all nodes.
    depth = growth.depth
    F = growth.width
    first = reader.begin(target, draft, state, depth)
    (B, R) = first.seen.shape
    slots = 1 + (depth - 1) * F  # the root, then the frontiers
    options = state.request.sampling
    below = first.root[:, None] + 1 + jnp.arange((depth - 1) * F) // F
    row_positions = jnp.concatenate([first.positions, below], 1)

    # 2. Define how a level follows the one above: its candidates, its frontier, its forward.
    def candidates(hidden, nodes, path, states, d) -> Level:
        logits = reader.logits(target, draft, hidden).astype(jnp.float32)
        logits = adjust(logits, options, state.context(nodes, path, states))
        q = warp(logits, options)
        keys = jax.vmap(jax.random.fold_in, (0, None))(key, d)
        tokens, exists = siblings(keys, logits, q, options, growth.k, growth.how)
        scores = jnp.take_along_axis(jax.nn.log_softmax(logits / growth.temperature), tokens, 2)
        return Level(q, tokens, exists, scores)

    of = lambda leaf, slot: jnp.take_along_axis(leaf, slot[:, :, None], 1)

    def follow(level: Level, nodes, path, states, slot, rank, d):
        """The frontier at depth d: tokens, all nodes so far, ancestors and constraint states."""
        tokens = jnp.take_along_axis(of(level.tokens, slot), rank[:, :, None], 2)[..., 0]
        states = advance(options.table, jnp.take_along_axis(states, slot, 1), tokens)
        return tokens, lax.dynamic_update_slice_in_dim(nodes, tokens, 1 + (d - 1) * F, 1), of(path, slot), states

    def extend(carry, d):
        level, hidden, rows, nodes, path, states, chosen = carry
        slot, rank, chosen = choose(d, level, chosen)
        tokens, nodes, above, states = follow(level, nodes, path, states, slot, rank, d)
        own = jnp.arange(slots) == (1 + (d - 1) * F + jnp.arange(F))[:, None]
        seen = jnp.concatenate([jnp.broadcast_to(first.seen[:, None], (B, F, R)), above[:, :, 1:]], 2)
        mask = jnp.concatenate([seen, jnp.broadcast_to(jnp.eye(F, dtype=bool), (B, F, F))], 2)
        position = jnp.broadcast_to((first.root + d)[:, None], (B, F))
        at = jnp.concatenate([row_positions, position], 1)
        earlier = dict(rows=rows.layers, row_positions=at)
        out = reader.read(target, draft, tokens, of(hidden, slot), position, mask, first.cache, **earlier)
        rows = rows.put(out.rows, F, R + (d - 1) * F)
        path = above | own
        level = candidates(out.hidden, nodes, path, states, d)
        return (level, out.hidden, rows, nodes, path, states, chosen), (level, slot, rank)

    # 3. Take the candidates of the root, then grow level after level.
    nodes = jnp.zeros((B, slots), jnp.int32).at[:, 0].set(state.root)
    none = jnp.zeros((B, 1, slots), bool)
    root = candidates(first.hidden, nodes, none, state.constraint_state[:, None], 0)
    wide = lambda leaf: jnp.broadcast_to(leaf, (B, F, *leaf.shape[2:]))  # all levels have one shape
    root = jax.tree.map(wide, root)
    room = first.rows.room((depth - 1) * F)
    start = (root, wide(first.hidden), room, nodes, wide(none), wide(state.constraint_state[:, None]), carry)
    (_, _, rows, *_), (levels, *chosen) = lax.scan(extend, start, jnp.arange(1, depth))
    levels = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), root, levels)
    return levels, tuple(chosen), state.drafter.replace(cache=first.cache, rows=rows)
