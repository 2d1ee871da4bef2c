"""MXFP4 weights: blocks of 32 four-bit numbers that share a power of two.

The format is that of the OCP Microscaling Formats specification 1.0, sections 5.3 and 5.4: numbers
of type E2M1, and a scale of type E8M0 for each block.
"""

import jax.numpy as jnp
import numpy as np

_POSITIVE = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
_NUMBERS = np.array(_POSITIVE + [-x for x in _POSITIVE], np.float32)
_PAIRS = np.stack([np.tile(_NUMBERS, 16), np.repeat(_NUMBERS, 16)], -1)
"""The two numbers of each byte, float32 [256, 2]; the lower four bits hold the first."""

_BIAS = 127


def unpack(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The weights float32 [..., 32 * G]. bfloat16 holds each of them exactly.

    Args:
      blocks: uint8 [..., G, 16], two numbers a byte.
      scales: uint8 [..., G], the exponents of the blocks plus 127.
    """
    numbers = np.ldexp(_PAIRS[blocks], scales.astype(np.int32)[..., None, None] - _BIAS)
    return numbers.reshape(*scales.shape[:-1], -1)


class Packed:
    """A tensor that is stored as blocks and scales, as a slice of safetensors."""

    def __init__(self, blocks, scales):
        self._blocks, self._scales = blocks, scales

    def get_shape(self) -> list[int]:
        *rows, groups = self._scales.get_shape()
        return [*rows, 2 * groups * self._blocks.get_shape()[-1]]

    def get_dtype(self) -> str:
        return "BF16"

    def __getitem__(self, index: tuple) -> np.ndarray:
        *rows, columns = index
        return unpack(self._blocks[tuple(rows)], self._scales[tuple(rows)])[..., columns].astype(jnp.bfloat16)
