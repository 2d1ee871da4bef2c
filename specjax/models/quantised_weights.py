"""Weights of fewer bits: a weight [out, in] as small numbers times scales.

``layers.linear`` and ``layers.lookup`` read such weights. Latent attention widens its own, and the
experts of a layer are one weight [X, out, in], of which ``linear`` reads one matrix at a time. No
other part of a model knows them. Activations keep their dtype, and sums are float32. These sums
define the quantised model: a method that drafts with it, and plain decoding, compute the same ones.

    int8    y[o] = s[o] * sum over i of x[i] q[o, i],  q from -127 to 127
    fp8     the same with q in float8_e4m3fn
    int4    y[o] = sum over groups g of s[o, g] * sum over i in g of x[i] q[o, i],  q from -8 to 7
"""

import functools
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jax import lax

from ..errors import RequestError
from ..kernels.cpu import product as product_kernel

M = TypeVar("M", bound=nnx.Module)

SCHEMES = ("int8", "int4", "fp8")
"""The names of the forms."""

GROUP = 128
"""Consecutive inputs that share a scale in int4."""

_HALF = 32
"""Of 64 consecutive int4 numbers, byte i holds number i (lower half) and i + 32 (upper half)."""

_CLIPS = 16
_SMALLEST_CLIP = 0.6
"""int4 tries scales that clip the largest numbers of a group down to this fraction.

It keeps the best scale.
"""


class Quantised(struct.PyTreeNode):
    """A quantised weight [out, in], or the weights [X, out, in] of experts.

    Attributes:
      values: int8 or float8_e4m3fn [..., out, in]; for int4 uint8 [..., out, in / 2], two numbers
        in a byte.
      scales: float32 [..., out, 1], for int4 [..., out, in / 128].
      scheme: one of ``SCHEMES``.
      dtype: the dtype of the activations that the weight multiplies.
    """

    values: jax.Array
    scales: jax.Array
    scheme: str = struct.field(pytree_node=False)
    dtype: jnp.dtype = struct.field(pytree_node=False)

    @property
    def shape(self) -> tuple[int, ...]:
        *rows, inputs = self.values.shape
        return (*rows, 2 * inputs if self.scheme == "int4" else inputs)

    @property
    def ndim(self) -> int:
        return self.values.ndim

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes

    def __getitem__(self, rows) -> "Quantised":
        """These rows of the weight, or this expert's weight."""
        return self if rows is Ellipsis else self.replace(values=self.values[rows], scales=self.scales[rows])

    def numbers(self) -> jax.Array:
        """The numbers q [..., in]: int8, int4 or float8_e4m3fn."""
        if self.scheme != "int4":
            return self.values
        blocks = self.values.reshape(*self.values.shape[:-1], -1, _HALF)
        return jnp.moveaxis(lax.bitcast_convert_type(blocks, jnp.int4), -1, -2).reshape(self.shape)

    def dequantise(self) -> jax.Array:
        """The weight in ``dtype``, rounded."""
        return self.astype(self.dtype)

    def astype(self, dtype) -> jax.Array:
        """The weight as an array of another dtype."""
        q = self.numbers().astype(jnp.float32)
        grouped = q.reshape(*self.scales.shape, -1) * self.scales[..., None]
        return grouped.reshape(self.shape).astype(dtype)


@functools.partial(jax.jit, static_argnames="scheme")
def quantise(weight: jax.Array, scheme: str) -> Quantised:
    """The weight [..., out, in] in another form, each number rounded to the nearest.

    The scales are those of the largest number of a row, or of a group of 128 inputs. int4 also
    tries smaller scales, and keeps the one with the least squared error.
    """
    w = weight.astype(jnp.float32)
    if scheme == "int4":
        return _quantise_groups(w, weight.dtype)
    most = 127.0 if scheme == "int8" else float(jnp.finfo(jnp.float8_e4m3fn).max)
    largest = jnp.abs(w).max(-1, keepdims=True)
    scales = jnp.where(largest == 0, 1, largest) / most
    q = jnp.round(w / scales).astype(jnp.int8) if scheme == "int8" else (w / scales).astype(jnp.float8_e4m3fn)
    return Quantised(q, scales, scheme, weight.dtype)


def _quantise_groups(w: jax.Array, dtype) -> Quantised:
    groups = w.reshape(*w.shape[:-1], -1, GROUP)
    largest = jnp.take_along_axis(groups, jnp.abs(groups).argmax(-1, keepdims=True), -1)
    largest = jnp.where(largest == 0, 1, largest)
    rounded = lambda scales: jnp.clip(jnp.round(groups / scales), -8, 7)
    error = lambda scales: jnp.square(rounded(scales) * scales - groups).sum(-1, keepdims=True)

    def better(i, best):
        scales = largest / -8 * (1 - (1 - _SMALLEST_CLIP) * i / _CLIPS)  # the largest number becomes -8
        return jnp.where(error(scales) < error(best), scales, best)

    scales = lax.fori_loop(1, _CLIPS + 1, better, largest / -8)
    return Quantised(pack(rounded(scales).reshape(w.shape)), scales[..., 0], "int4", dtype)


def pack(q: jax.Array) -> jax.Array:
    """Numbers [..., in] from -8 to 7 as uint8 [..., in / 2], see ``_HALF``."""
    blocks = (q.astype(jnp.int32) & 15).astype(jnp.uint8).reshape(*q.shape[:-1], -1, 2, _HALF)
    return (blocks[..., 0, :] | blocks[..., 1, :] << 4).reshape(*q.shape[:-1], -1)


def bits(scheme: str | None, dtype) -> int:
    """The bits of a number in a form of ``SCHEMES``, or without a form in ``dtype``."""
    return {"int8": 8, "fp8": 8, "int4": 4}.get(scheme or "", 8 * jnp.dtype(dtype).itemsize)


def quantise_parameter(name: str, param: nnx.Param, value: jax.Array | Quantised, scheme: str) -> jax.Array | Quantised:
    """The value of a parameter in a form of ``SCHEMES``.

    Parameters other than matrices of several rows keep their value. Tables of embeddings and output
    matrices have at least eight bits. Routers keep their numbers, because rounding could change the
    choice of experts. Raises RequestError, which names the parameter, for inputs that groups of 128
    do not divide.
    """
    if not is_quantisable(param):
        return value
    value = value.dequantise() if isinstance(value, Quantised) else value
    scheme = "int8" if scheme == "int4" and param.axes[0] in ("table", "vocab") else scheme
    if scheme == "int4" and value.shape[-1] % GROUP:
        raise RequestError(f"int4 has groups of {GROUP} inputs, and {name} has {value.shape[-1]}; use int8")
    return quantise(value, scheme)


def is_quantisable(param: nnx.Param) -> bool:
    """Whether a quantised module has another form of the parameter.

    Matrices of rows or experts have another form. Routers have none.
    """
    is_matrix = len(param.axes) == 2 and param.shape[0] > 1
    holds_experts = len(param.axes) == 3 and param.axes[0] is None
    return (is_matrix or holds_experts) and param.axes[0] != "choice"


def quantise_module(module: M, scheme: str) -> M:
    """The module with its matrices in another form, see ``quantise_parameter``."""
    graph, params = nnx.split(module)
    quantised = [
        (path, param.replace(quantise_parameter(".".join(map(str, path)), param, param[...], scheme)))
        for path, param in nnx.to_flat_state(params)
    ]
    return nnx.merge(graph, nnx.from_flat_state(quantised))


def scheme_of(module) -> str | None:
    """The form of a module's weights, or of any pytree's; None for full weights.

    int4 goes before others.
    """

    def is_weight(leaf):
        return isinstance(leaf, Quantised)

    schemes = {leaf.scheme for leaf in jax.tree.leaves(module, is_leaf=is_weight) if is_weight(leaf)}
    return "int4" if "int4" in schemes else next(iter(schemes), None)


def multiply(rows: jax.Array, weight: Quantised) -> jax.Array:
    """The product of rows [..., in] and a quantised weight; float32 [..., out]."""
    if rows.ndim > 2 or not product_kernel.fits(rows, weight, weight.scheme):
        return _multiply_by_xla(rows, weight)
    return lax.platform_dependent(rows, weight, cpu=_multiply_by_kernel, default=_multiply_by_xla)


def _multiply_by_xla(rows: jax.Array, weight: Quantised) -> jax.Array:
    if weight.scheme == "int8" and rows.size == rows.shape[-1]:
        return lax.platform_dependent(rows, weight, cuda=_multiply_one_row, default=_multiply_matrices)
    return _multiply_matrices(rows, weight)


def _multiply_one_row(rows: jax.Array, weight: Quantised) -> jax.Array:
    """The product of a single row on a GPU.

    There XLA's sum reads weights of int8 faster than XLA's product does.
    """
    row = lax.optimization_barrier(rows).astype(jnp.float32)  # else each sum would compute the row anew
    sums = (weight.values.astype(jnp.float32) * row.reshape(-1)).sum(-1) * weight.scales[:, 0]
    return sums.reshape(*rows.shape[:-1], -1)


def _multiply_matrices(rows: jax.Array, weight: Quantised) -> jax.Array:
    q = weight.numbers().astype(weight.dtype)  # exact, also in bfloat16
    if weight.scheme != "int4":
        return jnp.einsum("...i,oi->...o", rows, q, preferred_element_type=jnp.float32) * weight.scales[:, 0]
    split = lambda x: x.reshape(*x.shape[:-1], -1, GROUP)
    sums = jnp.einsum("...gi,ogi->...og", split(rows), split(q), preferred_element_type=jnp.float32)
    return (sums * weight.scales).sum(-1)


def _multiply_by_kernel(rows: jax.Array, weight: Quantised) -> jax.Array:
    if weight.scheme == "int4":
        return product_kernel.product(rows, weight.values, "int4", scales=weight.scales)
    return product_kernel.product(rows, weight.values, "int8") * weight.scales[:, 0]
