"""Tensors of torch files, without torch and without pickle.

A torch file is a zip archive: ``data.pkl`` describes the tensors, and each storage is a file of
bytes beside it. Python's pickle would import and call every name in ``data.pkl``. This module
interprets only the opcodes that descriptions of tensors need. It looks names up in a table. It
never imports or calls anything that the file names.
"""

import dataclasses
import math
import pickletools
import struct
import zipfile
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ..errors import CheckpointError

_DTYPES = {
    "DoubleStorage": ("F64", np.float64), "FloatStorage": ("F32", np.float32), "HalfStorage": ("F16", np.float16),
    "BFloat16Storage": ("BF16", ml_dtypes.bfloat16), "LongStorage": ("I64", np.int64), "IntStorage": ("I32", np.int32),
    "ShortStorage": ("I16", np.int16), "CharStorage": ("I8", np.int8), "ByteStorage": ("U8", np.uint8),
    "BoolStorage": ("BOOL", np.bool_),
}  # fmt: skip
"""The name in safetensors and the numpy type of each storage class of torch."""

_ORDERED = "collections.OrderedDict"
_TENSOR = "torch._utils._rebuild_tensor_v2"
_PARAMETER = "torch._utils._rebuild_parameter"
_ADMITTED = {_ORDERED, _TENSOR, _PARAMETER, *(f"torch.{name}" for name in _DTYPES)}

_DAMAGE = (
    AttributeError, EOFError, IndexError, KeyError, MemoryError, RuntimeError, TypeError, ValueError, struct.error,
)  # fmt: skip
"""Errors of Python's readers on damaged files. RecursionError is a RuntimeError."""

_LARGEST = 1 << 26
"""Bytes of the largest description. Descriptions of large models take some hundred kilobytes."""

_MOST_OPCODES = 1 << 20
"""Opcodes of the longest description. A tensor takes about 30."""

_MOST_AXES = 8
"""Axes of a tensor."""


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


class _Name(NamedTuple):
    """A name that the file imports and that is admitted."""

    dotted: str


class _Storage(NamedTuple):
    kind: str
    key: str
    numel: int


class _Described(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Refused(Exception):
    """The reason for which a file is refused."""


def open_torch(path: Path) -> dict[str, TorchTensor]:
    """The tensors of a torch file by name. The bytes of a tensor are read when it is indexed.

    Raises FileNotFoundError, and CheckpointError for a file that is damaged or holds anything but a
    dictionary of tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            folder, code = _description(archive)
            described = _interpret(code)
            only_tensors = isinstance(described, dict) and all(isinstance(x, _Described) for x in described.values())
            if not only_tensors:
                raise _Refused("it is not a dictionary of tensors")
            size = path.stat().st_size
            whole = np.asarray(np.memmap(path, np.uint8, "r"))
            return {name: _map(tensor, folder, archive, whole, size) for name, tensor in described.items()}
    except _Refused as reason:
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
        raise _Refused("it holds no data.pkl, so it is not a torch file")
    folder = files[0].filename.removesuffix("data.pkl")
    order = archive.NameToInfo.get(folder + "byteorder")
    if order and (order.file_size != len("little") or archive.read(order) != b"little"):
        raise _Refused("its bytes are not little-endian")
    if files[0].file_size > _LARGEST or files[0].compress_type != zipfile.ZIP_STORED:
        raise _Refused(f"its description is compressed or larger than {_LARGEST} bytes, which torch never writes")
    return folder, archive.read(files[0])


def _interpret(code: bytes):
    """The object that the pickle describes. A ``_Described`` stands for each tensor."""
    stack, marks, memo = [], [], {}

    def since_mark() -> list:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for count, (opcode, argument, _) in enumerate(pickletools.genops(code)):
        if count == _MOST_OPCODES:
            raise _Refused(f"its description has more than {_MOST_OPCODES} opcodes")
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack.pop()
            case "MARK":
                marks.append(len(stack))
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode.name == "NEWTRUE")
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                length = int(opcode.name[-1])
                items = tuple(stack[-length:])
                del stack[-length:]
                stack.append(items)
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "APPEND":
                item = stack.pop()
                _extend(stack[-1], [item])
            case "APPENDS":
                items = since_mark()
                _extend(stack[-1], items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _update(stack[-1], [key, value])
            case "SETITEMS":
                items = since_mark()
                _update(stack[-1], items)
            case "GLOBAL":
                stack.append(_admit(str(argument).replace(" ", ".")))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                if not isinstance(name, str) or not isinstance(module, str):
                    raise _Refused("it imports a name that is no string")
                stack.append(_admit(f"{module}.{name}"))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_call(function, arguments))
            case "BUILD":  # attributes of a dictionary, such as the versions of modules
                stack.pop()
                if not isinstance(stack[-1], dict):
                    raise _Refused("it sets attributes of an object that is no dictionary")
            case other:
                raise _Refused(f"it uses the opcode {other}, which no tensor needs")
    raise _Refused("it ends too early")


def _admit(dotted: str) -> _Name:
    if dotted not in _ADMITTED:
        raise _Refused(f"it asks for {dotted[:80]!r}, which no tensor needs")
    return _Name(dotted)


def _call(function, arguments):
    """The result of an admitted call."""
    if not isinstance(function, _Name) or not isinstance(arguments, tuple):
        raise _Refused("it calls an object that is no function")
    if function.dotted == _ORDERED and not arguments:
        return {}
    if function.dotted == _TENSOR and len(arguments) >= 4:
        return _describe(*arguments[:4])
    if function.dotted == _PARAMETER and arguments and isinstance(arguments[0], _Described):
        return arguments[0]
    raise _Refused(f"it calls {function.dotted} in a way that torch does not")


def _storage(reference) -> _Storage:
    """The storage of torch's reference ("storage", type, key, device, number of elements)."""
    if not isinstance(reference, tuple) or len(reference) != 5 or not isinstance(reference[1], _Name):
        raise _Refused("it refers to an object that is no storage")
    kind, key, numel = reference[1].dotted.removeprefix("torch."), reference[2], reference[4]
    if reference[0] != "storage" or kind not in _DTYPES or not isinstance(key, str) or not _is_natural(numel):
        raise _Refused("it refers to an object that is no storage")
    return _Storage(kind, key, numel)


def _describe(storage, offset, shape, strides) -> _Described:
    """The tensor on a storage.

    Raises _Refused for a tensor that reaches beyond the storage or has too many axes.
    """
    if not isinstance(storage, _Storage) or not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise _Refused("it describes an object that is no tensor")
    if len(shape) > _MOST_AXES:
        raise _Refused(f"it describes a tensor of {len(shape)} axes; at most {_MOST_AXES} are read")
    if len(shape) != len(strides) or not all(map(_is_natural, (offset, *shape, *strides))):
        raise _Refused("it describes an object that is no tensor")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides))
    size = math.prod(shape)
    if math.prod(n for n in shape if n) > max(storage.numel, 1) or size > 0 and last >= storage.numel:
        raise _Refused(f"a tensor of shape {shape} reaches beyond its storage of {storage.numel}")
    return _Described(storage, offset, shape, strides if size else (0,) * len(shape))


def _is_natural(n) -> bool:
    return type(n) is int and 0 <= n < 1 << 48


def _extend(items, more: list) -> None:
    if not isinstance(items, list):
        raise _Refused("it appends to an object that is no list")
    items.extend(more)


def _update(entries, keys_and_values: list) -> None:
    keys = keys_and_values[::2]
    if not isinstance(entries, dict) or len(keys_and_values) % 2 or not all(isinstance(key, str) for key in keys):
        raise _Refused("it sets entries without names, or entries of an object that is no dictionary")
    entries.update(zip(keys, keys_and_values[1::2]))


def _map(tensor: _Described, folder: str, archive: zipfile.ZipFile, whole: np.ndarray, size: int) -> TorchTensor:
    """The tensor on the bytes of the file, ``whole`` [size]."""
    name = f"{folder}data/{tensor.storage.key}"
    dtype, kind = _DTYPES[tensor.storage.kind]
    if name not in archive.NameToInfo:
        raise _Refused(f"storage {tensor.storage.key[:40]!r} is missing")
    info = archive.NameToInfo[name]
    length = tensor.storage.numel * np.dtype(kind).itemsize
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != length or info.compress_size != length:
        raise _Refused(f"storage {tensor.storage.key[:40]!r} has {info.file_size} bytes, not {length}")
    # A local header has 30 bytes. Its last four are the lengths of the name and the extra field,
    # which stand between the header and the data.
    header = whole[info.header_offset :][:30].tobytes()
    start = info.header_offset + 30 + sum(struct.unpack("<HH", header[26:]))
    if start + length > size:
        raise _Refused(f"storage {tensor.storage.key[:40]!r} lies beyond the end of the file")
    return TorchTensor(whole[start : start + length].view(kind), dtype, tensor.offset, tensor.shape, tensor.strides)
