"""Opens GGUF files: metadata, and tensors that are unpacked slice by slice."""

import dataclasses
import re
import struct
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CheckpointError
from ..files import check_file
from .packed import TYPES, PackedTensor

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_VERSIONS = (2, 3)
_DAMAGE = (
    AttributeError, EOFError, IndexError, KeyError, MemoryError, OverflowError, TypeError, ValueError,
)  # fmt: skip
"""Errors of the package on damaged files. UnicodeDecodeError is a ValueError."""


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """The contents of a GGUF file, or of all parts of a split one.

    Attributes:
      path: the file, or the first part.
      metadata: the values of the first part by key; lists of Python for arrays.
      tensors: the tensors of all parts by their names in the file.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, PackedTensor]


def open_gguf(path: Path) -> GgufFile:
    """The contents of a GGUF file. The bytes of a tensor are read when it is indexed.

    ``path``: the file, or any part of a split one.

    Raises CheckpointError for a file that is missing, cut off, corrupt, big-endian or of another
    version, for a missing part, for tensors of other types than ``packed.TYPES``, and where the
    package gguf is missing.
    """
    try:
        states = [(part, part.stat()) for part in find_parts(path)]
        return _open(tuple((part, state.st_size, state.st_mtime_ns) for part, state in states))
    except OSError as error:
        raise CheckpointError(f"{path}: not readable ({error.strerror}); name a GGUF file that exists") from None


def close_gguf() -> None:
    """Forgets the open files. Their pages count as memory of the process while they are mapped."""
    _open.cache_clear()


def find_parts(path: Path) -> list[Path]:
    """The file alone, or all parts of a split one, whose names end with -00001-of-0000N.gguf.

    Raises CheckpointError for missing parts.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = match["count"]
    parts = [path.with_name(f"{match['stem']}-{i + 1:05}-of-{count}.gguf") for i in range(int(count))]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{path.parent}: {missing[0]}{more} of {int(count)} parts is missing; download all parts")
    return parts


@lru_cache(2)  # a target and a draft: configuration, tensors and tokenizer come from one reading
def _open(parts: tuple[tuple[Path, int, int], ...]) -> GgufFile:
    """``open_gguf`` of these files, whose sizes and times tell whether they have changed."""
    paths = [part for part, _, _ in parts]
    metadata, tensors = _read(paths[0])
    for path in paths[1:]:
        more = _read(path)[1]
        if twice := tensors.keys() & more.keys():
            raise CheckpointError(f"{path}: {min(twice)} is also in an earlier part; download all parts again")
        tensors |= more
    announced = metadata.get("split.tensors.count", len(tensors))
    if metadata.get("split.count", 1) not in (0, len(paths)) or announced != len(tensors):
        raise CheckpointError(
            f"{paths[0]}: split.count is {metadata.get('split.count')} with {announced} tensors; here are {len(paths)} "
            f"files with {len(tensors)}; download all parts of one split, with their names"
        )
    return GgufFile(paths[0], metadata, tensors)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, PackedTensor]]:
    """Metadata and tensors of one file."""
    check_file(path)
    _check_header(path)
    try:
        reader = _make_reader()(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        tensors = [(x.name, x.tensor_type.name, x.shape.tolist()[::-1], x.data) for x in reader.tensors]
    except _DAMAGE as error:
        if unknown := re.search(r"(\d+)\)? is not a valid GGMLQuantizationType", str(error)):
            raise CheckpointError(f"{path}: {_refused_type(f'number {unknown[1]}')}") from None
        raise CheckpointError(f"{path}: truncated or corrupt ({error}); download it again") from None
    for name, kind, *_ in tensors:
        if kind not in TYPES:
            raise CheckpointError(f"{path}: {name}: {_refused_type(kind)}")
    return metadata, {name: PackedTensor(*tensor) for name, *tensor in tensors}


def _refused_type(kind: str) -> str:
    return f"type {kind} of weights is not supported; use a file with {', '.join(TYPES)}"


def _check_header(path: Path) -> None:
    """Raises CheckpointError for a file that does not begin as a GGUF file that is read here."""
    with open(path, "rb") as file:
        magic, *version = struct.unpack("<4sI", file.read(8).ljust(8, b"\0"))
    if magic != b"GGUF":
        raise CheckpointError(f"{path}: not a GGUF file, which begins with GGUF; download it again")
    if version[0] and version[0] & 0xFFFF == 0:
        raise CheckpointError(f"{path}: big-endian; use the little-endian file, or gguf-convert-endian")
    if version[0] not in _VERSIONS:
        raise CheckpointError(
            f"{path}: GGUF version {version[0]} is not supported, only {_VERSIONS[0]} and {_VERSIONS[1]}; use a file"
            " that a current llama.cpp wrote"
        )


def _make_reader() -> type:
    """The reader of the package, which refuses to read beyond the end of a file."""
    try:
        from gguf import GGUFReader  # here, because it is an extra
    except ImportError:
        raise CheckpointError("GGUF files need the package gguf; run pip install 'specjax[gguf]'") from None

    class Reader(GGUFReader):
        @property
        def data(self) -> np.ndarray:
            return self._bytes

        @data.setter
        def data(self, mapped: np.ndarray) -> None:
            self._bytes = np.asarray(mapped)  # slices of a memmap take longer

        def _get(self, offset, dtype, count=1, *more, **options):
            if int(offset) + np.dtype(dtype).itemsize * int(count) > len(self._bytes):
                raise EOFError("the file ends too early")
            return super()._get(offset, dtype, count, *more, **options)

    return Reader
