"""The product of rows with weights of four or eight bits on CPU, a kernel that LLVM compiles.

The weights lie in the order of ``tile_order``. The kernel rounds each row in the groups of the
weight, to eight bits or for an exact form to sixteen, and multiplies whole numbers: by the
instructions VNNI (AVX-512 or AVX), by those of AVX2, by the dot products of Arm, or by plain
multiplications. ``tiles_llvm`` has its code and needs the extra ``cpu``.
"""

from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp

from .processor import matrix_extensions
from .product import chunks_of, is_installed, threads
from .tile_order import STEP, TILE

_CHUNK = 1 << 17
"""The weights of a chunk of one row, which take a core a few microseconds."""

_ROWS = 6
"""So many rows more take as long again."""

_KINDS = "avx512_vnni", "avx_vnni", "avx2", "asimddp"
"""Instructions for whole numbers, the fastest first."""


class TiledWeight(Protocol):
    """A weight [out, in], or [X, out, in], in tiles. ``models.quantised_weights`` describes it."""

    @property
    def values(self) -> jax.Array: ...
    @property
    def scales(self) -> jax.Array: ...
    @property
    def offsets(self) -> jax.Array | None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def scheme(self) -> str: ...
    @property
    def bits(self) -> int: ...
    @property
    def group(self) -> int: ...


def fits(group: int) -> bool:
    """Whether the kernel reads weights with groups of so many inputs."""
    return group % STEP == 0 and is_installed()


def instructions() -> str:
    """The kind of instructions with which this processor multiplies whole numbers."""
    return next((kind for kind in _KINDS if kind in matrix_extensions()), "plain")


def product(rows: jax.Array, weight: TiledWeight, number: jax.Array | None = None) -> jax.Array:
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
