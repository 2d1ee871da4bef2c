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

_CHUNK = 1 << 18
"""Bytes of weights. A core reads a chunk in some ten microseconds."""


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

    The order of the summands does not depend on the number of rows.

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
    name = llvm.register(product_llvm.product, len(rows), threads() - 1, dot, number is not None)
    result = jax.ShapeDtypeStruct((len(rows), outputs), jnp.float32)
    chunks = chunks_of(outputs // product_llvm.BLOCK, outputs * inputs * 2, _CHUNK)
    return jax.ffi.ffi_call(name, result, vmap_method="sequential")(*operands, chunks=chunks)


def chunks_of(units: int, work: float, size: int) -> int:
    """The number of chunks in which threads share a product: parts of its units of outputs.

    Args:
      work: the work of the product.
      size: the work of a chunk.
    """
    return max(1, min(units, int(work / size))) if threads() > 1 else 1


def _has_dot() -> bool:
    """Whether the processor multiplies 32 pairs of bfloat16 numbers at once (VDPBF16PS)."""
    return "avx512_bf16" in matrix_extensions()


def threads() -> int:
    """The threads among which XLA shares its work."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
