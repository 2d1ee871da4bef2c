"""Tensors of torch files, without torch and without pickle.

A torch file is a zip archive: ``data.pkl`` describes the tensors, and each storage is a file of
bytes beside it. ``torch_pickle`` reads the description and executes nothing of it.
"""

import dataclasses
import struct
import zipfile
from pathlib import Path

import numpy as np

from ..errors import CheckpointError
from .torch_pickle import DTYPES, DescribedTensor, Refused, read_description

_DAMAGE = (
    AttributeError, EOFError, IndexError, KeyError, MemoryError, RuntimeError, TypeError, ValueError, struct.error,
)  # fmt: skip
"""Errors of Python's readers on damaged files. RecursionError is a RuntimeError."""

_LARGEST = 1 << 26
"""Bytes of the largest description. Descriptions of large models take some hundred kilobytes."""


@dataclasses.dataclass(frozen=True)
class TorchTensor:
    """A tensor in a file. It is read by slices, like those of safetensors.

    Attributes:
      storage: [numel], mapped from the file.
      dtype: the name of its type in safetensors.
      offset, shape, strides: in elements of the storage, within its bounds.
    """

    storage: np.ndarray
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def get_shape(self) -> list[int]:
        return list(self.shape)

    def get_dtype(self) -> str:
        return self.dtype

    def __getitem__(self, index) -> np.ndarray:
        strides = [stride * self.storage.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(self.storage[self.offset :], self.shape, strides, writeable=False)[index]


def open_torch(path: Path) -> dict[str, TorchTensor]:
    """The tensors of a torch file by name. The bytes of a tensor are read when it is indexed.

    Raises FileNotFoundError, and CheckpointError for a file that is damaged or holds anything but a
    dictionary of tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            folder, code = _description(archive)
            described = read_description(code)
            only_tensors = isinstance(described, dict) and all(
                isinstance(x, DescribedTensor) for x in described.values()
            )
            if not only_tensors:
                raise Refused("it is not a dictionary of tensors")
            size = path.stat().st_size
            whole = np.asarray(np.memmap(path, np.uint8, "r"))
            return {name: _map(tensor, folder, archive, whole, size) for name, tensor in described.items()}
    except Refused as reason:
        raise CheckpointError(
            f"{path}: {reason}; nothing of it was executed. Convert the file to safetensors where you trust it"
        ) from None
    except zipfile.BadZipFile:
        raise CheckpointError(
            f"{path}: truncated or corrupt, or written by torch before 1.6; download it again, or save it anew"
        ) from None
    except _DAMAGE as error:
        raise CheckpointError(f"{path}: corrupt ({type(error).__name__}); download it again") from None


def _description(archive: zipfile.ZipFile) -> tuple[str, bytes]:
    """The folder in the archive that holds everything, and the pickle in that folder."""
    files = [
        info for info in archive.infolist() if info.filename.count("/") == 1 and info.filename.endswith("/data.pkl")
    ]
    if len(files) != 1:
        raise Refused("it holds no data.pkl, so it is not a torch file")
    folder = files[0].filename.removesuffix("data.pkl")
    order = archive.NameToInfo.get(folder + "byteorder")
    if order and (order.file_size != len("little") or archive.read(order) != b"little"):
        raise Refused("its bytes are not little-endian")
    if files[0].file_size > _LARGEST or files[0].compress_type != zipfile.ZIP_STORED:
        raise Refused(f"its description is compressed or larger than {_LARGEST} bytes, which torch never writes")
    return folder, archive.read(files[0])


def _map(tensor: DescribedTensor, folder: str, archive: zipfile.ZipFile, whole: np.ndarray, size: int) -> TorchTensor:
    """The tensor on the bytes of the file, ``whole`` [size]."""
    name = f"{folder}data/{tensor.storage.key}"
    dtype, kind = DTYPES[tensor.storage.kind]
    if name not in archive.NameToInfo:
        raise Refused(f"storage {tensor.storage.key[:40]!r} is missing")
    info = archive.NameToInfo[name]
    length = tensor.storage.numel * np.dtype(kind).itemsize
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != length or info.compress_size != length:
        raise Refused(f"storage {tensor.storage.key[:40]!r} has {info.file_size} bytes, not {length}")
    # A local header has 30 bytes. Its last four are the lengths of the name and the extra field,
    # which stand between the header and the data.
    header = whole[info.header_offset :][:30].tobytes()
    start = info.header_offset + 30 + sum(struct.unpack("<HH", header[26:]))
    if start + length > size:
        raise Refused(f"storage {tensor.storage.key[:40]!r} lies beyond the end of the file")
    return TorchTensor(whole[start : start + length].view(kind), dtype, tensor.offset, tensor.shape, tensor.strides)
