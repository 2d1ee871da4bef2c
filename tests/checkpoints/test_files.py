"""Files of a checkpoint: limits of JSON, indexes within their directory, and regular files only."""

import json
import os
import shutil

import numpy as np
import pytest

from specjax.checkpoints.files import check_file, is_gguf, read_json, weight_files
from specjax.checkpoints.hub import ZOO, find
from specjax.checkpoints.layouts.base import RawCheckpoint
from specjax.checkpoints.layouts.draft_vocabulary import check_offsets
from specjax.checkpoints.load import load
from specjax.checkpoints.torch_files import TorchTensor
from specjax.core.read_files import LARGEST_JSON
from specjax.errors import CheckpointError


def refusal(path) -> str:
    with pytest.raises(CheckpointError) as error:
        read_json(path)
    assert str(path.parent) in str(error.value) and "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":['])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("depth", [90, 200, 990, 200_000])
def test_deeply_nested_json_gets_one_line(tmp_path, opening, closed, depth):
    closing = {"[": "]", "{": "}"}
    end = "".join(closing[bracket] for bracket in reversed(opening) if bracket in closing)
    path = tmp_path / "config.json"
    path.write_text('{"a": ' + opening * depth + "0" + end * depth * closed + "}")
    if closed and depth == 90 and len(end) == 1:
        assert read_json(path)
    else:
        named = ["nests too deeply; use at most 100 levels"] + ["is not JSON"] * (not closed)
        assert any(name in refusal(path) for name in named)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"3", b"null", b"\xff\xfe\xff", b"{} {}", b'{"a": 1' + b"0" * 5000 + b"}"]
)
def test_a_file_that_is_no_json_object_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    message = refusal(tmp_path / "config.json")
    assert "is not JSON" in message and message.endswith("download it again")


def test_a_file_that_is_missing_or_irregular_is_refused(tmp_path):
    assert "no config.json here; name a directory" in refusal(tmp_path / "config.json")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    os.symlink("/dev/zero", tmp_path / "device")
    for name in ("directory", "pipe", "device"):
        assert "not a regular file" in refusal(tmp_path / name)
    (tmp_path / "file").write_text("{}")
    os.symlink(tmp_path / "file", tmp_path / "link")  # as in the hub's cache
    check_file(tmp_path / "link")


def test_an_adapter_and_a_folder_of_the_hubs_cache_get_their_own_mends(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "it is an adapter: name its base as the model" in refusal(tmp_path / "config.json")
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    assert refusal(tmp_path / "models--a--b" / "config.json").endswith(f"name {snapshot}")


def test_a_checkpoint_in_a_folder_below_is_named(tmp_path):
    (tmp_path / "Q4_1").mkdir()
    (tmp_path / "Q4_1" / "model").write_bytes(b"GGUF")
    assert refusal(tmp_path / "config.json").endswith(f"name a file in it, such as {tmp_path / 'Q4_1' / 'model'}")
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "config.json").write_text("{}")
    assert refusal(tmp_path / "config.json").endswith(f"name a directory in it, such as {tmp_path / 'final'}")


@pytest.mark.parametrize("name", ["sha256-0123", "model", "model.bin"])
def test_a_gguf_file_is_known_by_its_first_bytes(name, tmp_path):
    """Ollama's blobs have no ending, and a download may lose it."""
    file = tmp_path / name
    file.write_bytes(b"GGUF")
    assert is_gguf(file) and find(file) == find(tmp_path) == file
    file.write_bytes(b'{"model_format": "gguf"}')
    assert not is_gguf(file) and not is_gguf(tmp_path / "sha256-4567")


def test_the_ending_of_a_gguf_file_may_be_large_and_a_directory_may_have_it(tmp_path):
    assert is_gguf("MODEL.GGUF") and is_gguf("missing.gguf")
    (tmp_path / "a.gguf").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert not is_gguf(tmp_path / "a.gguf") and not is_gguf(tmp_path / "pipe")
    assert find(tmp_path / "a.gguf") == tmp_path / "a.gguf"


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json"])
def test_a_pointer_of_git_lfs_is_named(file, tmp_path):
    shutil.copytree(ZOO / "tiny-python-draft", tmp_path / "model")
    if file == "pytorch_model.bin":
        (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(CheckpointError, match=f"{file}: a pointer of git-lfs .*; fetch the file with git lfs pull"):
        load(tmp_path / "model")


@pytest.mark.parametrize("name", ["t2d", "d2t"])
@pytest.mark.parametrize("value", [np.array(True), np.zeros(0, bool), np.ones((8, 1), bool)])
def test_tensors_of_a_draft_vocabulary_have_one_axis(name, value):
    tensors = {"t2d": np.ones(8, bool), "d2t": np.zeros(8, np.int64)} | {name: value}
    checkpoint = RawCheckpoint(
        {}, {key: TorchTensor(v.ravel(), "BOOL", 0, v.shape, v.strides) for key, v in tensors.items()}, "here"
    )
    with pytest.raises(CheckpointError, match=f"here: {name} has the shape"):
        check_offsets(tensors["d2t"], 8, checkpoint)


def test_a_file_that_is_too_large_is_refused_unread(tmp_path):
    path = tmp_path / "config.json"
    path.touch()
    os.truncate(path, LARGEST_JSON + 1)
    assert f"above the limit of {LARGEST_JSON:,} bytes" in refusal(path)


def write_index(directory, weight_map) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    "file", ["../x.safetensors", "/etc/passwd", "a/x.safetensors", "..", ".", "", "a\\b", "a\0b", 3, None, ["x"]]
)
def test_an_index_names_files_of_its_own_directory(tmp_path, file):
    write_index(tmp_path, {"a": "fine.safetensors", "b": file})
    with pytest.raises(CheckpointError, match="name a file in the directory of the index") as error:
        weight_files(tmp_path)
    assert "'b'" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("weight_map", [None, [], {}, "x", 3])
def test_an_index_without_a_map_is_refused(tmp_path, weight_map):
    write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match="not an index of weights"):
        weight_files(tmp_path)


def test_one_file_counts_before_an_index_that_it_replaced(tmp_path):
    """``save_pretrained`` leaves the index of earlier shards, and transformers reads the one file."""
    write_index(tmp_path, {"a": "model-00001-of-00002.safetensors"})
    (tmp_path / "model.safetensors").touch()
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]


@pytest.mark.parametrize("name", ["model-{}-of-00002.safetensors", "pytorch_model-{}-of-00002.bin"])
def test_shards_without_their_index_are_all_read(name, tmp_path):
    shards = [tmp_path / name.format(f"{i:05}") for i in (1, 2)]
    for shard in shards:
        shard.touch()
    assert weight_files(tmp_path) == shards


def test_files_of_an_index_are_listed_once(tmp_path):
    write_index(tmp_path, {"a": "two.safetensors", "b": "one.safetensors", "c": "two.safetensors"})
    assert weight_files(tmp_path) == [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
