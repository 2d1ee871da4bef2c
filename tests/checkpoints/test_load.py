"""Checkpoints: bit-for-bit round trips, any file layout and mesh, and one error that lists every fault."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY, byte_tokenizer, language_model, tiny_model
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import specjax
from specjax.checkpoints.tensors import load_model, save_model
from specjax.errors import CheckpointError
from specjax.parallel import make_mesh


@pytest.fixture
def checkpoint(tmp_path):
    save_model(tiny_model(), tmp_path)
    return tmp_path


def leaves(model):
    return [np.asarray(x) for x in jax.tree.leaves(nnx.state(model))]


def same(a, b) -> bool:
    return all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in zip(leaves(a), leaves(b), strict=True))


def edit(directory, change) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("options", [{}, dict(family="qwen3", qk_norm=True, tie_embeddings=True), dict(family="qwen2", qkv_bias=True)])
def test_round_trip_bit_for_bit(tmp_path, dtype, options):
    graph, params = nnx.split(tiny_model(3, **options))
    model = nnx.merge(graph, jax.tree.map(lambda x: x.astype(dtype), params))
    save_model(model, tmp_path / "one")
    loaded = load_model(tmp_path / "one")
    assert same(model, loaded) and loaded.config.dtype == dtype
    save_model(loaded, tmp_path / "two")
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "two/model.safetensors").read_bytes()
    assert (tmp_path / "one/config.json").read_bytes() == (tmp_path / "two/config.json").read_bytes()


def test_fused_parameters_hold_the_checkpoints_rows(checkpoint):
    """Key head 1 of query, key and value against the file, row by row."""
    D, G, layer = TINY.head_dim, TINY.num_heads // TINY.num_kv_heads, load_model(checkpoint).layers[1]
    with safe_open(checkpoint / "model.safetensors", "numpy") as file:
        q, k, v = (file.get_tensor(f"model.layers.1.self_attn.{x}_proj.weight") for x in "qkv")
        gate, up = (file.get_tensor(f"model.layers.1.mlp.{x}_proj.weight") for x in ("gate", "up"))
    second = np.asarray(layer.qkv[...])[(G + 2) * D :]
    np.testing.assert_array_equal(second, np.concatenate([q[G * D :], k[D:], v[D:]]))
    np.testing.assert_array_equal(layer.gate_up[...], np.concatenate([gate, up]))


def test_several_files_with_an_index(checkpoint):
    tensors = load_file(checkpoint / "model.safetensors")
    names = sorted(tensors)
    files = {name: f"model-{i % 3}.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({n: tensors[n] for n in names if files[n] == file}, checkpoint / file)
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(dict(weight_map=files)))
    assert same(load_model(checkpoint), tiny_model())


def test_another_dtype(checkpoint):
    assert all(x.dtype == jnp.bfloat16 for x in leaves(load_model(checkpoint, "bfloat16")))


def test_split_over_a_mesh(checkpoint):
    whole, split = load_model(checkpoint), load_model(checkpoint, mesh=make_mesh(data=2, model=2))
    assert same(whole, split)
    shards = split.layers[0].qkv[...].addressable_shards
    assert len(shards) == 4 and shards[0].data.shape[0] * 2 == whole.layers[0].qkv.shape[0]


def test_derived_tables_and_tied_heads_are_passed_over(tmp_path):
    save_model(tiny_model(tie_embeddings=True), tmp_path)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4), "lm_head.weight": np.ones((61, 32))}
    edit(tmp_path, lambda tensors: tensors.update(extra))
    assert same(load_model(tmp_path), tiny_model(tie_embeddings=True))


def test_every_fault_is_listed_at_once(checkpoint):
    def spoil(tensors):
        del tensors["model.norm.weight"], tensors["model.layers.0.self_attn.k_proj.weight"]
        tensors["model.layers.1.mlp.up_proj.weight"] = np.ones((3, 32), np.float32)
        tensors["model.layers.0.self_attn.q_proj.bias"] = np.ones(32, np.float32)

    edit(checkpoint, spoil)
    with pytest.raises(CheckpointError) as error:
        load_model(checkpoint)
    message = str(error.value)
    assert "model.norm.weight is missing" in message and "k_proj.weight is missing" in message
    assert "q_proj.bias is unexpected" in message and "up_proj.weight has shape (3, 32), not (48, 32)" in message
    assert "\n" not in message


@pytest.mark.parametrize("keep", [0, 5, 2000, -7])
def test_a_truncated_file(checkpoint, keep):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="truncated or corrupt"):
        load_model(checkpoint)


def test_a_missing_file(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        load_model(checkpoint)


def test_names(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError, match="neither embedded"):
        specjax.load("no-such-model")
    with pytest.raises(CheckpointError, match="nobody/nothing"):
        specjax.load("nobody/nothing")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        specjax.load(tmp_path)


def test_a_directory_with_its_tokenizer(tmp_path):
    specjax.save(language_model(tiny_model()), tmp_path)
    loaded = specjax.load(tmp_path)
    assert same(loaded.model, tiny_model()) and loaded.config == loaded.model.config
    assert loaded.tokenizer.get_vocab() == byte_tokenizer().get_vocab()


def test_a_directory_without_tokenizer(checkpoint):
    with pytest.raises(CheckpointError, match="no usable tokenizer") as error:
        specjax.load(checkpoint)
    assert "\n" not in str(error.value)
