"""The tensors of eight-bit floats in a safetensors file, which numpy's reader does not know."""

import json
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

_TYPES = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E8M0": np.uint8}
"""The type in numpy of each type in the file. E8M0 are exponents, which are read as their bits."""


class Float8(NamedTuple):
    """A tensor in a file. Indexing reads a part."""

    values: np.ndarray
    dtype: str

    def get_shape(self) -> list[int]:
        return list(self.values.shape)

    def get_dtype(self) -> str:
        return self.dtype

    def __getitem__(self, index) -> np.ndarray:
        return np.array(self.values[index])


def open_float8(file: Path) -> dict[str, Float8]:
    """The tensors of such types in a valid file, by name."""
    with open(file, "rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    tensors = {}
    for name, entry in header.items():
        if entry.get("dtype") in _TYPES:
            shape = tuple(entry["shape"])
            start = 8 + size + entry["data_offsets"][0]
            values = np.memmap(file, np.uint8, "r", start, shape) if np.prod(shape) else np.zeros(shape, np.uint8)
            tensors[name] = Float8(values.view(_TYPES[entry["dtype"]]), entry["dtype"])
    return tensors
