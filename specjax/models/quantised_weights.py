"""Weights of fewer bits: a weight [out, in] as small numbers times scales.

``layers.linear`` and ``layers.lookup`` read such weights. Latent attention widens its own, and the
experts of a layer are one weight [X, out, in], of which ``linear`` reads one matrix at a time. No
other part of a model knows them.

    w[o, i] = s[o, g] * q[o, i] + m[o, g]

g is the group of input i. The offsets m are zero in most weights. ``quantised_products`` multiplies
such weights, and ``rounding`` makes them.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ..kernels.cpu import tile_order

SCHEMES = ("int8", "int4", "fp8", "int8:exact", "int4:exact")
"""The names of the forms.

A CPU also rounds the activations, with int8 and int4 to eight bits. With the exact forms it rounds
them to sixteen, which is finer than bfloat16.
"""

GROUP = 32
"""Consecutive inputs that share a scale in int8 and int4, unless a checkpoint has other groups."""


class Quantised(struct.PyTreeNode):
    """A quantised weight [out, in], or the weights [X, out, in] of experts.

    Attributes:
      values: int8 or float8_e4m3fn [..., out, in]; of four bits uint8 [..., out, in / 2], see
        ``pack``. All arrays may lie in tiles, see ``kernels.cpu.tile_order``.
      scales: float32 [..., out, G] for G groups of inputs. A single group has the scale of a row.
      scheme: one of ``SCHEMES``.
      dtype: the dtype of the activations that the weight multiplies.
      offsets: float32 as ``scales``; None where they are zero.
      outputs: the number of outputs, if the weight lies in tiles; None if it lies in rows.
    """

    values: jax.Array
    scales: jax.Array
    scheme: str = struct.field(pytree_node=False)
    dtype: jnp.dtype = struct.field(pytree_node=False)
    offsets: jax.Array | None = None
    outputs: int | None = struct.field(pytree_node=False, default=None)

    @property
    def bits(self) -> int:
        return bits(self.scheme, self.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        *rows, size = self.values.shape
        inputs = 2 * size if self.bits == 4 else size
        return (*rows, inputs) if self.outputs is None else (*rows[:-1], self.outputs, inputs // tile_order.TILE)

    @property
    def group(self) -> int:
        """The inputs of a group."""
        of_tile = 1 if self.outputs is None else tile_order.TILE
        return self.shape[-1] * of_tile // self.scales.shape[-1]

    @property
    def ndim(self) -> int:
        return self.values.ndim

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in jax.tree.leaves(self))

    def __getitem__(self, rows) -> "Quantised":
        """These rows of the weight, or this expert's weight."""
        if rows is Ellipsis:
            return self
        if self.outputs is None or self.ndim > 2:
            return self._each(lambda array, _: array[rows])
        return self._each(lambda array, size: tile_order.rows_of(array, rows, size), outputs=None)

    def in_rows(self) -> "Quantised":
        """The same weight, out of tiles."""
        if self.outputs is None:
            return self
        return self._each(
            lambda array, size: tile_order.out_of_tiles(array, size)[..., : self.outputs, :], outputs=None
        )

    def _each(self, change, **changes) -> "Quantised":
        """The weight after ``change(array, numbers that lie together in a tile)`` of each array."""
        offsets = None if self.offsets is None else change(self.offsets, 1)
        return self.replace(
            values=change(self.values, tile_order.QUAD), scales=change(self.scales, 1), offsets=offsets, **changes
        )

    def numbers(self) -> jax.Array:
        """The numbers q [..., in]: int8, int4, with offsets uint4, or float8_e4m3fn."""
        if self.bits != 4:
            return self.values
        return unpack(self.values, self.group, jnp.int4 if self.offsets is None else jnp.uint4)

    def dequantise(self) -> jax.Array:
        """The weight in ``dtype``, rounded."""
        return self.astype(self.dtype)

    def astype(self, dtype) -> jax.Array:
        """The weight as an array of another dtype."""
        weight = self.in_rows()
        q = weight.numbers().astype(jnp.float32)
        grouped = q.reshape(*weight.scales.shape, -1) * weight.scales[..., None]
        grouped = grouped if weight.offsets is None else grouped + weight.offsets[..., None]
        return grouped.reshape(weight.shape).astype(dtype)

    def in_tiles(self) -> "Quantised":
        """The same weight in the order of ``tile_order``, with its largest group or less."""
        group = tile_order.group_within(self.group)
        repeated = lambda array: jnp.repeat(array, self.group // group, -1)
        weight = self.replace(
            values=self.values if self.bits == 8 else pack(self.numbers(), group),
            scales=repeated(self.scales),
            offsets=None if self.offsets is None else repeated(self.offsets),
        )
        return weight._each(tile_order.in_tiles, outputs=self.shape[-2])


def pack(q: jax.Array, group: int) -> jax.Array:
    """Numbers [..., in] of four bits, from -8 to 7 or from 0 to 15, as uint8 [..., in / 2].

    Of a group's first and second half, each byte holds a number: below and above.
    """
    numbers = (q.astype(jnp.int32) & 15).astype(jnp.uint8).reshape(*q.shape[:-1], -1, 2, group // 2)
    return (numbers[..., 0, :] | numbers[..., 1, :] << 4).reshape(*q.shape[:-1], -1)


def unpack(packed: jax.Array, group: int, dtype) -> jax.Array:
    """The numbers [..., in] that ``pack`` packs, int4 or uint4."""
    halves = lax.bitcast_convert_type(packed.reshape(*packed.shape[:-1], -1, group // 2), dtype)
    return jnp.moveaxis(halves, -1, -2).reshape(*packed.shape[:-1], -1)


def bits(scheme: str | None, dtype) -> int:
    """The bits of a number in a form of ``SCHEMES``, or without a form in ``dtype``."""
    form = (scheme or "").partition(":")[0]
    return {"int8": 8, "fp8": 8, "int4": 4}.get(form, 8 * jnp.dtype(dtype).itemsize)


def scheme_of(module) -> str | None:
    """The form of a module's weights, or of any pytree's; None for full weights.

    Forms of four bits go before others.
    """

    def is_weight(leaf):
        return isinstance(leaf, Quantised)

    schemes = {leaf.scheme for leaf in jax.tree.leaves(module, is_leaf=is_weight) if is_weight(leaf)}
    return min(schemes, key=lambda scheme: (bits(scheme, None), scheme), default=None)
