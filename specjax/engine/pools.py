"""The pools of an engine's blocks on the device: one for each array of keys or values.

States lie beside the pools, with ``Blocks`` that are empty. A program that reads or writes keys
gets both, so that rows that are read and rows that are decoded use the same memory.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from ..core.blocks import give_pools, is_blocks, map_arrays, take_pools
from ..core.cache import is_cache
from ..core.recurrence import State
from ..core.state import DecodeState
from ..errors import RequestError
from ..loop.prefill import Filled


def block_shapes(filled: Filled | None, size: int) -> list[jax.ShapeDtypeStruct]:
    """The arrays of one block of ``size`` positions: those of keys and values of a row, in order.

    ``filled`` is a row with arrays [1, K, T, D], or None for no arrays.
    """
    layers = () if filled is None else [layer for layer in filled.cache.layers if not isinstance(layer, State)]
    leaves = jax.tree.leaves(layers)
    return [jax.ShapeDtypeStruct((1, leaf.shape[1], size, leaf.shape[3]), leaf.dtype) for leaf in leaves]


def blank_pools(shapes, count: int):
    """Pools of ``count`` blocks of these ``block_shapes``, a pytree."""
    return jax.tree.map(lambda block: jnp.zeros((count, *block.shape[1:]), block.dtype), shapes)


def copy_block(pools, source: jax.Array, to: jax.Array):
    """The pools with the numbers of block ``source`` in block ``to`` too. Donate ``pools``."""
    take = lambda pool: lax.dynamic_slice_in_dim(pool, source, 1)
    return jax.tree.map(lambda pool: lax.dynamic_update_slice_in_dim(pool, take(pool), to, 0), pools)


def on_pools(*operands, function: Callable, at: int) -> tuple:
    """The result of ``function`` without pools, and the pools.

    The last two operands are pools and a table, for the ``Blocks`` in operand ``at``. Without
    ``Blocks`` the pools are empty, and the result is that of ``function``.
    """
    *arguments, pools, table = operands
    arguments[at] = give_pools(arguments[at], pools, table)
    result, after = take_pools(function(*arguments))
    return result, jax.tree.unflatten(jax.tree.structure(pools), after)


def hollow_axes(begin_row: Callable, read: tuple, shapes, table, axes: DecodeState) -> DecodeState:
    """The axes of rows of a state in blocks: ``axes`` with empty ``Blocks`` in place of keys.

    Args:
      begin_row: gives a state of one row of the rows ``read``, by the target and by the draft.
      shapes: their ``block_shapes``.
      table: int32 [1, T / S].
      axes: those of a state with keys and values of its own.

    Raises RequestError for a method whose state has other keys, or in another order.
    """
    lent = [give_pools(row, blocks, table) for row, blocks in zip(read, shapes)]
    row, pools = take_pools(jax.eval_shape(begin_row, *lent))
    sizes = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(leaves)] for leaves in (pools, shapes)]
    if sizes[0] != sizes[1]:
        raise RequestError(
            "the method keeps keys in a form of its own, which has no blocks; leave out blocks and memory"
        )
    return map_arrays(lambda new, axis: new if is_blocks(new) else axis, row, axes)


def held_in_blocks(state: DecodeState, row: int) -> int:
    """The number of a row's tokens whose keys all caches of a state with blocks have."""
    caches = [x for x in jax.tree.leaves(state, is_leaf=is_cache) if is_cache(x)]
    in_blocks = lambda cache: any(map(is_blocks, jax.tree.leaves(cache.layers, is_leaf=is_blocks)))
    counts = [cache.replace(layers=()) for cache in caches if in_blocks(cache)]
    return min(int(cache.held[row]) for cache in jax.device_get(counts))
