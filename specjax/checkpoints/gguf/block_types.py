"""The numbers and scales in the blocks of a packed GGUF tensor: w = s q + m in groups of inputs.

Every type fits into four or eight bits exactly. Scales and offsets are products of few bits, so
float32 holds them.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class BlockType(NamedTuple):
    """A type of blocks.

    Attributes:
      scheme: the form that holds its numbers, "int4" or "int8".
      group: the inputs of a group.
      has_offsets: whether m is not zero.
      fields: the members of a block.
      numbers: reads q int8 [..., inputs of a block] from a structured array of blocks.
      factors: reads s, with offsets also m; float32 [..., groups of a block].
    """

    scheme: str
    group: int
    has_offsets: bool
    fields: list[tuple]
    numbers: Callable[[np.ndarray], np.ndarray]
    factors: Callable[[np.ndarray], tuple[np.ndarray, ...]]

    def blocks(self, data: np.ndarray) -> np.ndarray:
        """The blocks of rows of bytes [..., N], a structured array [..., N / size of a block]."""
        return np.ascontiguousarray(data).view(np.dtype(self.fields))


def _unpack_bits(values: np.ndarray, run: int, bits: int, count: int = 0) -> np.ndarray:
    """Unpacks numbers of ``bits`` bits.

    Each run of ``run`` bytes gives the lowest bits of all its bytes, then the next bits.

    ``count``: the numbers in a value; by default as many as a byte holds.
    """
    shifts = np.arange(0, bits * (count or 8 // bits), bits, dtype=values.dtype)[:, None]
    parts = values.reshape(*values.shape[:-1], -1, 1, run) >> shifts & (2**bits - 1)
    return parts.astype(np.int8).reshape(*values.shape[:-1], -1)


def _nibbles(run: int, zero_point: int = 0) -> Callable:
    return lambda block: _unpack_bits(block["q"], run, 4) - np.int8(zero_point)


def _five_bits(zero_point: int) -> Callable:
    """Q5_0 and Q5_1: the fifth bits are those of a word."""
    fifth = lambda block: np.unpackbits(block["high"], axis=-1, bitorder="little").astype(np.int8)
    return lambda block: (_unpack_bits(block["q"], 16, 4) | fifth(block) << 4) - np.int8(zero_point)


def _from_table(name: str) -> Callable:
    def read(block):
        from gguf import quants  # here, because it is an extra

        return np.array(getattr(quants, name).kvalues, np.int8)[_unpack_bits(block["q"], 16, 4)]

    return read


def _as_float32(block: np.ndarray, *names: str) -> tuple[np.ndarray, ...]:
    return tuple(block[name].astype(np.float32)[..., None] for name in names)


def _scale(block):
    return _as_float32(block, "d")


def _scale_and_offset(block):
    return _as_float32(block, "d", "m")


def _mxfp4_scale(block):
    from gguf.quants import MXFP4  # here, because it is an extra

    return (MXFP4.e8m0_to_fp32_half(block["e"])[..., None],)


def _q2_factors(block):
    """Q2_K: a byte has a group's scale in its low four bits and its offset in its high four."""
    d, m = _scale_and_offset(block)
    return d * (block["s"] & 15), -m * (block["s"] >> 4)


def _q3_numbers(block):
    return (_unpack_bits(block["q"], 32, 2) | _unpack_bits(block["high"], 32, 1) << 2) - np.int8(4)


def _q3_factors(block):
    """Q3_K: sixteen scales of six bits, four of them in eight bytes and two in four."""
    low, high = _unpack_bits(block["s"][..., :8], 8, 4), _unpack_bits(block["s"][..., 8:], 4, 2)
    return (_scale(block)[0] * ((low | high << 4) - np.int8(32)),)


def _k_factors(block):
    """Q4_K and Q5_K: eight scales and eight offsets of six bits in twelve bytes."""
    d, m = _scale_and_offset(block)
    first, second, third = (block["s"][..., i : i + 4] for i in (0, 4, 8))
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], -1)
    offsets = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], -1)
    return d * scales, -m * offsets


def _q5_numbers(block):
    return _unpack_bits(block["q"], 32, 4) | _unpack_bits(block["high"], 32, 1) << 4


def _q6_numbers(block):
    return (_unpack_bits(block["q"], 64, 4) | _unpack_bits(block["high"], 32, 2) << 4) - np.int8(32)


def _xs_factors(block):
    """IQ4_XS: eight scales of six bits, four of them in four bytes and two in a word."""
    high = _unpack_bits(block["high"][..., None], 1, 2, 8)
    return (_scale(block)[0] * ((_unpack_bits(block["s"], 1, 4) | high << 4) - np.int8(32)),)


_D, _M, _Q = ("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)
BLOCK_TYPES: dict[str, BlockType] = {
    "Q4_0": BlockType("int4", 32, False, [_D, _Q], _nibbles(16, 8), _scale),
    "Q4_1": BlockType("int4", 32, True, [_D, _M, _Q], _nibbles(16), _scale_and_offset),
    "Q5_0": BlockType("int8", 32, False, [_D, ("high", "u1", 4), _Q], _five_bits(16), _scale),
    "Q5_1": BlockType("int8", 32, True, [_D, _M, ("high", "u1", 4), _Q], _five_bits(0), _scale_and_offset),
    "Q8_0": BlockType("int8", 32, False, [_D, ("q", "i1", 32)], lambda block: block["q"], _scale),
    "Q2_K": BlockType("int4", 16, True, [("s", "u1", 16), ("q", "u1", 64), _D, _M],
                      lambda block: _unpack_bits(block["q"], 32, 2), _q2_factors),
    "Q3_K": BlockType("int4", 16, False, [("high", "u1", 32), ("q", "u1", 64), ("s", "u1", 12), _D],
                      _q3_numbers, _q3_factors),
    "Q4_K": BlockType("int4", 32, True, [_D, _M, ("s", "u1", 12), ("q", "u1", 128)], _nibbles(32), _k_factors),
    "Q5_K": BlockType("int8", 32, True, [_D, _M, ("s", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)],
                      _q5_numbers, _k_factors),
    "Q6_K": BlockType("int8", 16, False, [("q", "u1", 128), ("high", "u1", 64), ("s", "i1", 16), _D],
                      _q6_numbers, lambda block: (_scale(block)[0] * block["s"],)),
    "IQ4_NL": BlockType("int8", 32, False, [_D, _Q], _from_table("IQ4_NL"), _scale),
    "IQ4_XS": BlockType("int8", 32, False, [_D, ("high", "<u2"), ("s", "u1", 4), ("q", "u1", 128)],
                        _from_table("IQ4_NL"), _xs_factors),
    "MXFP4": BlockType("int8", 32, False, [("e", "u1"), _Q], _from_table("MXFP4"), _mxfp4_scale),
}  # fmt: skip
"""The packed types."""
