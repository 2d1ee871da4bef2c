"""The product of rows with weights of four or eight bits on CPU, a kernel that LLVM compiles.

The kernel reads weights in tiles of 16 outputs, so that a vector has a lane for each output. A row
of bytes is cut into fours. A tile holds the first four bytes of each of its outputs, then the
second four, and so on. Scales and offsets lie alike, one number after another.

It rounds each row in the groups of the weight, to eight bits or for an exact form to sixteen, and
multiplies whole numbers: by the instructions VNNI (AVX-512 or AVX), by those of AVX2, or by plain
multiplications. ``tiles_llvm`` has its code and needs the extra ``cpu``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from .processor import matrix_extensions
from .product import chunks_of, is_installed, threads

if TYPE_CHECKING:
    from ...models.quantised_weights import Quantised

TILE = 16
"""The outputs of a tile. The last tile may have further lanes, of zeros."""

QUAD = 4
"""The bytes of an output that lie together."""

_CHUNK = 1 << 17
"""The weights of a chunk of one row, which take a core a few microseconds."""

_ROWS = 6
"""So many rows more take as long again."""

_LARGEST_GROUP, _STEP = 32, 8
"""The largest group of the kernel, and the number that divides each group."""


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
    return max(size for size in range(_STEP, _LARGEST_GROUP + 1, _STEP) if group % size == 0)


def fits(group: int) -> bool:
    """Whether the kernel reads weights with groups of so many inputs."""
    return group % _STEP == 0 and is_installed()


def instructions() -> str:
    """The kind of instructions with which this processor multiplies whole numbers."""
    return next((kind for kind in ("avx512_vnni", "avx_vnni", "avx2") if kind in matrix_extensions()), "plain")


def product(rows: jax.Array, weight: "Quantised", number: jax.Array | None = None) -> jax.Array:
    """The product of rows [N, in] and a weight in tiles; float32 [N, out].

    A row's result depends neither on the number of rows nor on the kind of instructions.

    Args:
      number: the matrix to multiply with, of a weight [X, out, in], int32. XLA would copy the
        matrix.
    """
    from . import llvm, tiles_llvm  # need llvmlite

    *_, outputs, inputs = weight.shape
    tiles, group, exact = weight.scales.shape[-2], weight.group, weight.scheme.endswith(":exact")
    kind = instructions()
    words = exact or kind == "plain" or kind == "avx2" and weight.bits == 8
    numbers, *facts = _rounded(rows, group, 2**15 - 1 if exact else 127, words)
    operands = [numbers, weight.values, weight.scales, *facts, weight.offsets, number]
    form = weight.bits, group, weight.offsets is not None, number is not None, words
    name = llvm.register(tiles_llvm.tile_product, len(rows), threads() - 1, kind, *form)
    result = jax.ShapeDtypeStruct((len(rows), tiles * TILE), jnp.float32)
    call = jax.ffi.ffi_call(name, result, vmap_method="sequential")
    work = tiles * TILE * inputs * (1 + len(rows) / _ROWS)
    y = call(*(each for each in operands if each is not None), chunks=chunks_of(tiles, work, _CHUNK))
    return y[:, :outputs]


def _rounded(rows: jax.Array, group: int, most: int, words: bool) -> Sequence[jax.Array]:
    """Whole numbers [N, in], their scales float32 [N, G], and the sums of groups int32 [N, G]."""
    from . import llvm, rounded_rows_llvm  # need llvmlite

    count, inputs = rows.shape
    name = llvm.register(rounded_rows_llvm.rounded_rows, group, most, words)
    facts = [jax.ShapeDtypeStruct((count, inputs // group), dtype) for dtype in (jnp.float32, jnp.int32)]
    results = [jax.ShapeDtypeStruct(rows.shape, jnp.int16 if words else jnp.int8), *facts]
    return jax.ffi.ffi_call(name, results, vmap_method="sequential")(rows.astype(jnp.float32))
