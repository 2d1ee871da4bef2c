"""Weights whose numbers are packed into words of 32 bits: GPTQ, AWQ and pack-quantized."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...errors import CheckpointError
from .stored import Part, Stored

_NIBBLES = np.arange(8) * 4
_AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])
"""The column of each four bits of a word, from the lowest ones on."""

_ALL = (slice(None), slice(None))


class Packed(NamedTuple):
    """A packed weight [..., out, in]. Indexing unpacks a slice, float32.

    Attributes:
      stored: its numbers and scales, if a model can keep them; else None.
      unpack: reads a slice where ``stored`` is None.
    """

    shape: tuple[int, ...]
    stored: Stored | None = None
    unpack: Callable[[tuple], np.ndarray] | None = None

    def get_shape(self) -> tuple[int, ...]:
        return self.shape

    def get_dtype(self) -> str:
        return "F32"

    def __getitem__(self, index: tuple) -> np.ndarray:
        if self.unpack is not None:
            return self.unpack(index)
        stored, (*rows, columns) = self.stored, index
        assert stored is not None
        spread = lambda part: np.repeat(part[(*rows, slice(None))], stored.group, -1)[..., columns]
        product = stored.numbers[index].astype(np.float32) * spread(stored.scales)
        return product if stored.offsets is None else product + spread(stored.offsets)


def take(tensors: dict, name: str, where: str):
    """Removes a tensor and returns it. Raises CheckpointError where it is missing."""
    if name not in tensors:
        raise CheckpointError(f"{where}: {name} is missing beside the packed weights of its module")
    return tensors.pop(name)


def _nibbles(words: np.ndarray, axis: int, order: np.ndarray | None = None) -> np.ndarray:
    """The numbers 0 to 15 in words int32, along ``axis``; ``order`` as in ``_AWQ_ORDER``."""
    words = np.moveaxis(words, axis, -1).view(np.uint32)
    parts = (words[..., None] >> _NIBBLES.astype(np.uint32)) & 15
    if order is not None:
        parts = parts[..., np.argsort(order)]
    return np.moveaxis(parts.reshape(*words.shape[:-1], -1).astype(np.int16), -1, axis)


def _bytes(words: np.ndarray, axis: int) -> np.ndarray:
    """The numbers 0 to 255 in words int32, one after another along ``axis``."""
    words = np.ascontiguousarray(np.moveaxis(words, axis, -1))
    return np.moveaxis(words.view(np.uint8).astype(np.int16), -1, axis)


def find_gptq(tensors: dict, options: dict, where: str) -> dict:
    one = options["checkpoint_format"] == "gptq"  # the older format stores zero points less one
    for name in [name for name in tensors if name.endswith(".qweight")]:
        module = name.removesuffix(".qweight")
        words, zeros, scales = (take(tensors, f"{module}.{x}", where) for x in ("qweight", "qzeros", "scales"))
        order = tensors.pop(f"{module}.g_idx", None)
        tensors[f"{module}.weight"] = _gptq(module, words, zeros, scales, order, options, one, where)
    return tensors


def _gptq(module: str, words, zeros, scales, order, options: dict, one: bool, where: str) -> Packed:
    """The weight that GPTQ packs into words.

    The tensors are qweight int32 [in * bits / 32, out], qzeros [G, out * bits / 32], scales
    [G, out] and g_idx [in].
    """
    bits = options["bits"]
    spread = _nibbles if bits == 4 else _bytes
    packed, outputs = words.get_shape()
    groups, _ = scales.get_shape()
    inputs = packed * 32 // bits
    size = _group_size(options["group_size"], inputs, groups, f"{where}: {module}")
    zero = spread(zeros[_ALL], 1) + one
    group = np.arange(inputs) // size if order is None else order[(slice(None),)]
    factor = scales[_ALL].astype(np.float32)

    def numbers(rows):
        return spread(words[(slice(None), rows)], 0).T

    if (group != np.arange(inputs) // size).any():

        def unpack(index):
            rows, columns = index
            g = group[columns]
            return (numbers(rows)[:, columns] - zero[g][:, rows].T) * factor[g][:, rows].T

        return Packed((outputs, inputs), unpack=unpack)
    return _quantised((outputs, inputs), bits, lambda index: numbers(index[0])[:, index[1]], factor.T, zero.T)


def find_awq(tensors: dict, options: dict, where: str) -> dict:
    """qweight int32 [in, out / 8], qzeros [G, out / 8], scales [G, out]."""
    for name in [name for name in tensors if name.endswith(".qweight")]:
        module = name.removesuffix(".qweight")
        words, zeros, scales = (take(tensors, f"{module}.{x}", where) for x in ("qweight", "qzeros", "scales"))
        tensors[f"{module}.weight"] = _awq(module, words, zeros, scales, options, where)
    return tensors


def _awq(module: str, words, zeros, scales, options: dict, where: str) -> Packed:
    inputs = words.get_shape()[0]
    groups, outputs = scales.get_shape()
    _group_size(options["group_size"], inputs, groups, f"{where}: {module}")
    zero = _nibbles(zeros[_ALL], 1, _AWQ_ORDER)
    factor = scales[_ALL].astype(np.float32)

    def read(index):
        rows, columns = index
        first, last, _ = rows.indices(outputs)
        start = first // 8  # eight outputs share a word
        q = _nibbles(words[(columns, slice(start, -(-last // 8)))], 1, _AWQ_ORDER)[:, first - 8 * start :]
        return q[:, : last - first].T

    return _quantised((outputs, inputs), 4, read, factor.T, zero.T)


def packed_words(module: str, words, scales, bits: int, where: str) -> Packed:
    """The weight of one module.

    Args:
      words: weight_packed int32 [out, in * bits / 32], of numbers plus 2 ** (bits - 1).
      scales: weight_scale [out, G].
    """
    outputs, packed = words.get_shape()
    _, groups = scales.get_shape()
    inputs = packed * 32 // bits
    spread = _nibbles if bits == 4 else _bytes
    _group_size(-1, inputs, groups, f"{where}: {module}")
    read = lambda index: spread(words[(index[0], slice(None))], 1)[:, index[1]]
    factor = scales[_ALL].astype(np.float32)
    return _quantised((outputs, inputs), bits, read, factor, np.full_like(factor, 2 ** (bits - 1)))


def _quantised(shape: tuple, bits: int, read: Callable, scales: np.ndarray, zeros: np.ndarray) -> Packed:
    """The weight s (q - z) of numbers q from 0 on, which ``read`` reads, and zeros z [out, G].

    Numbers of four bits stay as they are if they need offsets. Others are those of the centre.
    """
    centre = 2 ** (bits - 1)
    offsets = None if (zeros == centre).all() else scales * (bits == 8 and centre) - scales * zeros
    less = 0 if bits == 4 and offsets is not None else centre
    numbers = Part(shape, "I8", lambda index: (read(index) - less).astype(np.int8))
    parts = [
        Part(part.shape, "F32", lambda index, part=part: part[index]) for part in (scales, offsets) if part is not None
    ]
    stored = Stored(f"int{bits}", numbers, *parts, exact=True)
    odd = bits == 4 and stored.group % 2  # a group fills whole bytes
    return Packed(shape, unpack=Packed(shape, stored).__getitem__) if odd else Packed(shape, stored)


def _group_size(group_size: int, inputs: int, groups: int, where: str) -> int:
    """The inputs of a group; -1 stands for all.

    Raises CheckpointError if groups do not divide the inputs.
    """
    size = inputs // max(groups, 1) if group_size == -1 else group_size
    if size < 1 or size * groups != inputs:
        raise CheckpointError(
            f"{where} has {inputs} inputs and {groups} groups; group_size {group_size} does not divide them"
        )
    return size
