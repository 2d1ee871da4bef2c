"""Products of rows with weights of fewer bits: by a kernel for CPUs or for GPUs, or by XLA.

Sums are float32. These sums define the quantised model: a method that drafts with it, and plain
decoding, compute the same ones. The kernel for CPUs, ``kernels.cpu.tiles``, rounds each row in the
groups of the weight, with int8 and int4 to eight bits, with their exact forms to sixteen. The
kernel for GPUs, ``kernels.gpu.packed_product``, and XLA's products have the floats of the rows.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from ..kernels.cpu import tiles
from ..kernels.gpu import cache_write, packed_product
from .quantised_weights import Quantised


def in_kernel_order(weight: Quantised) -> Quantised:
    """The weight in tiles, if it lies on a single CPU and the kernel reads it; else as it is."""
    array = weight.values
    is_here = isinstance(array, jax.Array) and not isinstance(array, Tracer)
    on_one_cpu = is_here and [device.platform for device in array.devices()] == ["cpu"]
    fits = weight.scheme != "fp8" and tiles.fits(weight.group)
    return jax.jit(Quantised.in_tiles)(weight) if on_one_cpu and fits and weight.outputs is None else weight


def multiply(rows: jax.Array, weight: Quantised, number: jax.Array | None = None) -> jax.Array:
    """The product of rows [..., in] and a quantised weight; float32 [..., out].

    ``number``: the matrix to multiply with, of a weight [X, out, in], int32.
    """
    given = (rows, weight) if number is None else (rows, weight, number)
    return lax.platform_dependent(*given, **_kernels(rows, weight), default=_multiply_by_xla)


def _kernels(rows: jax.Array, weight: Quantised) -> dict[str, Callable]:
    """The kernels that take these rows and this weight, by their platforms."""
    if rows.ndim > 2 or jax.sharding.get_abstract_mesh().size > 1:
        return {}
    if weight.outputs is not None:
        return {"cpu": tiles.product}
    return {"cuda": packed_product.product} if cache_write.are_usable() and packed_product.fits(rows, weight) else {}


def _multiply_by_xla(rows: jax.Array, weight: Quantised, number: jax.Array | None = None) -> jax.Array:
    weight = (weight if number is None else weight[number]).in_rows()
    rows = rows.astype(weight.dtype)
    forms: dict[str, Callable] = {"tpu": _multiply_on_tpu}
    if weight.scheme.startswith("int8") and rows.size == rows.shape[-1]:
        forms["cuda"] = _sum_one_row
    return lax.platform_dependent(rows, weight, **forms, default=_multiply_matrices)


def _multiply_on_tpu(rows: jax.Array, weight: Quantised) -> jax.Array:
    """The product in the forms whose weights XLA for TPU reads packed.

    It would write the weights to memory as float32 for a single row, which therefore gets a second
    row of zeros, and bytes of two numbers twice, unless both halves are axes of their own.
    """
    form = _multiply_halves if weight.bits == 4 else _multiply_matrices
    if rows.size > rows.shape[-1]:
        return form(rows, weight)
    two = jnp.pad(rows.reshape(1, -1), [(0, 1), (0, 0)])
    return form(two, weight)[:1].reshape(*rows.shape[:-1], -1)


def _multiply_halves(rows: jax.Array, weight: Quantised) -> jax.Array:
    """The product with numbers of four bits [out, G, 2, in / 2 G], below and above in a byte."""
    byte = lax.bitcast_convert_type(weight.values, jnp.int8 if weight.offsets is None else jnp.uint8)
    shifts = jnp.array([[4], [0]], byte.dtype)
    q = ((byte.reshape(*weight.scales.shape, 1, -1) << shifts) >> 4).astype(weight.dtype)
    split = rows.reshape(*rows.shape[:-1], *q.shape[1:])
    sums = jnp.einsum("...ghi,oghi->...og", split, q, preferred_element_type=jnp.float32)
    return _scaled(sums, rows, weight)


def _sum_one_row(rows: jax.Array, weight: Quantised) -> jax.Array:
    """The product of a single row on a GPU.

    There XLA's sum reads weights of int8 faster than XLA's product does.
    """
    row = lax.optimization_barrier(rows).astype(jnp.float32)  # else each sum would compute the row anew
    return (weight.astype(jnp.float32) * row.reshape(-1)).sum(-1).reshape(*rows.shape[:-1], -1)


def _multiply_matrices(rows: jax.Array, weight: Quantised) -> jax.Array:
    q = weight.numbers().astype(weight.dtype)  # exact, also in bfloat16
    if weight.scales.shape[-1] == 1 and weight.offsets is None:
        return jnp.einsum("...i,oi->...o", rows, q, preferred_element_type=jnp.float32) * weight.scales[:, 0]
    sums = jnp.einsum("...gi,ogi->...og", _split(rows, weight), _split(q, weight), preferred_element_type=jnp.float32)
    return _scaled(sums, rows, weight)


def _split(x: jax.Array, weight: Quantised) -> jax.Array:
    """The last axis in groups [..., G, inputs]."""
    return x.reshape(*x.shape[:-1], -1, weight.group)


def _scaled(sums: jax.Array, rows: jax.Array, weight: Quantised) -> jax.Array:
    """The product [..., out] that sums of numbers [..., out, G] become by scales and offsets."""
    product = (sums * weight.scales).sum(-1)
    if weight.offsets is None:
        return product
    return product + jnp.einsum("...g,og->...o", _split(rows.astype(jnp.float32), weight).sum(-1), weight.offsets)
