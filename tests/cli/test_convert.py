"""``specjax convert``: the checkpoint that it writes is the model of the file."""

import json

import jax
import numpy as np
import pytest
from flax import nnx
from support.command_line import assert_one_line, specjax_main
from support.gguf_cases import raw_config
from support.gguf_files import random_tensors, write_gguf
from support.odd_texts import odd_texts

import specjax
from specjax.checkpoints import shards

TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"


def write(path, name: str):
    raw = raw_config(name)
    return write_gguf(path, random_tensors(raw), raw, lambda writer: writer.add_chat_template(TEMPLATE))


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "deepseek_v3", "qwen3_moe", "gpt_oss"])
def test_the_checkpoint_is_the_model_of_the_file(name, specjax_main, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD", 20_000)  # several files
    path, output = write(tmp_path / "model.gguf", name), tmp_path / "new"
    code, out, err = specjax_main("convert", path, output, "--dtype", "float32")
    assert (code, err) == (0, "") and out.startswith(f"{output}: {path} in float32")
    theirs, ours = specjax.load(path, dtype="float32"), specjax.load(output)
    assert ours.config == theirs.config.replace(dtype="float32")
    jax.tree.map(np.testing.assert_array_equal, nnx.state(ours.model), nnx.state(theirs.model))
    assert ours.tokenizer.chat_template == TEMPLATE
    texts = odd_texts(80)
    assert ours.tokenizer(texts)["input_ids"] == theirs.tokenizer(texts)["input_ids"]


@pytest.mark.parametrize("name, form", [("model.gguf", "stored"), ("full", "int4")])
def test_a_quantised_checkpoint_is_the_quantised_model(name, form, specjax_main, tmp_path):
    """A quantised one; the original is not read again."""
    write(tmp_path / "model.gguf", "llama")
    specjax.save(specjax.load(tmp_path / "model.gguf", dtype="float32"), tmp_path / "full")
    (tmp_path / "full" / "generation_config.json").write_text('{"temperature": 0.7, "do_sample": true}')
    code, out, _ = specjax_main("convert", tmp_path / name, tmp_path / "new", "--quantize", form)
    assert code == 0 and out.startswith(f"{tmp_path / 'new'}: {tmp_path / name} in {form}")
    found, wanted = specjax.load(tmp_path / "new"), specjax.load(tmp_path / name, quantize=form)
    assert jax.tree.structure(nnx.state(found.model)) == jax.tree.structure(nnx.state(wanted.model))
    jax.tree.map(np.testing.assert_array_equal, nnx.state(found.model), nnx.state(wanted.model))
    assert found.sampling == wanted.sampling
    assert found.tokenizer("a b")["input_ids"] == wanted.tokenizer("a b")["input_ids"]


def test_the_files_of_a_checkpoint(specjax_main, tmp_path):
    path, output = write(tmp_path / "model.gguf", "llama"), tmp_path / "new"
    assert specjax_main("convert", path, output)[0] == 0
    names = "config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json"
    assert sorted(file.name for file in output.iterdir()) == names.split()
    read = lambda name: json.loads((output / name).read_text())
    assert read("generation_config.json") == {"bos_token_id": 1, "eos_token_id": [2]}
    assert read("config.json")["dtype"] == "bfloat16"
    assert read("tokenizer_config.json")["chat_template"] == TEMPLATE
    model = specjax.load(output).model
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model), nnx.state(specjax.load(path).model))


def test_bad_input_gets_one_line(specjax_main, tmp_path):
    path = write(tmp_path / "model.gguf", "llama")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    for argv, words in [
        ((path, tmp_path / "full"), "is not empty; name a new directory"),
        ((path,), "DIR"),
        (("tiny-python", tmp_path / "new"), "not a GGUF file"),
        ((tmp_path / "none.gguf", tmp_path / "new"), "No such file"),
    ]:
        assert_one_line(specjax_main("convert", *argv), words)
    assert not (tmp_path / "new").exists()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert_one_line(specjax_main("convert", path, tmp_path / "new"), "download it again")
