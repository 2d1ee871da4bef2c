"""The numbers and scales in the blocks of a packed GGUF tensor: w = s q + m in groups of inputs.

Every type fits into four or eight bits exactly. Scales and offsets are products of few bits, so
float32 holds them.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Kind(NamedTuple):
    """A type of blocks.

    Attributes:
      scheme: the form that holds its numbers, "int4" or "int8".
      group: the inputs of a group.
      has_offsets: Whether m is not zero.
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


def _pieces(values: np.ndarray, run: int, bits: int, count: int = 0) -> np.ndarray:
    """The numbers of a few bits in bytes: of each run of bytes all lowest ones, then the next."""
    shifts = np.arange(0, bits * (count or 8 // bits), bits, dtype=values.dtype)[:, None]
    parts = values.reshape(*values.shape[:-1], -1, 1, run) >> shifts & (2**bits - 1)
    return parts.astype(np.int8).reshape(*values.shape[:-1], -1)


def _nibbles(run: int, less: int = 0) -> Callable:
    return lambda block: _pieces(block["q"], run, 4) - np.int8(less)


def _five(less: int) -> Callable:
    """Q5_0 and Q5_1: the fifth bits are those of a word."""
    fifth = lambda block: np.unpackbits(block["high"], axis=-1, bitorder="little").astype(np.int8)
    return lambda block: (_pieces(block["q"], 16, 4) | fifth(block) << 4) - np.int8(less)


def _from_table(name: str) -> Callable:
    def read(block):
        from gguf import quants  # here, because it is an extra

        return np.array(getattr(quants, name).kvalues, np.int8)[_pieces(block["q"], 16, 4)]

    return read


def _of(block: np.ndarray, *names: str) -> tuple[np.ndarray, ...]:
    return tuple(block[name].astype(np.float32)[..., None] for name in names)


def _alone(block):
    return _of(block, "d")


def _both(block):
    return _of(block, "d", "m")


def _exponents(block):
    from gguf.quants import MXFP4  # here, because it is an extra

    return (MXFP4.e8m0_to_fp32_half(block["e"])[..., None],)


def _q2_factors(block):
    d, m = _both(block)
    return d * (block["s"] & 15), -m * (block["s"] >> 4)


def _q3_factors(block):
    low, high = _pieces(block["s"][..., :8], 8, 4), _pieces(block["s"][..., 8:], 4, 2)
    return (_alone(block)[0] * ((low | high << 4) - np.int8(32)),)


def _k_factors(block):
    """Q4_K and Q5_K: eight scales and eight offsets of six bits in twelve bytes."""
    d, m = _both(block)
    first, second, third = (block["s"][..., i : i + 4] for i in (0, 4, 8))
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], -1)
    offsets = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], -1)
    return d * scales, -m * offsets


def _xs_factors(block):
    high = _pieces(block["high"][..., None], 1, 2, 8)
    return (_alone(block)[0] * ((_pieces(block["s"], 1, 4) | high << 4) - np.int8(32)),)


_D, _M, _Q = ("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)
KINDS: dict[str, Kind] = {
    "Q4_0": Kind("int4", 32, False, [_D, _Q], _nibbles(16, 8), _alone),
    "Q4_1": Kind("int4", 32, True, [_D, _M, _Q], _nibbles(16), _both),
    "Q5_0": Kind("int8", 32, False, [_D, ("high", "u1", 4), _Q], _five(16), _alone),
    "Q5_1": Kind("int8", 32, True, [_D, _M, ("high", "u1", 4), _Q], _five(0), _both),
    "Q8_0": Kind("int8", 32, False, [_D, ("q", "i1", 32)], lambda block: block["q"], _alone),
    "Q2_K": Kind("int4", 16, True, [("s", "u1", 16), ("q", "u1", 64), _D, _M],
                 lambda block: _pieces(block["q"], 32, 2), _q2_factors),
    "Q3_K": Kind("int4", 16, False, [("high", "u1", 32), ("q", "u1", 64), ("s", "u1", 12), _D],
                 lambda block: (_pieces(block["q"], 32, 2) | _pieces(block["high"], 32, 1) << 2) - np.int8(4),
                 _q3_factors),
    "Q4_K": Kind("int4", 32, True, [_D, _M, ("s", "u1", 12), ("q", "u1", 128)], _nibbles(32), _k_factors),
    "Q5_K": Kind("int8", 32, True, [_D, _M, ("s", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)],
                 lambda block: _pieces(block["q"], 32, 4) | _pieces(block["high"], 32, 1) << 4, _k_factors),
    "Q6_K": Kind("int8", 16, False, [("q", "u1", 128), ("high", "u1", 64), ("s", "i1", 16), _D],
                 lambda block: (_pieces(block["q"], 64, 4) | _pieces(block["high"], 32, 2) << 4) - np.int8(32),
                 lambda block: (_alone(block)[0] * block["s"],)),
    "IQ4_NL": Kind("int8", 32, False, [_D, _Q], _from_table("IQ4_NL"), _alone),
    "IQ4_XS": Kind("int8", 32, False, [_D, ("high", "<u2"), ("s", "u1", 4), ("q", "u1", 128)],
                   _from_table("IQ4_NL"), _xs_factors),
    "MXFP4": Kind("int8", 32, False, [("e", "u1"), _Q], _from_table("MXFP4"), _exponents),
}  # fmt: skip
"""The packed types."""
