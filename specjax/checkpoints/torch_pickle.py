"""Descriptions of tensors in the pickle of a torch file, without pickle.

Python's pickle would import and call every name in the file. This module interprets only the
opcodes that descriptions of tensors need. It looks names up in a table. It never imports or calls
anything that the file names.
"""

import math
import pickletools
from typing import NamedTuple

import ml_dtypes
import numpy as np

DTYPES = {
    "DoubleStorage": ("F64", np.float64), "FloatStorage": ("F32", np.float32), "HalfStorage": ("F16", np.float16),
    "BFloat16Storage": ("BF16", ml_dtypes.bfloat16), "LongStorage": ("I64", np.int64), "IntStorage": ("I32", np.int32),
    "ShortStorage": ("I16", np.int16), "CharStorage": ("I8", np.int8), "ByteStorage": ("U8", np.uint8),
    "BoolStorage": ("BOOL", np.bool_),
}  # fmt: skip
"""The name in safetensors and the numpy type of each storage class of torch."""

_ORDERED = "collections.OrderedDict"
_TENSOR = "torch._utils._rebuild_tensor_v2"
_PARAMETER = "torch._utils._rebuild_parameter"
_ADMITTED = {_ORDERED, _TENSOR, _PARAMETER, *(f"torch.{name}" for name in DTYPES)}

_MOST_OPCODES = 1 << 20
"""Opcodes of the longest description. A tensor takes about 30."""

_MOST_AXES = 8
"""Axes of a tensor."""


class _Name(NamedTuple):
    """A name that the file imports and that is admitted."""

    dotted: str


class DescribedStorage(NamedTuple):
    """The file ``key`` of the archive, with ``numel`` elements of a storage class of ``DTYPES``."""

    kind: str
    key: str
    numel: int


class DescribedTensor(NamedTuple):
    """A tensor on a storage.

    ``offset``, ``shape`` and ``strides`` are in elements of the storage, and lie within its bounds.
    """

    storage: DescribedStorage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Refused(Exception):
    """The reason for which a file is refused."""


def read_description(code: bytes):
    """The object that the pickle describes. A ``DescribedTensor`` stands for each tensor.

    Raises Refused for a pickle that does more than describe tensors. A damaged pickle raises the
    errors of ``pickletools`` and of Python's containers.
    """
    stack, marks, memo = [], [], {}

    def since_mark() -> list:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for count, (opcode, argument, _) in enumerate(pickletools.genops(code)):
        if count == _MOST_OPCODES:
            raise Refused(f"its description has more than {_MOST_OPCODES} opcodes")
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
                    raise Refused("it imports a name that is no string")
                stack.append(_admit(f"{module}.{name}"))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_call(function, arguments))
            case "BUILD":  # attributes of a dictionary, such as the versions of modules
                stack.pop()
                if not isinstance(stack[-1], dict):
                    raise Refused("it sets attributes of an object that is no dictionary")
            case other:
                raise Refused(f"it uses the opcode {other}, which no tensor needs")
    raise Refused("it ends too early")


def _admit(dotted: str) -> _Name:
    if dotted not in _ADMITTED:
        raise Refused(f"it asks for {dotted[:80]!r}, which no tensor needs")
    return _Name(dotted)


def _call(function, arguments):
    """The result of an admitted call."""
    if not isinstance(function, _Name) or not isinstance(arguments, tuple):
        raise Refused("it calls an object that is no function")
    if function.dotted == _ORDERED and not arguments:
        return {}
    if function.dotted == _TENSOR and len(arguments) >= 4:
        return _describe(*arguments[:4])
    if function.dotted == _PARAMETER and arguments and isinstance(arguments[0], DescribedTensor):
        return arguments[0]
    raise Refused(f"it calls {function.dotted} in a way that torch does not")


def _storage(reference) -> DescribedStorage:
    """The storage of torch's reference ("storage", type, key, device, number of elements)."""
    if not isinstance(reference, tuple) or len(reference) != 5 or not isinstance(reference[1], _Name):
        raise Refused("it refers to an object that is no storage")
    kind, key, numel = reference[1].dotted.removeprefix("torch."), reference[2], reference[4]
    if reference[0] != "storage" or kind not in DTYPES or not isinstance(key, str) or not _is_natural(numel):
        raise Refused("it refers to an object that is no storage")
    return DescribedStorage(kind, key, numel)


def _describe(storage, offset, shape, strides) -> DescribedTensor:
    """The tensor on a storage.

    Raises Refused for a tensor that reaches beyond the storage or has too many axes.
    """
    if not isinstance(storage, DescribedStorage) or not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise Refused("it describes an object that is no tensor")
    if len(shape) > _MOST_AXES:
        raise Refused(f"it describes a tensor of {len(shape)} axes; at most {_MOST_AXES} are read")
    if len(shape) != len(strides) or not all(map(_is_natural, (offset, *shape, *strides))):
        raise Refused("it describes an object that is no tensor")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides))
    size = math.prod(shape)
    if math.prod(n for n in shape if n) > max(storage.numel, 1) or size > 0 and last >= storage.numel:
        raise Refused(f"a tensor of shape {shape} reaches beyond its storage of {storage.numel}")
    return DescribedTensor(storage, offset, shape, strides if size else (0,) * len(shape))


def _is_natural(n) -> bool:
    return type(n) is int and 0 <= n < 1 << 48


def _extend(items, more: list) -> None:
    if not isinstance(items, list):
        raise Refused("it appends to an object that is no list")
    items.extend(more)


def _update(entries, keys_and_values: list) -> None:
    keys = keys_and_values[::2]
    if not isinstance(entries, dict) or len(keys_and_values) % 2 or not all(isinstance(key, str) for key in keys):
        raise Refused("it sets entries without names, or entries of an object that is no dictionary")
    entries.update(zip(keys, keys_and_values[1::2]))
