"""The order in which the kernel of ``tiles`` reads weights: in tiles of 16 outputs.

So a vector has a lane for each output. A row of bytes is cut into fours. A tile holds the first
four bytes of each of its outputs, then the second four, and so on. Scales and offsets lie alike,
one number after another.
"""

import jax
import jax.numpy as jnp

TILE = 16
"""The outputs of a tile. The last tile may have further lanes, of zeros."""

QUAD = 4
"""The bytes of an output that lie together."""

STEP, _LARGEST_GROUP = 8, 32
"""The number that divides each group of inputs, and the largest group."""


def in_tiles(array: jax.Array, size: int) -> jax.Array:
    """An array [..., out, n] as tiles [..., T, n * 16], of which ``size`` numbers lie together."""
    *others, outputs, width = array.shape
    padded = jnp.pad(array, [(0, 0)] * len(others) + [(0, -outputs % TILE), (0, 0)])
    return padded.reshape(*others, -1, TILE, width // size, size).swapaxes(-3, -2).reshape(*others, -1, width * TILE)


def out_of_tiles(array: jax.Array, size: int) -> jax.Array:
    """The array [..., T * 16, n] that ``in_tiles`` was given, with the rows of zeros."""
    *others, tiles, width = array.shape
    lanes = array.reshape(*others, tiles, width // TILE // size, TILE, size).swapaxes(-3, -2)
    return lanes.reshape(*others, tiles * TILE, width // TILE)


def rows_of(array: jax.Array, rows: jax.Array, size: int) -> jax.Array:
    """Rows [..., n] of an array in tiles [T, n * 16]."""
    lanes = array.reshape(len(array), -1, TILE, size)[rows // TILE, :, rows % TILE]
    return lanes.reshape(*lanes.shape[:-2], -1)


def group_within(group: int) -> int:
    """The inputs of a group in tiles: ``group``, or a part of it if it is larger than 32."""
    return max(size for size in range(STEP, _LARGEST_GROUP + 1, STEP) if group % size == 0)
