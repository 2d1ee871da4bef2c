"""The product of few rows with bfloat16 weights on CPU, a kernel that LLVM compiles.

XLA:CPU packs 16-bit weights at every call, or converts them to float32, and so reads them at half
the speed of the memory. The kernel reads each weight once, as it lies. ``product_llvm`` has its
code and needs the extra ``cpu``; without it ``layers.linear`` uses XLA's products. ``tiles`` has
the kernel for weights of fewer bits.
"""

import functools
import os
from importlib import metadata

import jax
import jax.numpy as jnp

from .processor import matrix_extensions

_LLVMLITE = 0, 50
"""The oldest version of llvmlite that is tested."""

_OUTPUTS, _INPUTS = 4, 32
"""Outputs and inputs are multiples of these numbers, so the kernel needs no code for remainders."""

_PARTS = 16
"""The least number of parts of a product that has parts:

XLA shares nine or more waiting calls among threads.
"""

_SMALLEST_PART = 1 << 15
"""Weights. A smaller part costs more time than a second thread saves."""


@functools.cache
def is_installed() -> bool:
    """Whether llvmlite, which compiles the kernel, is installed and new enough."""
    try:
        version = metadata.version("llvmlite")
    except metadata.PackageNotFoundError:
        return False
    return tuple(map(int, version.split(".")[:2])) >= _LLVMLITE


def fits(rows: jax.Array, weight: jax.Array) -> bool:
    """Whether the kernel computes the product with this weight, and faster than XLA does.

    Dot products of bfloat16 (AVX-512) make it faster for up to 64 rows. Without them, or where XLA
    uses AMX, it is faster for few rows only. XLA cannot split a kernel over devices, so a mesh of
    several devices has none.
    """
    outputs, inputs = weight.shape[-2:]
    most = 64 if _has_dot() and "amx_bf16" not in matrix_extensions() else 8
    return (
        weight.dtype == jnp.bfloat16
        and len(rows) <= most
        and outputs % _OUTPUTS == inputs % _INPUTS == 0
        and jax.sharding.get_abstract_mesh().size <= 1
        and is_installed()
    )


def product(rows: jax.Array, weight: jax.Array, number: jax.Array | None = None) -> jax.Array:
    """The product of rows [N, in] and weight [out, in]; float32 [N, out].

    The order of the summands does not depend on the number of rows. The outputs are computed in
    parts, which XLA shares among its threads.

    Args:
      rows: bfloat16.
      weight: bfloat16.
      number: the matrix to multiply with, of a weight [X, out, in], int32. XLA would copy the
        matrix.
    """
    from . import llvm, product_llvm  # need llvmlite

    outputs, inputs = weight.shape[-2:]
    dot = _has_dot()
    operands = [rows if dot else rows.astype(jnp.float32), weight, *([] if number is None else [number])]
    name = llvm.register(product_llvm.product, len(rows), dot, number is not None)
    bounds = [_OUTPUTS * bound for bound in parts_of(outputs // _OUTPUTS, outputs * inputs)]

    def part(first: int, end: int) -> jax.Array:
        result = jax.ShapeDtypeStruct((len(rows), end - first), jnp.float32)
        return jax.ffi.ffi_call(name, result, vmap_method="sequential")(*operands, first=first)

    return jnp.concatenate([part(*ends) for ends in zip(bounds, bounds[1:])], 1)


def parts_of(blocks: int, weights: int) -> list[int]:
    """The bounds of the parts into which a product is split: numbers of blocks of outputs.

    ``weights``: the weights of the product.
    """
    parts = min(max(_PARTS, 2 * threads()), weights // _SMALLEST_PART, blocks)
    parts = parts if threads() > 1 and parts >= _PARTS else 1
    return [blocks * i // parts for i in range(parts + 1)]


def _has_dot() -> bool:
    """Whether the processor multiplies 32 pairs of bfloat16 numbers at once (VDPBF16PS)."""
    return "avx512_bf16" in matrix_extensions()


def threads() -> int:
    """The threads among which XLA shares its work."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
