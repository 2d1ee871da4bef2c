"""The product of few rows with weights of four or eight bits in a GPU kernel.

A program has a tile of outputs and a share of the inputs. It reads the numbers as they are stored,
widens those of a group in registers, multiplies them by tensor cores, and adds the sum times the
group's scale. XLA would write the sums of all groups to memory, and of four bits the widened
weights, too.

The order of the summands does not depend on the number of rows. Two warps of a program share its
outputs: from four warps on, Triton would choose other instructions for larger tiles.
"""

import functools
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax

_MOST_ROWS = 64
"""More rows than this are a prompt."""
_TILE, _TILE_OF_MANY, _FEW_ROWS = 32, 64, 16
"""Outputs of a program, for up to ``_FEW_ROWS`` rows and for more."""
_BYTES = 128
"""Bytes of an output that a program reads at once, a line of the cache."""
_LEAST = 16
"""The least numbers of an output that tensor cores multiply at once."""
_PROGRAMS = 512
"""Programs that fill a GPU. Where outputs make fewer, several programs share their inputs."""
_WARPS, _STAGES = 2, 3
"""Warps of a program, and reads of weights that it begins ahead."""


class PackedWeight(Protocol):
    """A weight [out, in], or [X, out, in], in rows. ``models.quantised_weights`` describes it."""

    @property
    def values(self) -> jax.Array: ...
    @property
    def scales(self) -> jax.Array: ...
    @property
    def offsets(self) -> jax.Array | None: ...
    @property
    def dtype(self) -> jnp.dtype: ...
    @property
    def scheme(self) -> str: ...
    @property
    def bits(self) -> int: ...
    @property
    def group(self) -> int: ...


def fits(rows: jax.Array, weight: PackedWeight) -> bool:
    """Whether the kernel takes these rows [N, in] and this form.

    It takes up to 64 rows, and groups whose bytes 16 divides, or that are 4 or 8 bytes.
    """
    width = weight.group * weight.bits // 8
    return len(rows) <= _MOST_ROWS and weight.scheme != "fp8" and (width % _LEAST == 0 or width in (4, 8))


@functools.partial(jax.jit, static_argnames="interpret")
def product(
    rows: jax.Array, weight: PackedWeight, number: jax.Array | None = None, *, interpret: bool = False
) -> jax.Array:
    """The product of rows [N, in] and a weight in rows; float32 [N, out].

    Args:
      number: the matrix to multiply with, of a weight [X, out, in], int32. XLA would copy the
        matrix.
      interpret: runs the kernel on any device.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    if number is None:
        weight = jax.tree.map(lambda array: array[None], weight)
    matrix = jnp.zeros(1, jnp.int32) if number is None else number.reshape(1)
    N, (_, outputs, size) = len(rows), weight.values.shape
    tile = _TILE if N <= _FEW_ROWS else _TILE_OF_MANY
    steps = pl.cdiv(size, _BYTES)
    shares = min(max(_PROGRAMS // pl.cdiv(outputs, _TILE), 1), steps)
    offsets = () if weight.offsets is None else (weight.offsets,)
    parts = pl.pallas_call(
        functools.partial(_kernel, weight.group, weight.bits, tile, pl.cdiv(steps, shares)),
        grid=(pl.cdiv(outputs, tile), shares),
        out_shape=jax.ShapeDtypeStruct((shares, N, outputs), jnp.float32),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=_STAGES),
        interpret=interpret,
        name="packed_product",
    )(matrix, rows.astype(weight.dtype), weight.values, weight.scales, *offsets)
    return parts.sum(0)


def _kernel(group: int, bits: int, tile: int, steps: int, number, rows, values, scales, *refs):
    """One program; see the top of the file.

    A piece is a part of a group, a group, or several small groups. Small groups take turns: each
    multiplies the whole piece with rows that are zero outside the group.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    *offsets, out = refs
    N, (_, outputs, size) = len(rows), values.shape
    width = group * bits // 8
    piece = max(_LEAST, min(width & -width, _BYTES))
    matrix, share = number[0], pl.program_id(1)
    output = pl.program_id(0) * tile + jnp.arange(tile)
    row = jnp.arange(max(pl.next_power_of_2(N), 8))[None]
    real = output < outputs
    place = jnp.arange(piece)[:, None]
    shape = tile, row.size

    def of_groups(ref, number):
        """The scales or offsets [tile, 1] of this group of each output."""
        return triton.load(ref.at[matrix, output, number], mask=real & (number * width < size), other=0)[:, None]

    def of_rows(byte, number, half):
        """The inputs [piece, rows] of a group that the bytes hold, in one of their halves."""
        mask = (row < N) & (byte < size)
        mask = mask if width >= piece else mask & (byte // width == number)
        return triton.load(rows.at[row, byte + number * (group - width) + half * width], mask=mask, other=0)

    def step(i, total):
        first = (share * steps + i) * _BYTES
        byte = first + jnp.arange(_BYTES)[None]
        stored = triton.load(values.at[matrix, output[:, None], byte], mask=real[:, None] & (byte < size), other=0)
        for n, part in enumerate(lax.split(stored, (piece,) * (_BYTES // piece), axis=1)):
            begin = first + n * piece
            weights = _widen(part, bits, bool(offsets), rows.dtype)
            for small in range(max(piece // width, 1)):
                group_number = begin // width + small
                x = [of_rows(begin + place, group_number, half) for half in range(len(weights))]
                sums = sum((_dot(w, one) for w, one in zip(weights, x)), jnp.zeros(shape, jnp.float32))
                total += sums * of_groups(scales, group_number)
                if offsets:
                    sums = sum((_dot(jnp.ones_like(weights[0]), one) for one in x), jnp.zeros(shape, jnp.float32))
                    total += sums * of_groups(offsets[0], group_number)
        return total

    total = lax.fori_loop(0, steps, step, jnp.zeros(shape, jnp.float32))
    triton.store(out.at[share, row, output[:, None]], total, mask=real[:, None] & (row < N))


def _dot(weights: jax.Array, rows: jax.Array) -> jax.Array:
    from jax.experimental.pallas import triton

    return triton.dot(weights, rows, precision=lax.Precision.HIGHEST)


def _widen(stored: jax.Array, bits: int, unsigned: bool, dtype) -> list[jax.Array]:
    """The numbers of bytes [tile, piece]: of four bits, those below and those above."""
    if bits == 8:
        return [stored.astype(dtype)]
    word = stored.astype(jnp.uint32 if unsigned else jnp.int32)
    # GPUs convert integers to float32 several times as fast as to 16 bits.
    return [(word << shift >> 28).astype(jnp.float32).astype(dtype) for shift in (28, 24)]
