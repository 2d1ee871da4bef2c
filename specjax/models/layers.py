"""The parts of a decoder that need no cache: linear maps, norms, activations, embeddings."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from ..errors import RequestError
from ..kernels.cpu import norms as norms_kernel
from ..kernels.cpu import product as product_kernel
from ..kernels.cpu.processor import matrix_extensions
from ..parallel import nodes_are_split, weights_are_split
from . import quantised_products
from .quantised_weights import Quantised

_FEW_ROWS = 64
"""Rows up to which a CPU multiplies faster if it does not pack the weights first."""

_PARTS = (2, 3, 5, 7)
"""Numbers of parts into which the outputs of a product of few rows may be split."""


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
}
"""The activations of feed-forwards."""


@dataclasses.dataclass(frozen=True)
class Norm:
    """A kind of norm.

    Attributes:
      kind: "rms" (Zhang & Sennrich 2019), "layer" (Ba et al. 2016), which has a bias, or "centred",
        a layer norm without a bias.
      eps: the constant under the root.
      offset: the number that is added to the weights; 1 in Gemma.
    """

    kind: str = "rms"
    eps: float = 1e-6
    offset: float = 0.0


def param(value: jax.Array, axes: tuple) -> nnx.Param:
    """A parameter with the logical names of its axes, see ``parallel.RULES``."""
    return nnx.Param(value, axes=axes)


def value_of(param: nnx.Param | None) -> jax.Array | None:
    """The array of a parameter; None for a parameter that the model lacks."""
    return None if param is None else param[...]


def matrix(key: jax.Array, shape: tuple, axes: tuple, dtype, scale: float = 0.02) -> nnx.Param:
    """A random parameter, normal with standard deviation ``scale``."""
    return param(jax.random.normal(key, shape, jnp.float32).astype(dtype) * scale, axes)


def linear(x: jax.Array, weight: jax.Array | Quantised, bias: jax.Array | None = None) -> jax.Array:
    """The product of x [..., in] and weight [out, in], plus the bias; float32 [..., out].

    The product has the weight's dtype and float32 sums. Weights have the layout of Hugging Face:
    XLA for TPU would copy [in, out] weights at entry.
    """
    # Split nodes keep their axis. XLA:CPU has the fast product for matrices only.
    rows = x if nodes_are_split() else x.reshape(-1, x.shape[-1])
    if isinstance(weight, Quantised):
        y = quantised_products.multiply(rows, weight)
    else:
        y = _product(rows.astype(weight.dtype), weight)
    y = y.reshape(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias.astype(jnp.float32)


@jax.custom_vjp
def _product(rows: jax.Array, weight: jax.Array) -> jax.Array:
    if rows.ndim > 2 or len(rows) > _FEW_ROWS:
        return multiply(rows, weight)
    return lax.platform_dependent(rows, weight, cpu=_multiply_few, default=multiply)


def multiply(rows: jax.Array, weight: jax.Array) -> jax.Array:
    """XLA's product of rows [..., in] and weight [out, in]; float32 [..., out]."""
    return jnp.einsum("...i,oi->...o", rows, weight, preferred_element_type=jnp.float32)


def multiply_in_parts(rows: jax.Array, weight: jax.Array) -> jax.Array:
    """The same product of rows [N, in], with outputs in parts if their number has such a divisor.

    XLA:CPU packs the right operand of a product at every call. If the outputs are split into parts,
    and the parts come first in the result, the weights are the left operand, which is read as it
    lies.
    """
    outputs = weight.shape[0]
    parts = next((n for n in _PARTS if outputs % n == 0), 1)
    if parts == 1:
        return multiply(rows, weight)
    split = weight.reshape(parts, outputs // parts, -1)
    y = jnp.einsum("ni,toi->tno", rows, split, preferred_element_type=jnp.float32)
    return jnp.moveaxis(y, 0, 1).reshape(-1, outputs)


def _multiply_few(rows: jax.Array, weight: jax.Array) -> jax.Array:
    """The product of few rows [N, in] on CPU: by the kernel, or in XLA:CPU's fastest form.

    Parts are faster for float32, and for 16-bit products with AMX. Without AMX 16-bit weights are
    packed faster than they are multiplied from the left. Parts would cross the shards of split
    weights.

    XLA:CPU has a fast product of a single float32 row. It has none for a single 16-bit row, and
    would convert all weights to float32. Therefore such a row is doubled.
    """
    if product_kernel.fits(rows, weight):
        return product_kernel.product(rows, weight)
    if len(rows) == 1 and weight.dtype == jnp.float32:
        return multiply(rows, weight)
    doubled = jnp.concatenate([rows, rows]) if len(rows) == 1 else rows
    parts_are_faster = weight.dtype == jnp.float32 or "amx_bf16" in matrix_extensions()
    form = multiply_in_parts if parts_are_faster and not weights_are_split() else multiply
    return form(doubled, weight)[: len(rows)]


def _product_forward(rows, weight):
    return _product(rows, weight), (rows, weight)


def _product_backward(residuals, cotangent):
    """Both gradients, as products in the weight's dtype.

    XLA:CPU has fast 16-bit products for few forms, and converts the operands of other forms to
    float32. If the outputs are split in two, the weight's gradient has a fast form.
    """
    rows, weight = residuals
    cotangent = cotangent.astype(weight.dtype)
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    along_rows = product("...o,oi->...i", cotangent, weight)
    flat, inputs = cotangent.reshape(-1, weight.shape[0]), rows.reshape(-1, weight.shape[1])
    parts = 2 if weight.dtype == jnp.bfloat16 and weight.shape[0] % 2 == 0 else 1
    along_weight = product("nto,ni->toi", flat.reshape(flat.shape[0], parts, -1), inputs).reshape(weight.shape)
    return along_rows.astype(rows.dtype), along_weight.astype(weight.dtype)


_product.defvjp(_product_forward, _product_backward)


def check_division(devices: int, what: str, size: int) -> None:
    """Raises RequestError for ``devices`` that do not divide ``size``, the number of ``what``."""
    if size % devices:
        fits = ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)
        raise RequestError(f"a mesh with model={devices} does not divide the model's {size} {what}; use model={fits}")


def normalize(x: jax.Array, config: Norm, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """The norm of x [..., E] over the last axis, in float32."""
    if config.offset:
        weight = weight.astype(jnp.float32) + config.offset
    normed: Any = _norm(x.astype(jnp.float32), weight, config.eps, config.kind != "rms")
    return normed if bias is None else normed + bias.astype(jnp.float32)


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm over the last axis, in float32 (Zhang & Sennrich 2019)."""
    normed: Any = _norm(x.astype(jnp.float32), weight, eps, False)
    return normed


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _norm(x: jax.Array, weight: jax.Array, eps: float, centred: bool) -> jax.Array:
    """The norm in the fastest form of the platform.

    XLA:GPU computes the root-mean-square norm of several rows in one kernel, and that of a single
    row in two. Therefore a single row gets a second row of zeros on GPU.
    """
    by_xla = functools.partial(_norm_by_xla, eps=eps, centred=centred)

    def of_two(x, weight):
        return by_xla(jnp.pad(x, [(0, 1)] + [(0, 0)] * (x.ndim - 1)), weight)[:1]

    forms = {}
    if norms_kernel.fits(x):
        forms["cpu"] = functools.partial(_norm_by_kernel, eps=eps, centred=centred)
    if x.ndim > 1 and x.size == x.shape[-1] and not centred:
        forms |= {"cuda": of_two, "rocm": of_two}
    return lax.platform_dependent(x, weight, default=by_xla, **forms) if forms else by_xla(x, weight)


def _norm_by_xla(x, weight, eps: float, centred: bool) -> jax.Array:
    x = x - jnp.mean(x, -1, keepdims=True) if centred else x
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight.astype(jnp.float32)


def _norm_by_kernel(x, weight, eps: float, centred: bool) -> jax.Array:
    """The norm by the kernel, whose rows share a weight. Groups and heads have their own."""
    if weight.ndim == 1:
        return norms_kernel.norms(x, weight, eps, centred)
    return norms_kernel.norms(x, jnp.ones(x.shape[-1]), eps, centred) * weight.astype(jnp.float32)


def _norm_forward(x, weight, eps, centred):
    return _norm(x, weight, eps, centred), (x, weight)


def _norm_backward(eps, centred, operands, cotangent):
    return jax.vjp(functools.partial(_norm_by_xla, eps=eps, centred=centred), *operands)[1](cotangent)


_norm.defvjp(_norm_forward, _norm_backward)


@jax.custom_vjp
def lookup(table: jax.Array | Quantised, tokens: jax.Array) -> jax.Array:
    """Rows [..., E] of an embedding [V, E].

    XLA:CPU has no lookup of 16-bit floats, and would convert the whole table to float32. Such
    tables are therefore read as integers there. Integers have no derivative, so the rule below
    gives it.
    """
    if isinstance(table, Quantised):
        return table[tokens].dequantise()
    if table.dtype.itemsize != 2:
        return table[tokens]
    return lax.platform_dependent(table, tokens, cpu=_lookup_as_integers, default=lambda table, tokens: table[tokens])


def _lookup_as_integers(table: jax.Array, tokens: jax.Array) -> jax.Array:
    # The barrier ties the table to the tokens. Without it XLA copies the whole table before a loop
    # of rounds.
    table, tokens = lax.optimization_barrier((table, tokens))
    return lax.bitcast_convert_type(lax.bitcast_convert_type(table, jnp.uint16)[tokens], table.dtype)


def _lookup_forward(table, tokens):
    return lookup(table, tokens), (jnp.zeros_like(table), tokens)


def _lookup_backward(residuals, cotangent):
    zeros, tokens = residuals
    return zeros.at[tokens].add(cotangent), None


lookup.defvjp(_lookup_forward, _lookup_backward)
