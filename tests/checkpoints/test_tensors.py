"""Tensors of checkpoints: round trips bit for bit, files, meshes, and one error for all faults."""

import json
import os
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from support.models import TINY, tiny_model
from support.numpy_layer import gate_and_up

from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model, save_model
from specjax.errors import CheckpointError, RequestError
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
@pytest.mark.parametrize(
    "options", [{}, dict(family="qwen3", qk_norm=True, tie_embeddings=True), dict(family="qwen2", qkv_bias=True)]
)
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
    second = np.asarray(layer.mixer.qkv[...])[(G + 2) * D :]
    np.testing.assert_array_equal(second, np.concatenate([q[G * D :], k[D:], v[D:]]))
    np.testing.assert_array_equal(np.asarray(layer.mlp.gate_up[...])[:6], np.concatenate([gate[:3], up[:3]]))
    for read, stored in zip(gate_and_up(layer.mlp.gate_up[...], 0), (gate, up)):
        np.testing.assert_array_equal(read, stored)


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
    assert all(x.dtype == jnp.bfloat16 for x in leaves(load_model(checkpoint, Placement(dtype="bfloat16"))))


def test_split_over_a_mesh(checkpoint):
    whole, split = load_model(checkpoint), load_model(checkpoint, Placement(mesh=make_mesh(data=2, model=2)))
    assert same(whole, split)
    shards = split.layers[0].mixer.qkv[...].addressable_shards
    assert len(shards) == 4 and shards[0].data.shape[0] * 2 == whole.layers[0].mixer.qkv.shape[0]


def test_another_dtype_than_floats_of_16_or_32_bits_is_refused(checkpoint):
    with pytest.raises(RequestError, match="dtype is 'int8'; it must be one of float32, bfloat16, float16"):
        load_model(checkpoint, Placement(dtype="int8"))


def test_derived_tables_and_tied_heads_are_left_out(tmp_path):
    save_model(tiny_model(tie_embeddings=True), tmp_path)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4)}
    edit(tmp_path, lambda t: t.update(extra | {"lm_head.weight": t["model.embed_tokens.weight"]}))
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


def test_a_tied_checkpoint_may_hold_its_table_as_lm_head_only(tmp_path):
    model = tiny_model(tie_embeddings=True)
    save_model(model, tmp_path)
    edit(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors.pop("model.embed_tokens.weight")}))
    assert same(load_model(tmp_path), model)


def test_an_untied_checkpoint_needs_both_tables(checkpoint):
    edit(checkpoint, lambda tensors: tensors.pop("model.embed_tokens.weight"))
    with pytest.raises(CheckpointError, match=r"model\.embed_tokens\.weight is missing"):
        load_model(checkpoint)


Q, K, V = (f"model.layers.0.self_attn.{x}_proj.weight" for x in "qkv")


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8", "bool"])
def test_whole_numbers_are_no_weights(checkpoint, dtype):
    edit(checkpoint, lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"].astype(dtype)}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is of type \w+, not one of float64, float32"):
        load_model(checkpoint)


def test_queries_keys_and_values_of_several_types_are_refused_by_name(checkpoint):
    edit(checkpoint, lambda tensors: tensors.update({K: tensors[K].astype(jnp.bfloat16)}))
    with pytest.raises(CheckpointError) as error:
        load_model(checkpoint)
    message = str(error.value)
    assert f"{Q} is of type float32; {K} is of type bfloat16; {V} is of type float32" in message and "\n" not in message


def test_parameters_may_have_several_types(checkpoint):
    edit(checkpoint, lambda tensors: tensors.update({x: tensors[x].astype(jnp.float16) for x in (Q, K, V)}))
    assert {x.dtype for x in leaves(load_model(checkpoint))} == {np.dtype("float32")}


@pytest.mark.parametrize(
    "file", ["config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"]
)
def test_a_pipe_is_refused_and_not_waited_for(checkpoint, file):
    if file in ("model.safetensors.index.json", "pytorch_model.bin"):
        (checkpoint / "model.safetensors").unlink()
    (checkpoint / file).unlink(missing_ok=True)
    os.mkfifo(checkpoint / file)
    with pytest.raises(CheckpointError, match=f"{file}: not a regular file"):
        load_model(checkpoint)


def test_a_directory_that_cannot_be_written_gets_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written") as error:
        save_model(tiny_model(), tmp_path / "file" / "model")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("capability", "dtype"), [("7.5", "float16"), ("8.0", "bfloat16")])
def test_a_gpu_without_bfloat16_gets_float16_with_one_warning(checkpoint, monkeypatch, capability, dtype):
    gpu = SimpleNamespace(platform="gpu", compute_capability=capability)
    monkeypatch.setattr(jax, "devices", lambda: [gpu])
    config = TINY.replace(dtype="bfloat16")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert (Placement().for_device(config).dtype or config.dtype) == dtype
        assert Placement(dtype="float32").for_device(config).dtype == "float32"
        assert Placement().for_device(TINY).dtype is None
    assert [str(one.message).split(",")[0] for one in told] == [
        f"a GPU of compute capability {capability} has no bfloat16"
    ][: dtype == "float16"]


@pytest.mark.parametrize(("capability", "quantize", "told"), [
    ("7.5", "int4", 1), ("7.5", "stored", 1), ("7.5", "fp8", 0), ("7.5", None, 0), ("8.0", "int4", 0),
])  # fmt: skip
def test_a_gpu_too_old_for_the_kernel_of_packed_weights_is_told_once(
    checkpoint, monkeypatch, capability, quantize, told
):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu", compute_capability=capability)])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(2):
            load = Placement(quantize=quantize).for_device(TINY)
    assert load.quantize == quantize
    assert [str(one.message) for one in found] == [
        f"{quantize} weights have no kernel on a GPU of compute capability {capability}; without it each product widens them, "
        "slower; use 8.0 or newer"
    ] * told


def test_weights_beyond_float16_are_refused(checkpoint):
    edit(checkpoint, lambda tensors: tensors["model.norm.weight"].fill(7e4))
    assert np.asarray(load_model(checkpoint).norm[...]).max() == np.float32(7e4)
    with pytest.raises(CheckpointError, match="model.norm.weight holds numbers beyond float16; .* dtype='float32'"):
        load_model(checkpoint, Placement(dtype="float16"))
