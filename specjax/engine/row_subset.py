"""Rounds for some of an engine's slots, in a state of fewer rows: pure functions for the device.

A round computes all rows of its state, also those that have ended. So where few slots have a row, a
round of a smaller state takes less time. Rows are copied there and back. Keys and values of a row
that stays are copied there once, and after that only the new ones are copied back.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from ..core.blocks import is_blocks
from ..core.cache import KVCache, is_cache
from ..core.logit_adjustments import RowConstraints
from ..core.recurrence import State
from ..core.state import DecodeState
from ..models.base import Model
from . import slots

_PIECE = 64
"""Positions that are copied together."""


def advance(
    target: Model,
    draft,
    state: DecodeState,
    narrow: DecodeState,
    some: jax.Array,
    known: jax.Array,
    rounds: jax.Array,
    constraints: RowConstraints | None = None,
    *,
    axes: DecodeState,
    **static,
) -> tuple[tuple[DecodeState, DecodeState], slots.RoundResults]:
    """The states after ``slots.advance`` for the slots ``some``, and the results of their rows.

    Donate both states.

    Args:
      narrow: a state of w rows.
      some: int32 [w], each slot once.
      known: bool [w], whether the row of ``narrow`` has the keys and values of the slot already.
      constraints: see ``slots.advance``.
    """

    def copy(i, narrow):
        return _copy_row(axes, state, some[i], narrow, i, lambda cache: jnp.where(known[i], cache.held[some[i]], 0))

    narrow = lax.fori_loop(0, some.size, copy, narrow)
    before = narrow.cache.held
    narrow, results = slots.advance(target, draft, narrow, rounds, constraints, **static)

    def copy_back(i, state):
        # The target's cache only grows. A draft's may also lose tokens, and get others in their
        # places.
        begin = lambda cache: before[i] if cache is narrow.cache else 0
        return _copy_row(axes, narrow, i, state, some[i], begin)

    return (lax.fori_loop(0, some.size, copy_back, state), narrow), results


def _copy_row(axes: DecodeState, source: DecodeState, i, target: DecodeState, j, begin: Callable) -> DecodeState:
    """``target`` with row i of ``source`` as its row j.

    ``begin(cache)``: the first position whose keys and values are copied from a cache of
    ``source``.
    """

    def copy(axis, old, new):
        if is_cache(old):
            return _copy_held(axis, old, i, new, j, begin(old))
        return new if axis < 0 else _copy(axis, old, i, new, j)

    return jax.tree.map(copy, axes, source, target, is_leaf=is_cache)


def _copy(axis: int, source: jax.Array, i, target: jax.Array, j) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(target, lax.dynamic_slice_in_dim(source, i, 1, axis), j, axis)


def _copy_held(axes: KVCache, source: KVCache, i, target: KVCache, j, begin) -> KVCache:
    """``_copy_row`` of a cache.

    It copies keys and values from position ``begin`` to the last token, and the rest whole. Those
    in blocks stay where they are.
    """
    is_array = lambda layer: not isinstance(layer, State)
    arrays = lambda cache: tuple(layer if is_array(layer) else () for layer in cache.layers)
    rest = lambda cache: cache.replace(layers=tuple(() if is_array(layer) else layer for layer in cache.layers))
    shared = any(map(is_blocks, jax.tree.leaves(target.layers, is_leaf=is_blocks)))

    def copy_piece(piece, layers):
        def copy(new, old):
            at = piece * _PIECE
            size = min(_PIECE, old.shape[2])
            part = lax.dynamic_slice(old, (i, 0, at, 0), (1, old.shape[1], size, old.shape[3]))
            return lax.dynamic_update_slice(new, part, (j, 0, at, 0))

        return jax.tree.map(copy, layers, arrays(source))

    pieces = begin // _PIECE, -(-source.held[i] // _PIECE)
    copied = arrays(target) if shared else lax.fori_loop(*pieces, copy_piece, arrays(target))
    others = jax.tree.map(lambda axis, old, new: _copy(axis, old, i, new, j), rest(axes), rest(source), rest(target))
    return others.replace(layers=tuple(a or b for a, b in zip(copied, others.layers)))
