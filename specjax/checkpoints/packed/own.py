"""Quantised weights as specjax saves them: numbers, scales and perhaps offsets of each tensor.

The tensor X becomes X.numbers, int8 [..., out, in] or of four bits uint8 [..., out, in / 2] as
``models.quantised_weights.pack`` packs them, X.scales float32 [..., out, G], and X.offsets.
Experts stay stacks [X, out, in].
"""

from collections.abc import Sequence

import numpy as np

from ...errors import CheckpointError, RequestError
from ...models.quantised_weights import Quantised
from ..blocks import Block
from .stored import Part, Stored
from .words import Packed, take

METHOD = "specjax"
"""The method's name in ``quantization_config``."""

_PARTS = "numbers", "scales", "offsets"


def settings(scheme: str) -> dict:
    """The ``quantization_config`` of a model whose weights have a form, or of four bits two."""
    return {"quant_method": METHOD, "activations": 16 if scheme.endswith(":exact") else 8}


def arrays_of(weight: Quantised, name: str, blocks: Sequence[Block]) -> dict[str, np.ndarray]:
    """The arrays of a weight's parts, whose rows are those of ``blocks``.

    Raises RequestError, which has the ``name``, for fp8, and for a family that transposes matrices.
    """
    if weight.scheme == "fp8" or any(block.transposed for block in blocks):
        reason = "has fp8 weights" if weight.scheme == "fp8" else "is transposed in this family"
        raise RequestError(f"{name} {reason}, which is not saved quantised; save the model loaded without quantize")
    weight = weight.in_rows()
    parts = zip(_PARTS, (weight.values, weight.scales, weight.offsets))
    return {part: np.asarray(array) for part, array in parts if array is not None}


def find_own(tensors: dict, options: dict, where: str) -> dict:
    """The tensors with one tensor for the parts of each weight.

    Raises CheckpointError for parts that are missing or do not fit.
    """
    for name in [name for name in tensors if name.endswith(".numbers")]:
        weight = name.removesuffix(".numbers")
        numbers, scales = tensors.pop(name), take(tensors, f"{weight}.scales", where)
        offsets = tensors.pop(f"{weight}.offsets", None)
        scheme = "int4" if str(numbers.get_dtype()) == "U8" else "int8"
        *rows, size = numbers.get_shape()
        inputs = 2 * size if scheme == "int4" else size
        shapes = [tuple(each.get_shape()) for each in (scales, offsets) if each is not None]
        groups = shapes[0][-1] if shapes[0] else 0
        if any(shape != (*rows, groups) for shape in shapes) or not groups or inputs % groups:
            raise CheckpointError(
                f"{where}: {weight} has numbers {(*rows, inputs)} and scales {shapes[0]}; they must divide alike"
            )
        if scheme == "int4":
            numbers = _four_bits(numbers, (*rows, inputs), inputs // groups, offsets is not None)
        stored = Stored(scheme, numbers, scales, offsets, options["activations"] == 16)
        tensors[weight] = Packed((*rows, inputs), stored)
    return tensors


def _four_bits(packed, shape: tuple[int, ...], group: int, unsigned: bool) -> Part:
    """The numbers of ``models.quantised_weights.pack``, int8."""

    def read(index: tuple) -> np.ndarray:
        *rows, columns = index
        values = packed[(*rows, slice(None))]
        halves = values.reshape(*values.shape[:-1], -1, group // 2)
        numbers = np.concatenate([halves & 15, halves >> 4], -1).reshape(*values.shape[:-1], -1).astype(np.int8)
        return (numbers if unsigned else (numbers ^ 8) - np.int8(8))[..., columns]

    return Part(shape, "I8", read)
