"""Keys and values in blocks: rows of any length share the memory of one pool.

A table names the blocks of each row, in the order of its text. Several rows may have a block in
common. Block 0 belongs to no row: void positions are written there.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from .recurrence import State
from .stored_rows import finite_bits


class Blocks(struct.PyTreeNode):
    """Keys or values in blocks. They stand in place of an array [B, K, T, D].

    All numbers of a pool are finite, because attention multiplies void positions by zero.

    Attributes:
      pool: [blocks, K, S, D], where S is the number of positions of a block.
      table: int32 [B, T / S], the block of each S positions of a row; 0 where the row has none.

    Pool and table are None while others hold them, see ``give_pools``.
    """

    pool: Any
    table: Any

    @property
    def block(self) -> int:
        """S, the number of positions of a block."""
        return self.pool.shape[2]

    @property
    def shape(self) -> tuple[int, ...]:
        _, K, S, D = self.pool.shape
        B, count = self.table.shape
        return B, K, count * S, D

    @property
    def dtype(self):
        return self.pool.dtype

    def read(self, start, count: int) -> jax.Array:
        """The ``count`` positions from ``start`` on, [B, K, count, D]; both are multiples of S."""
        numbers = lax.dynamic_slice_in_dim(self.table, start // self.block, count // self.block, 1)
        B, K, _, D = self.shape
        return jnp.swapaxes(self.pool[numbers], 1, 2).reshape(B, K, count, D)

    def write_row(self, b, rows: jax.Array, start) -> "Blocks":
        """Writes ``rows`` [1, K, P, D] to row ``b`` of the batch, from position ``start`` on.

        A block that the P positions may touch takes one write of at most P positions. Those that do
        not belong to them keep their numbers.
        """
        S = self.block
        _, K, P, D = rows.shape
        width = min(P, S)
        padded = jnp.pad(_finite(rows, self.dtype), ((0, 0), (0, 0), (width, width), (0, 0)))
        table = lax.dynamic_index_in_dim(self.table, b, keepdims=False)
        pool = self.pool
        for number in [start // S + i for i in range(1 + -(-(P - 1) // S))]:
            offset = jnp.clip(start - number * S, 0, S - width)
            at = number * S + offset - start  # the place among the rows, maybe before or behind them
            place = jnp.take(table, number, mode="fill", fill_value=0), 0, offset, 0
            new = lax.dynamic_slice_in_dim(padded, at + width, width, 2)
            if P > 1:
                among = at + jnp.arange(width)[:, None]
                new = jnp.where((among >= 0) & (among < P), new, lax.dynamic_slice(pool, place, (1, K, width, D)))
            pool = lax.dynamic_update_slice(pool, new, place)
        return self.replace(pool=pool)

    def write_all(self, rows: jax.Array, start: jax.Array) -> "Blocks":
        """Writes ``rows`` [B, K, P, D] from positions ``start`` int32 [B] on, in one scatter."""
        at = start[:, None] + jnp.arange(rows.shape[2])
        numbers = jnp.take_along_axis(self.table, at // self.block, 1, mode="fill", fill_value=0)
        new = jnp.swapaxes(_finite(rows, self.dtype), 1, 2)
        return self.replace(pool=self.pool.at[numbers, :, at % self.block].set(new))


def _finite(rows: jax.Array, dtype) -> jax.Array:
    """Rows in a dtype, with zeros in place of numbers that are not finite.

    The row of the batch that has such numbers fails anyway, and others may get its blocks.
    """
    rows = rows.astype(dtype)
    if dtype == jnp.uint16:  # the bits of ``HalfRows``
        return finite_bits(rows)
    return jnp.where(jnp.isfinite(rows), rows, 0) if jnp.issubdtype(dtype, jnp.floating) else rows


def is_blocks(x) -> bool:
    """Whether a node of a pytree is ``Blocks``."""
    return isinstance(x, Blocks)


map_arrays = partial(jax.tree.map, is_leaf=is_blocks)
"""``jax.tree.map`` that takes ``Blocks`` as leaves."""


def without_writes(tree, valid: jax.Array):
    """A pytree whose ``Blocks`` write rows of the batch to block 0 where ``valid`` [B] is false."""
    hide = lambda leaf: leaf.replace(table=jnp.where(valid[:, None], leaf.table, 0)) if is_blocks(leaf) else leaf
    return map_arrays(hide, tree)


def with_tables_of(tree, like):
    """A pytree with the tables of the ``Blocks`` of ``like``."""
    return map_arrays(lambda leaf, old: leaf.replace(table=old.table) if is_blocks(leaf) else leaf, tree, like)


def pools_and_tables(tree) -> tuple[Any, list[jax.Array]]:
    """A pytree with the pools in place of its ``Blocks``, and the tables."""
    tables = [leaf.table for leaf in jax.tree.leaves(tree, is_leaf=is_blocks)]
    return map_arrays(lambda leaf: leaf.pool, tree), tables


def without_arrays(cache):
    """A ``KVCache`` in whose layers ``Blocks`` without pool and table stand for the arrays."""
    hollow = lambda layer: layer if isinstance(layer, State) else jax.tree.map(lambda _: Blocks(None, None), layer)
    return cache.replace(layers=tuple(map(hollow, cache.layers)))


def give_pools(tree, pools, table: jax.Array):
    """A pytree whose first ``Blocks`` get the arrays of ``pools``, in order, and this table."""
    left = iter(jax.tree.leaves(pools))
    give = lambda blocks: blocks if (pool := next(left, None)) is None else Blocks(pool, table)
    return map_arrays(lambda leaf: give(leaf) if is_blocks(leaf) else leaf, tree)


def take_pools(tree) -> tuple:
    """A pytree whose ``Blocks`` have neither pool nor table, and the pools in order."""
    blocks = [leaf for leaf in jax.tree.leaves(tree, is_leaf=is_blocks) if is_blocks(leaf)]
    hollow = map_arrays(lambda leaf: Blocks(None, None) if is_blocks(leaf) else leaf, tree)
    return hollow, [leaf.pool for leaf in blocks if leaf.pool is not None]
