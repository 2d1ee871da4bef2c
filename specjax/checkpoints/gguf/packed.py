"""Tensors of a GGUF file, and views that turn back how llama.cpp's conversion changes tensors.

All have the interface of a safetensors slice. Indexing reads a part, as float32.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from ..packed.stored import Part, Stored, in_one_form
from .block_types import BLOCK_TYPES

TYPES = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS", "MXFP4",
)  # fmt: skip
"""The types of tensors that are read."""


class View(ABC):
    """A tensor that is computed when it is indexed. Subclasses give its shape and its slices."""

    stored: Stored | None = None
    """The numbers and scales, if the tensor is packed."""

    @abstractmethod
    def get_shape(self) -> list[int]:
        """The shape of the unpacked tensor."""

    def get_dtype(self) -> str:
        return "F32"

    def __getitem__(self, index) -> np.ndarray:
        index = index if isinstance(index, tuple) else (index,)
        return self.read(*index, *[slice(None)] * (len(self.get_shape()) - len(index)))

    @abstractmethod
    def read(self, *index) -> np.ndarray:
        """The part at an index for each axis: slices, and for the first axis also an array."""


class PackedTensor(View):
    """A tensor in a file.

    Args:
      kind: one of ``TYPES``.
      shape: its shape when it is unpacked.
      data: float32 or float16 of this shape, or bytes, whose last axis has the blocks of a row.
    """

    def __init__(self, kind: str, shape: list[int], data: np.ndarray):
        self._kind = kind
        self._shape = shape
        self._data = data
        if kind in BLOCK_TYPES:
            self.stored = self._numbers_and_scales()

    def get_shape(self) -> list[int]:
        return list(self._shape)

    def read(self, *index) -> np.ndarray:
        if self._data.dtype != np.uint8:
            return self._data[index].astype(np.float32)
        from gguf import GGMLQuantizationType  # here, because it is an extra
        from gguf.quants import dequantize

        *rows, columns = index
        return dequantize(self._data[tuple(rows)], GGMLQuantizationType[self._kind])[..., columns]

    def _numbers_and_scales(self) -> Stored:
        kind = BLOCK_TYPES[self._kind]
        *rows, inputs = self._shape

        def part(width: int, dtype: str, read: Callable[[np.ndarray], np.ndarray]) -> Part:
            def flat(index):
                values = read(kind.blocks(self._data[tuple(index[:-1])]))
                return values.reshape(*values.shape[:-2], -1)[..., index[-1]]

            return Part((*rows, width), dtype, flat)

        factors = [part(inputs // kind.group, "F32", lambda blocks, i=i: kind.factors(blocks)[i])
                   for i in range(1 + kind.has_offsets)]  # fmt: skip
        return Stored(kind.scheme, part(inputs, "I8", kind.numbers), *factors, exact=True)


class Reordered(View):
    """Rows of a tensor in another order, an array of row numbers.

    Raises ValueError for a row that the tensor does not have.
    """

    def __init__(self, tensor: Any, order: np.ndarray):
        if len(order) and order.max() >= tensor.get_shape()[0]:
            raise ValueError(f"row {order.max()} of {tensor.get_shape()[0]}")
        self._tensor = tensor
        self._order = order
        if getattr(tensor, "stored", None):
            self.stored = tensor.stored.map(lambda part: Reordered(part, order))

    def get_shape(self) -> list[int]:
        return [len(self._order), *self._tensor.get_shape()[1:]]

    def read(self, *index) -> np.ndarray:
        rows, *rest = index
        return self._tensor[(self._order[rows], *rest)]


class Joined(View):
    """The rows of a tensor, then those of another."""

    def __init__(self, first: Any, second: Any):
        self._first = first
        self._second = second
        forms = in_one_form([getattr(tensor, "stored", None) for tensor in (first, second)])
        if forms:
            self.stored = forms[0].join(forms[1], Joined)

    def get_shape(self) -> list[int]:
        rows, *rest = self._first.get_shape()
        return [rows + self._second.get_shape()[0], *rest]

    def read(self, *index) -> np.ndarray:
        count = self._first.get_shape()[0]
        rows, *rest = index
        rows = np.arange(self.get_shape()[0])[rows]
        first, second = rows[rows < count], rows[rows >= count] - count
        both = np.concatenate([self._first[(first, *rest)], self._second[(second, *rest)]])
        return both[np.argsort(np.argsort(rows >= count, kind="stable"))]


class Mapped(View):
    """A tensor after a function of each number."""

    def __init__(self, tensor: Any, function: Callable[[np.ndarray], np.ndarray]):
        self._tensor = tensor
        self._function = function

    def get_shape(self) -> list[int]:
        return self._tensor.get_shape()

    def read(self, *index) -> np.ndarray:
        return self._function(self._tensor[index])


class Transposed(View):
    """A matrix whose rows are the columns of a tensor."""

    def __init__(self, tensor: Any):
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return self._tensor.get_shape()[::-1]

    def read(self, *index) -> np.ndarray:
        return self._tensor[index[::-1]].T


class WithAxis(View):
    """A tensor with one more axis of size 1, in front of its axis ``axis``."""

    def __init__(self, tensor: Any, axis: int):
        self._tensor = tensor
        self._axis = axis

    def get_shape(self) -> list[int]:
        shape = self._tensor.get_shape()
        return [*shape[: self._axis], 1, *shape[self._axis :]]

    def read(self, *index) -> np.ndarray:
        before, (own, *after) = index[: self._axis], index[self._axis :]
        part = np.expand_dims(self._tensor[(*before, *after)], self._axis)
        return part[(*[slice(None)] * self._axis, own)]


class Flat(View):
    """A small tensor without its axes."""

    def __init__(self, tensor: Any):
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return [int(np.prod(self._tensor.get_shape()))]

    def read(self, *index) -> np.ndarray:
        return self._tensor[:].reshape(-1)[index]


class KeysAndValues(View):
    """DeepSeek's matrix [heads * (K + V), rank]: of each head its keys, then its values.

    Args:
      keys: a stack [heads, rank, K].
      values: a stack [heads, V, rank].
    """

    def __init__(self, keys: Any, values: Any):
        self._keys = keys
        self._values = values

    def get_shape(self) -> list[int]:
        heads, rank, size = self._keys.get_shape()
        return [heads * (size + self._values.get_shape()[1]), rank]

    def read(self, *index) -> np.ndarray:
        rows, columns = index
        size = self._keys.get_shape()[2] + self._values.get_shape()[1]
        first, last, step = rows.indices(self.get_shape()[0])
        heads = slice(first // size, -(-last // size))  # only the heads of these rows are unpacked
        both = np.concatenate([self._keys[heads].swapaxes(1, 2), self._values[heads]], 1)
        start = first - heads.start * size
        return both.reshape(-1, both.shape[-1])[start : start + last - first : step, columns]
