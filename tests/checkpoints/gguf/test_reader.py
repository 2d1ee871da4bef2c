"""Names of GGUF files, parts, types of weights, and what damaged and unknown files get."""

import shutil
import struct
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.gguf_files import random_tensors, replace, write_gguf
from support.golden import read_file

import specjax
from specjax import CheckpointError, ConfigError, RequestError
from specjax.checkpoints.config import read_shape
from specjax.checkpoints.gguf import reader
from specjax.checkpoints.gguf.packed import TYPES, PackedTensor
from specjax.checkpoints.gguf.reader import open_gguf
from specjax.checkpoints.weight_bytes import stored_bytes
from specjax.requests.chat import render_chat

RAW = read_file("llama_gqa")[1]
TENSORS = random_tensors(RAW)
TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"


@pytest.fixture
def path(tmp_path):
    return write_gguf(tmp_path / "model.gguf", TENSORS, RAW, lambda writer: writer.add_chat_template(TEMPLATE))


def assert_refused(error, path, *words, read=specjax.load) -> None:
    with pytest.raises(error) as caught:
        read(path)
    message = str(caught.value)
    assert all(word in message for word in words) and "\n" not in message, message


def test_a_file_and_its_directory_are_one_model(path):
    model = specjax.load(path)
    if (maps := Path("/proc/self/maps")).exists():
        assert str(path) not in maps.read_text()  # its pages would count as memory of the process
    assert model.config.dtype == "bfloat16" and str(model.model.embed[...].dtype) == "bfloat16"
    assert model.config.eos_token_ids == (2,) and model.tokenizer.chat_template == TEMPLATE
    assert str(specjax.load(str(path.parent), dtype="float32").model.embed[...].dtype) == "float32"
    assert read_shape(path) == read_shape(path.parent) == model.config
    assert stored_bytes(path) is None
    with pytest.raises(RequestError, match="is a file; only hub ids"):
        specjax.load(path, revision="main")


def test_a_draft_may_be_a_gguf_file(path):
    target = specjax.load(path)
    draft = specjax.load_drafter(path, target)
    assert isinstance(draft, specjax.LanguageModel) and draft.config == target.config


def test_all_parts_of_a_split_file_are_read(tmp_path, monkeypatch):
    whole = write_gguf(tmp_path / "whole.gguf", TENSORS, RAW)
    writer = gguf.GGUFWriter
    monkeypatch.setattr(gguf, "GGUFWriter", lambda path, name: writer(path, name, split_max_tensors=8))
    (tmp_path / "split").mkdir()
    write_gguf(tmp_path / "split" / "model.gguf", TENSORS, RAW)
    first, *others = sorted((tmp_path / "split").iterdir())
    assert first.name == f"model-00001-of-0000{len(others) + 1}.gguf" and len(others) > 1
    expected = open_gguf(whole)
    for name in (first, others[-1]):
        found = open_gguf(name)
        assert found.path == first and found.tensors.keys() == expected.tensors.keys()
        assert all(np.array_equal(x[:], expected.tensors[key][:]) for key, x in found.tensors.items())
    assert specjax.load(first.parent).config == specjax.load(whole).config
    shutil.copy(others[0], others[1])
    assert_refused(CheckpointError, first, "is also in an earlier part", "download all parts")
    others[0].unlink()
    assert_refused(CheckpointError, first, others[0].name, "is missing", "download all parts")
    shutil.copy(first, first.with_name("alone.gguf"))
    assert_refused(CheckpointError, first.with_name("alone.gguf"), "split.count", "download all parts")


def test_a_directory_with_several_files(path):
    shutil.copy(path, path.with_name("mmproj-model.gguf"))
    specjax.load(path.parent)
    shutil.copy(path, path.with_name("other.gguf"))
    assert_refused(CheckpointError, path.parent, "has 2 GGUF files", "name one")
    assert_refused(CheckpointError, path.with_name("none.gguf"), "No such file", "name a GGUF file that exists")
    assert_refused(CheckpointError, "models/none.gguf", "No such file", "name a GGUF file that exists")


@pytest.mark.parametrize("part", [0, 3, 6, 20, 0.02, 0.2, 0.3, 0.5, 0.999])
def test_files_that_are_cut_off(part, path):
    data = path.read_bytes()
    path.write_bytes(data[: part if isinstance(part, int) else int(len(data) * part)])
    assert_refused(CheckpointError, path, str(path), "download it again")


def test_damaged_files(path):
    """Whatever a single byte of the header becomes, the file is read or gets one line."""
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    messages = []
    for place in rng.integers(0, 4000, 60):
        path.write_bytes(data[:place] + bytes([data[place] ^ rng.integers(1, 256)]) + data[place + 1 :])
        try:
            specjax.load(path)
        except (CheckpointError, ConfigError) as error:
            messages.append(str(error))
    assert len(messages) > 5 and not [message for message in messages if "\n" in message]


@pytest.mark.parametrize("version", [1, 4])
def test_other_versions(version, path):
    data = path.read_bytes()
    path.write_bytes(data[:4] + struct.pack("<I", version) + data[8:])
    assert_refused(CheckpointError, path, f"version {version} is not supported", "use a file")


def test_big_endian_files(path):
    gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG).write_header_to_file()
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.close()
    assert_refused(CheckpointError, path, "big-endian", "use the little-endian file")


def test_types_that_are_not_read(path, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((1, 66), np.uint8), raw_dtype=gguf.GGMLQuantizationType.IQ2_XXS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_refused(CheckpointError, tmp_path / "a.gguf", "token_embd.weight", "type IQ2_XXS", "use a file with F32")
    data = bytearray(path.read_bytes())
    place = data.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    data[place : place + 4] = struct.pack("<I", 99)
    path.write_bytes(data)
    assert_refused(CheckpointError, path, "type number 99", "use a file with F32")


def changed(tmp_path, more, tensors=TENSORS):
    return write_gguf(tmp_path / "changed.gguf", tensors, RAW, more)


def test_unknown_metadata(tmp_path):
    cases = [
        ("general.architecture", "mamba", ConfigError, ("architecture 'mamba'", "use one of llama, ")),
        ("general.type", "adapter", ConfigError, ("holds 'adapter'", "name the file with the model")),
        ("llama.logit_scale", "2", ConfigError, ("'llama.logit_scale' = '2'", "use another file")),
        ("llama.rope.scaling.type", "dynamic", ConfigError, ("rope.scaling.type is 'dynamic'", "one of none, linear")),
        ("tokenizer.ggml.model", "bert", CheckpointError, ("tokenizer.ggml.model is 'bert'", "one of gpt2, llama")),
    ]
    for name, value, error, words in cases:
        assert_refused(error, changed(tmp_path, replace(name, value)), *words)

    def strange(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("strange")
        writer.add_token_list(["a"])
        writer.add_token_merges(["a a"])

    assert_refused(CheckpointError, changed(tmp_path, strange), "tokenizer.ggml.pre is 'strange'", "must be one of")
    fewer = {name: x for name, x in TENSORS.items() if "up_proj" not in name}
    assert_refused(CheckpointError, changed(tmp_path, lambda writer: None, fewer), "up_proj.weight is missing")


def test_sizes_that_do_not_fit_the_tensors(tmp_path):
    """They are found before the tensors are read, also where a draft is looked at."""
    model = lambda name, value: write_gguf(tmp_path / "a.gguf", TENSORS, RAW, replace(f"llama.{name}", value))
    target = specjax.load(model("context_length", 64))
    for name, value in [("attention.head_count", 3), ("block_count", 2**31 - 1), ("attention.head_count", 99)]:
        path = model(name, value)
        for read in (specjax.load, lambda path: specjax.load_drafter(path, target)):
            assert_refused((CheckpointError, ConfigError), path, str(path), read=read)
    odd = lambda written: written | {"blk.0.attn_k.weight": np.ones((7, 16), np.float32)}
    path = write_gguf(tmp_path / "a.gguf", TENSORS, RAW, form=odd)
    assert_refused(CheckpointError, path, "blk.0.attn_k.weight has shape (7, 16)", "download the file again")


def test_a_template_that_raises_spoils_conversations_only(tmp_path):
    template = "{{ raise_exception('only for children') }}"
    model = specjax.load(changed(tmp_path, lambda writer: writer.add_chat_template(template)))
    assert model.tokenizer("a")["input_ids"]
    conversation = [{"role": "user", "content": "a"}]
    assert_refused(RequestError, conversation, "only for children", read=lambda x: render_chat(model.tokenizer, x))


def test_without_the_extra(path, monkeypatch):
    reader._open.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert_refused(CheckpointError, path, "pip install 'specjax[gguf]'")


@pytest.mark.parametrize("kind", TYPES)
def test_slices_of_packed_tensors(kind):
    """The numbers of random blocks: all at once by the package, and rows and columns of a stack."""
    wanted = gguf.GGMLQuantizationType[kind]
    numbers, size = gguf.GGML_QUANT_SIZES[wanted]
    rng = np.random.default_rng(0)
    data = rng.integers(0, 60, (3, 5, 2 * size), np.uint8)
    data = data.view({"F32": np.float32, "F16": np.float16}.get(kind, np.uint8))
    tensor = PackedTensor(kind, [3, 5, 2 * numbers], data)
    whole = gguf.quants.dequantize(data, wanted)
    assert tensor.get_shape() == list(whole.shape) and tensor[:].dtype == np.float32
    for index in ((slice(None),), (slice(1, 3), slice(0, 4)), (slice(0, 1), slice(2, 5), slice(1, 2 * numbers - 1))):
        np.testing.assert_array_equal(tensor[index], whole[index])
