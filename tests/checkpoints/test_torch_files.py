"""Torch files: tensors are read, nothing is run, and no small file takes much time or memory."""

import io
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest
from support.torch_files import described, number, text, torch_file, tuple_of

from specjax.checkpoints import torch_pickle
from specjax.checkpoints.torch_files import open_torch
from specjax.errors import CheckpointError

TENSOR = np.arange(6, dtype=np.float32).reshape(2, 3)


def refusal(path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        open_torch(path)
    message = str(error.value)
    assert message.startswith(str(path)) and "\n" not in message and len(message) < 400
    return message


def test_tensors_are_read_by_slices(tmp_path):
    wanted = {"a": TENSOR, "b": np.arange(5), "c": np.array([True, False]), "turned": TENSOR.T.copy().T}
    (tmp_path / "x.bin").write_bytes(torch_file(wanted))
    found = open_torch(tmp_path / "x.bin")
    assert {name: (x.get_shape(), x.get_dtype()) for name, x in found.items()} == {
        "a": ([2, 3], "F32"),
        "b": ([5], "I64"),
        "c": ([2], "BOOL"),
        "turned": ([2, 3], "F32"),
    }
    np.testing.assert_array_equal(found["a"][1:, :2], TENSOR[1:, :2])
    np.testing.assert_array_equal(found["turned"][:, 1:], TENSOR[:, 1:])
    np.testing.assert_array_equal(found["b"][1:3], [1, 2])


def attack(function: str, argument: str) -> bytes:
    return b"c" + function.encode() + b"\n(" + text(argument) + b"tR"


class Exploit:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        import os

        return os.system, (self.command,)


def exploits(command: str) -> dict[str, bytes]:
    """Descriptions that would run ``command`` in pickle or that lie, by a word of their refusal."""
    tensor = described({"a": TENSOR})
    whole, inside = b"\x80\x02}(", text("b")
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(6) + b"tQ"
    rebuild = lambda *arguments: (
        whole + inside + b"ctorch._utils\n_rebuild_tensor_v2\n(" + b"".join(arguments) + b"\x89}tRu."
    )
    return {
        "os.system": b"\x80\x02" + attack("os\nsystem", command) + b".",
        "posix.system": pickle.dumps(Exploit(command), 4),
        "'posix.system": pickle.dumps({"a": [Exploit(command)]}, 2),
        "after a tensor: 'os.system": tensor[:-2] + inside + attack("os\nsystem", command) + b"u.",
        "before it is dropped: 'os.system": b"\x80\x02" + attack("os\nsystem", command) + b"0" + tensor[2:],
        "builtin__.eval": b"\x80\x02" + attack("__builtin__\neval", f"__import__('os').system({command!r})") + b".",
        "builtins.getattr": b"\x80\x02cbuiltins\ngetattr\n("
        + b"ctorch._utils\n_rebuild_tensor_v2\n"
        + text("__globals__")
        + b"tR.",
        "__globals__": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2.__globals__\n.",
        "torch.load": b"\x80\x02" + attack("torch\nload", command) + b".",
        "opcode INST": b"(" + text(command) + b"ios\nsystem\n.",
        "opcode OBJ": b"(ctorch\nFloatStorage\n" + text(command) + b"o.",
        "opcode NEWOBJ": b"\x80\x02ccollections\nOrderedDict\n)\x81.",
        "opcode EXT1": b"\x80\x02\x82\x01.",
        "opcode PERSID": b"P0\n.",
        "FloatStorage in a way": b"\x80\x02ctorch\nFloatStorage\n(" + number(1 << 30) + b"tR.",
        "OrderedDict in a way": b"\x80\x02ccollections\nOrderedDict\n(]tR.",
        "no function": b"\x80\x02" + text("os.system") + b"(" + text(command) + b"tR.",
        "no dictionary": b"\x80\x02ccollections\nOrderedDict\n}b.",
        "a name that is no string": b"\x80\x04]]\x93.",
        "no storage": b"\x80\x02" + text(command) + b"Q.",
        "kind: no storage": b"\x80\x02("
        + text("storage")
        + b"ccollections\nOrderedDict\n"
        + text("0")
        + text("cpu")
        + number(6)
        + b"tQ.",
        "reaches beyond": rebuild(storage, number(1), tuple_of(2, 3), tuple_of(3, 1)),
        "strides: reaches beyond": rebuild(storage, number(0), tuple_of(2, 3), tuple_of(4, 1)),
        "expanded: reaches beyond": rebuild(storage, number(0), tuple_of(1 << 30, 1 << 30), tuple_of(0, 0)),
        "negative: no tensor": rebuild(storage, number(-1), tuple_of(2, 3), tuple_of(3, 1)),
        "backwards: no tensor": rebuild(storage, number(5), tuple_of(2, 3), tuple_of(-3, 1)),
        "axes: no tensor": rebuild(storage, number(0), tuple_of(2, 3), tuple_of(1)),
        "numel: 24 bytes, not 28": rebuild(
            storage.replace(number(6), number(7)), number(0), tuple_of(2, 3), tuple_of(3, 1)
        ),
        "key: storage '9' is missing": rebuild(
            storage.replace(text("0"), text("9")), number(0), tuple_of(2, 3), tuple_of(3, 1)
        ),
        "path: is missing": rebuild(
            storage.replace(text("0"), text("../../../etc/passwd")), number(0), tuple_of(2, 3), tuple_of(3, 1)
        ),
        "list: not a dictionary of tensors": b"\x80\x02].",
        "values: not a dictionary of tensors": whole + inside + number(1) + b"u.",
        "keys: without names": whole + number(1) + number(1) + b"u.",
        "memo: corrupt": b"\x80\x02h\x07.",
        "empty: corrupt": b"",
        "stop: corrupt": b"\x80\x02.",
        "cut: corrupt": tensor[:-20],
        "mark: corrupt": b"\x80\x02t.",
        "bytes: corrupt": bytes(range(250)),
    }


CASES = list(exploits(""))


@pytest.mark.parametrize("case", CASES)
def test_a_malicious_file_runs_nothing(tmp_path, case):
    sentinel = tmp_path / "executed"
    code = exploits(f"touch {sentinel}")[case]
    assert case.split(": ")[-1].strip("'") in refusal(tmp_path / "x.bin", torch_file({"a": TENSOR}, code))
    assert not sentinel.exists()


def test_pickle_itself_would_run_them(tmp_path):
    for i, case in enumerate(("os.system", "posix.system", "after a tensor: 'os.system")):
        code = exploits(f"touch {tmp_path / str(i)}")[case]
        pickle.loads(code if i < 2 else b"\x80\x02}(" + code[code.index(b"X\x01\x00\x00\x00b") :])
        assert (tmp_path / str(i)).exists()


DEEP = b")" + b"\x85" * 100_000  # tuples of one entry within one another
STORAGE = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(6) + b"tQ"
REBUILD = b"\x80\x02}(" + text("b") + b"ctorch._utils\n_rebuild_tensor_v2\n("
MANY_AXES = b"(" + number(2**31 - 1) * 50_000 + b"t"
EMPTY = (
    b"(" + b"\x8a\x06" + (2**46).to_bytes(6, "little") + number(0) + b"\x8a\x06" + (2**46).to_bytes(6, "little") + b"t"
)
BOMBS = {
    "tuples: not a dictionary of tensors": b"\x80\x02" + DEEP + b".",
    "key: no storage": REBUILD
    + STORAGE.replace(text("0"), DEEP)
    + number(0)
    + tuple_of(6)
    + tuple_of(1)
    + b"\x89}tRu.",
    "shape: no tensor": REBUILD + STORAGE + number(0) + DEEP + tuple_of(1) + b"\x89}tRu.",
    "50000 axes; at most 8": REBUILD + STORAGE + number(0) + MANY_AXES + MANY_AXES + b"\x89}tRu.",
    "empty: reaches beyond its storage": REBUILD + STORAGE + number(0) + EMPTY + tuple_of(1, 1, 1) + b"\x89}tRu.",
}


@pytest.mark.parametrize("case", BOMBS)
def test_a_description_of_huge_or_deep_objects_is_refused_in_a_few_seconds(tmp_path, case):
    """The product of 50,000 axes alone would take minutes."""
    assert case.split(": ")[-1] in refusal(tmp_path / "x.bin", torch_file({"a": TENSOR}, BOMBS[case]))


def test_a_description_of_too_many_opcodes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_pickle, "_MOST_OPCODES", 1000)
    assert "more than 1000 opcodes" in refusal(tmp_path / "x.bin", torch_file({"a": TENSOR}, b"\x80\x02" + b"]" * 1000))


@pytest.mark.parametrize("member", ["byteorder", "data.pkl"])
def test_a_huge_member_is_refused_unread(tmp_path, member):
    size = 1 << 27
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        contents = {"data.pkl": described({"a": TENSOR}), "byteorder": b"little", "data/0": TENSOR.tobytes()}
        for name, content in (contents | {member: bytes(size)}).items():
            stored = zipfile.ZIP_DEFLATED if name == member else zipfile.ZIP_STORED
            archive.writestr(f"archive/{name}", content, stored)
    tracemalloc.start()
    message = refusal(tmp_path / "x.bin", file.getvalue())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ("little-endian" if member == "byteorder" else "larger than") in message
    assert peak < size / 8
