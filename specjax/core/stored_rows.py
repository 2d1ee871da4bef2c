"""Keys and values of eight bits, and of sixteen on a CPU, for arrays of the cache.

They are rounded when they are computed, so nodes see the same numbers before and after they are
committed, and a commit copies bits.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

KV_SCHEMES = {"int8": jnp.dtype(jnp.int8), "fp8": jnp.dtype(jnp.float8_e4m3fn)}
"""The types of keys and values of eight bits, by name."""


@dataclasses.dataclass(frozen=True)
class EightBits:
    """Stands in place of the dtype of keys and values of eight bits.

    Attributes:
      values: one of ``KV_SCHEMES``.
      full: the dtype in which attention multiplies them, and of the scales.
    """

    values: jnp.dtype
    full: jnp.dtype


@dataclasses.dataclass(frozen=True)
class Halves:
    """Stands in place of the dtype of keys and values: bfloat16, in arrays of its bits.

    XLA:CPU widens a whole array of bfloat16 to read or write a slice of it.
    """

    itemsize = 2
    full = jnp.dtype(jnp.float32)  # a CPU multiplies it fastest


class EightBitRows(struct.PyTreeNode):
    """Keys or values of eight bits. They stand in place of an array [B, K, positions, D].

    Attributes:
      values: int8 or float8_e4m3fn [B, K, positions, D].
      scales: [B, K, positions, 1], the factor of each key head's vector at a position.
    """

    values: jax.Array
    scales: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> EightBits:
        return EightBits(self.values.dtype, self.scales.dtype)


class HalfRows(struct.PyTreeNode):
    """Keys or values of bfloat16, which stand in place of an array [B, K, positions, D].

    ``bits``: uint16 [B, K, positions, D].
    """

    bits: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bits.shape

    @property
    def dtype(self) -> Halves:
        return Halves()

    @property
    def values(self) -> jax.Array:
        """Float32 [B, K, positions, D]."""
        return lax.bitcast_convert_type(self.bits, jnp.bfloat16).astype(jnp.float32)


def finite_bits(bits: jax.Array) -> jax.Array:
    """The uint16 ``bits`` of ``HalfRows``, with zeros in place of numbers that are not finite."""
    exponent = jnp.uint16(0x7F80)
    return jnp.where(bits & exponent == exponent, 0, bits)


def store(x: jax.Array, dtype) -> jax.Array | EightBitRows | HalfRows:
    """Keys or values float32 [B, K, positions, D] in a dtype, ``EightBits`` or ``Halves``."""
    if isinstance(dtype, Halves):
        return HalfRows(lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16))
    if not isinstance(dtype, EightBits):
        return x.astype(dtype)
    whole = dtype.values == jnp.int8
    most = 127.0 if whole else float(jnp.finfo(dtype.values).max)
    largest = jnp.abs(x).max(-1, keepdims=True)
    scales = (jnp.where(largest == 0, 1, largest) / most).astype(dtype.full)
    q = jnp.clip(x / scales.astype(jnp.float32), -most, most)
    return EightBitRows((jnp.round(q) if whole else q).astype(dtype.values), scales)


def read(rows: jax.Array | EightBitRows | HalfRows) -> jax.Array:
    """Keys or values as float32 [B, K, positions, D]."""
    if isinstance(rows, HalfRows):
        return rows.values
    if isinstance(rows, EightBitRows):
        return rows.values.astype(jnp.float32) * rows.scales.astype(jnp.float32)
    return rows.astype(jnp.float32)


def full_dtype(dtype):
    """The dtype of activations beside keys and values of a dtype, ``EightBits`` or ``Halves``."""
    return dtype.full if isinstance(dtype, EightBits | Halves) else dtype


def blank(shape: tuple[int, ...], dtype) -> jax.Array | EightBitRows | HalfRows:
    """Keys or values of zeros, in a dtype, ``EightBits`` or ``Halves``."""
    if isinstance(dtype, Halves):
        return HalfRows(jnp.zeros(shape, jnp.uint16))
    if not isinstance(dtype, EightBits):
        return jnp.zeros(shape, dtype)
    return EightBitRows(jnp.zeros(shape, dtype.values), jnp.zeros((*shape[:-1], 1), dtype.full))
