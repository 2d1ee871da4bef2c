"""Rounds the matrices of a model to fewer bits, see ``quantised_weights``."""

import functools
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from ..errors import RequestError
from .quantised_products import in_kernel_order
from .quantised_weights import GROUP, Quantised, bits, pack

M = TypeVar("M", bound=nnx.Module)

_CLIPS = 16
_SMALLEST_CLIP = 0.6
"""int4 tries scales that clip the largest numbers of a group down to this fraction.

It keeps the best scale.
"""


@functools.partial(jax.jit, static_argnames=("scheme", "offset"))
def quantise(weight: jax.Array, scheme: str, offset: bool = False) -> Quantised:
    """The weight [..., out, in] in another form, each number rounded to the nearest.

    The scales are those of the largest number of a group, for fp8 of a row. int4 also tries
    smaller scales, and keeps the one with the least squared error.

    offset: whether int4 has the least number of a group as its offset, and the largest as 15.
    """
    w = weight.astype(jnp.float32)
    if bits(scheme, None) == 4:
        return (_quantise_between if offset else _quantise_four)(w, scheme, weight.dtype)
    most = 127.0 if scheme != "fp8" else float(jnp.finfo(jnp.float8_e4m3fn).max)
    groups = w.reshape(*w.shape[:-1], -1, w.shape[-1] if scheme == "fp8" else group_of(w.shape[-1]))
    largest = jnp.abs(groups).max(-1, keepdims=True)
    scales = jnp.where(largest == 0, 1, largest) / most
    q = (groups / scales).astype(jnp.float8_e4m3fn) if scheme == "fp8" else jnp.round(groups / scales).astype(jnp.int8)
    return Quantised(q.reshape(w.shape), scales[..., 0], scheme, weight.dtype)


def _quantise_four(w: jax.Array, scheme: str, dtype) -> Quantised:
    group = group_of(w.shape[-1])
    groups = w.reshape(*w.shape[:-1], -1, group)
    largest = jnp.take_along_axis(groups, jnp.abs(groups).argmax(-1, keepdims=True), -1)
    largest = jnp.where(largest == 0, 1, largest)
    rounded = lambda scales: jnp.clip(jnp.round(groups / scales), -8, 7)
    error = lambda scales: jnp.square(rounded(scales) * scales - groups).sum(-1, keepdims=True)

    def better(i, best):
        scales = largest / -8 * (1 - (1 - _SMALLEST_CLIP) * i / _CLIPS)  # the largest number becomes -8
        return jnp.where(error(scales) < error(best), scales, best)

    scales = lax.fori_loop(1, _CLIPS + 1, better, largest / -8)
    return Quantised(pack(rounded(scales).reshape(w.shape), group), scales[..., 0], scheme, dtype)


def _quantise_between(w: jax.Array, scheme: str, dtype) -> Quantised:
    group = group_of(w.shape[-1])
    groups = w.reshape(*w.shape[:-1], -1, group)
    least, largest = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    scales = jnp.where(largest == least, 1, largest - least) / 15
    q = jnp.round((groups - least) / scales).reshape(w.shape)
    return Quantised(pack(q, group), scales[..., 0], scheme, dtype, least[..., 0])


def group_of(inputs: int) -> int:
    """The inputs of a group: 32, or the best smaller number that divides ``inputs``.

    Multiples of eight, which the kernel of ``kernels.cpu.tiles`` reads, go before others, and even
    numbers before odd ones.
    """
    divisors = [size for size in range(1, GROUP + 1) if inputs % size == 0]
    return max(divisors, key=lambda size: (size % 8 == 0, size % 2 == 0, size))


def quantise_parameter(
    name: str, param: nnx.Param, value: jax.Array | Quantised, scheme: str, offset: bool = False
) -> jax.Array | Quantised:
    """The value of a parameter in a form of ``SCHEMES``; ``offset``: see ``quantise``.

    Parameters other than matrices of several rows keep their value. Tables of embeddings and output
    matrices have at least eight bits. Routers keep their numbers, because rounding could change the
    choice of experts. Raises RequestError, which names the parameter, for an odd number of inputs,
    which four bits do not fill bytes with.
    """
    if not is_quantisable(param):
        return value
    value = value.dequantise() if isinstance(value, Quantised) else value
    scheme = scheme.replace("4", "8") if param.axes[0] in ("table", "vocab") else scheme
    if bits(scheme, None) == 4 and value.shape[-1] % 2:
        raise RequestError(f"int4 has two inputs in a byte, and {name} has {value.shape[-1]} inputs; use int8")
    return in_kernel_order(quantise(value, scheme, offset))


def is_quantisable(param: nnx.Param) -> bool:
    """Whether a quantised module has another form of the parameter.

    Matrices of rows or experts have another form. Routers have none.
    """
    is_matrix = len(param.axes) == 2 and param.shape[0] > 1
    holds_experts = len(param.axes) == 3 and param.axes[0] is None
    return (is_matrix or holds_experts) and param.axes[0] != "choice"


def quantise_module(module: M, scheme: str, offset: bool = False) -> M:
    """The module with its matrices in another form, see ``quantise_parameter``."""
    graph, params = nnx.split(module)
    quantised = [
        (path, param.replace(quantise_parameter(".".join(map(str, path)), param, param[...], scheme, offset)))
        for path, param in nnx.to_flat_state(params)
    ]
    return nnx.merge(graph, nnx.from_flat_state(quantised))
