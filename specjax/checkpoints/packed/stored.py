"""Tensors whose numbers a model can keep as ``models.quantised_weights`` holds them."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Part(NamedTuple):
    """A tensor that ``read`` computes for an index; ``dtype`` as safetensors names it."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[tuple], np.ndarray]

    def get_shape(self) -> tuple[int, ...]:
        return self.shape

    def get_dtype(self) -> str:
        return self.dtype

    def __getitem__(self, index: tuple) -> np.ndarray:
        return self.read(index)


class Stored(NamedTuple):
    """The parts of a weight, which are read by slices.

    Attributes:
      scheme: "int4", "int8" or "fp8".
      numbers: int8 or float8_e4m3fn [..., out, in]; of four bits -8 to 7, or with offsets 0 to 15.
      scales: float32 [..., out, G].
      offsets: as ``scales``; None where they are zero.
      exact: whether the checkpoint leaves activations their precision, see
        ``models.quantised_weights.SCHEMES``.
    """

    scheme: str
    numbers: Any
    scales: Any
    offsets: Any = None
    exact: bool = True

    @property
    def group(self) -> int:
        """The inputs of a group."""
        return self.numbers.get_shape()[-1] // self.scales.get_shape()[-1]

    def map(self, change: Callable[[Any], Any]) -> "Stored":
        """The weight after a change of each part."""
        offsets = None if self.offsets is None else change(self.offsets)
        return self._replace(numbers=change(self.numbers), scales=change(self.scales), offsets=offsets)

    def join(self, other: "Stored", join: Callable[[Any, Any], Any]) -> "Stored":
        """The weight with each part joined to that of another weight of its form."""
        offsets = None if self.offsets is None else join(self.offsets, other.offsets)
        numbers, scales = join(self.numbers, other.numbers), join(self.scales, other.scales)
        return self._replace(numbers=numbers, scales=scales, offsets=offsets)


def in_one_form(weights: Sequence[Stored | None]) -> list[Stored] | None:
    """The weights in the smallest form that holds the numbers of all exactly; None if none does."""
    given = [weight for weight in weights if weight is not None]
    schemes = {weight.scheme for weight in given}
    if not given or len(given) < len(weights) or "fp8" in schemes and len(schemes) > 1:
        return None
    scheme, group = max(schemes, key=["int4", "int8", "fp8"].index), math.gcd(*(weight.group for weight in given))
    has_offsets = any(weight.offsets is not None for weight in given)
    return [_in_form(weight, scheme, group, has_offsets) for weight in given]


def _in_form(weight: Stored, scheme: str, group: int, has_offsets: bool) -> Stored:
    shift = 8 if has_offsets and scheme == "int4" and weight.offsets is None else 0
    times = weight.group // group

    def repeated(tensor, factor: int = 1) -> Part:
        *rows, groups = tensor.get_shape()
        read = lambda index: np.repeat(tensor[(*index[:-1], slice(None))] * np.float32(factor), times, -1)[
            ..., index[-1]
        ]
        return Part((*rows, groups * times), "F32", read)

    numbers, offsets = weight.numbers, None
    if shift:
        shifted = lambda index: weight.numbers[index] + np.int8(shift)
        numbers = Part(tuple(weight.numbers.get_shape()), "I8", shifted)
    if has_offsets:
        offsets = repeated(weight.scales, -shift) if weight.offsets is None else repeated(weight.offsets)
    return Stored(scheme, numbers, repeated(weight.scales), offsets, weight.exact)
