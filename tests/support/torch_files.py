"""Writes torch files without torch, byte by byte, also files that torch never writes."""

import io
import struct
import zipfile

import numpy as np

_STORAGES = {"float32": "FloatStorage", "int64": "LongStorage", "bool": "BoolStorage"}


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def tuple_of(*values: int) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def described(tensors: dict[str, np.ndarray]) -> bytes:
    """The pickle of an ordered dictionary of tensors, as torch writes it."""
    out = b"\x80\x02ccollections\nOrderedDict\n)R("
    for i, (name, x) in enumerate(tensors.items()):
        kind = b"ctorch\n" + _STORAGES[str(x.dtype)].encode() + b"\n"
        storage = b"(" + text("storage") + kind + text(str(i)) + text("cpu") + number(x.size) + b"tQ"
        strides = tuple_of(*(stride // x.itemsize for stride in x.strides))
        out += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n("
        out += storage + number(0) + tuple_of(*x.shape) + strides + b"\x89ccollections\nOrderedDict\n)RtR"
    return out + b"u."


def torch_file(
    tensors: dict[str, np.ndarray],
    code: bytes | None = None,
    folder: str = "archive",
    compressed: bool = False,
    order=b"little",
) -> bytes:
    """The bytes of a torch file with these tensors, described by ``code`` or truly."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{folder}/data.pkl", described(tensors) if code is None else code)
        archive.writestr(f"{folder}/byteorder", order)
        for i, x in enumerate(tensors.values()):
            archive.writestr(f"{folder}/data/{i}", x.tobytes("A"))  # in the order of its strides
    return file.getvalue()
