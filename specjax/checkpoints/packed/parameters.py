"""Reads a parameter from the tensors of a checkpoint, in parts that need little memory.

Tensors become float32 when they are read, and rounding needs several such copies. So a large
parameter is read some rows at a time, and each part gets its form in memory before the next.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ...kernels.cpu.tile_order import TILE
from ...models.offload import HOST
from ...models.quantised_products import in_kernel_order
from ...models.quantised_weights import Quantised, pack
from ...models.rounding import is_quantisable, quantise_parameter
from ..blocks import Block
from ..placement import Placement
from ..shape_check import cast
from .stored import Stored, in_one_form
from .words import Packed

_PART = 1 << 20
"""Numbers of a part."""


class Source(NamedTuple):
    """Where a parameter comes from.

    Attributes:
      name: its name, for messages.
      param: holds its shape and dtype instead of an array.
      tensors: the tensors of the checkpoint, see ``tensors.open_tensors``.
      blocks: its rows in them. A parameter without blocks becomes zeros.
      where: the checkpoint, for messages.
    """

    name: str
    param: nnx.Param
    tensors: Mapping[str, Any]
    blocks: list[Block]
    where: Any

    def rows(self, first: int, last: int) -> "Source":
        """The rows from ``first`` to before ``last``."""
        blocks = []
        at = 0
        for block in self.blocks:
            low, high = max(first - at, 0), min(last - at, block.size)
            if low < high:
                blocks.append(block.part(low, high))
            at += block.size
        return self.with_shape((last - first, *self.param.shape[1:]))._replace(blocks=blocks)

    def with_shape(self, shape: tuple[int, ...], dtype=None) -> "Source":
        """The source with a parameter of another shape and perhaps another dtype."""
        like: Any = jax.ShapeDtypeStruct(shape, dtype or self.param.dtype)
        return self._replace(param=self.param.replace(like))


def read_parameter(source: Source, placement: Placement, on_host: bool) -> jax.Array | Quantised:
    """The parameter, quantised or with the numbers of a packed checkpoint as ``placement`` says.

    ``on_host``: whether an array goes to the host's memory. A quantised weight stays on the device.
    """
    scheme = None if placement.keeps_numbers else placement.quantize
    stored = None if scheme else _stored(source, placement)
    if not stored and not (scheme and is_quantisable(source.param)):
        sharding = placement.sharding(source.param)
        value = _read(source, sharding.with_memory_kind(HOST) if on_host and not scheme else sharding)
        return quantise_parameter(source.name, source.param, value, scheme) if scheme else value

    def read(part: Source) -> Any:
        if not scheme:
            return _read_stored(part._replace(tensors=stored or {}), placement)
        value = _read(part, placement.sharding(part.param))
        return quantise_parameter(part.name, part.param, value, scheme)

    if placement.mesh is not None or math.prod(source.param.shape) <= _PART:
        return read(source)
    count = source.param.shape[0]
    parts = -(-math.prod(source.param.shape) // _PART)  # equal ones, which share a program
    size = -(-count // parts // TILE) * TILE if len(source.param.shape) == 2 else 1
    parts = [read(source.rows(first, min(first + size, count))) for first in range(0, count, size)]
    outputs = None if parts[0].outputs is None else source.param.shape[-2]
    same = [part.replace(outputs=outputs) for part in parts]
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *same)


def _read(source: Source, sharding: jax.sharding.Sharding) -> jax.Array:
    """The parameter as an array. Each device reads its own rows and columns."""
    shape, dtype = source.param.shape, source.param.dtype

    def part(index) -> np.ndarray:
        first, last, _ = index[0].indices(shape[0])
        rest = tuple(index[1:])
        widths = [len(range(*each.indices(size))) for each, size in zip(rest, shape[1:])]
        values = np.zeros((last - first, *widths), dtype)
        at = 0
        for block in source.rows(first, last).blocks:
            step = max(1, _PART // max(1, math.prod(widths)))
            for low in range(0, block.size, step):
                rows = block.part(low, min(low + step, block.size)).read(source.tensors[block.name], rest)
                values[at : at + len(rows)] = cast(rows, dtype, block.name, source.where)
                at += len(rows)
        return values

    if isinstance(sharding, jax.sharding.SingleDeviceSharding):  # make_array_from_callback would forget its memory kind
        return jax.device_put(part((slice(None),) * len(shape)), sharding)
    return jax.make_array_from_callback(shape, sharding, part)


def _stored(source: Source, placement: Placement) -> dict[str, Stored] | None:
    """By name the packed tensors of a parameter that keeps their numbers; None if it is unpacked.

    Without ``quantize`` the tensors of a GGUF file are unpacked.
    """
    names = list(dict.fromkeys(block.name for block in source.blocks))
    tensors = [source.tensors[name] for name in names]
    packed = [tensor for tensor in tensors if placement.keeps_numbers or isinstance(tensor, Packed)]
    weights = in_one_form([getattr(tensor, "stored", None) for tensor in packed]) if len(packed) == len(names) else None
    usable = weights and is_quantisable(source.param) and not any(block.transposed for block in source.blocks)
    return dict(zip(names, weights)) if weights and usable else None


def _read_stored(source: Source, placement: Placement) -> Quantised:
    """The parameter with the numbers and scales of its rows, whose tensors are ``Stored``."""
    first = next(iter(source.tensors.values()))

    def read(name: str, dtype) -> jax.Array:
        parts = {tensor: getattr(weight, name) for tensor, weight in source.tensors.items()}
        width = next(iter(parts.values())).get_shape()[-1]
        like = source.with_shape((*source.param.shape[:-1], width), dtype)._replace(tensors=parts)
        return _read(like, placement.sharding(like.param))

    numbers = read("numbers", jnp.float8_e4m3fn if first.scheme == "fp8" else jnp.int8)
    offsets = None if first.offsets is None else read("offsets", jnp.float32)
    if first.scheme == "int4":
        numbers = jax.jit(pack, static_argnums=1)(numbers, first.group)
    exact = first.exact if placement.quantize is None else placement.quantize != "stored"
    scheme = f"{first.scheme}:exact" if exact and first.scheme != "fp8" else first.scheme
    return in_kernel_order(Quantised(numbers, read("scales", jnp.float32), scheme, source.param.dtype, offsets))
