"""Quantised models that are saved and read again without the original: the same bits, and refusals."""

import json

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file
from support.gguf_cases import raw_config
from support.gguf_files import random_tensors, write_gguf
from support.models import TINY, language_model, tiny_model

import specjax
from specjax.checkpoints.packed import parameters
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model, save_model
from specjax.errors import CheckpointError, ConfigError, RequestError
from specjax.kernels.cpu import tiles
from specjax.models.feed_forwards import ExpertsConfig
from specjax.models.quantised_weights import Quantised, scheme_of
from specjax.models.rounding import quantise_module

MODEL = tiny_model(hidden_size=64, intermediate_size=96, head_dim=16, num_layers=1)
EXPERTS = tiny_model(
    config=TINY.replace(family="qwen3_moe", mlps=(ExpertsConfig(5, 2, 64),), qk_norm=True), num_layers=1
)


def assert_same(found, wanted):
    assert jax.tree.structure(nnx.state(found)) == jax.tree.structure(nnx.state(wanted))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def with_offsets(model):
    """The model with offsets, as packed files have them."""
    change = lambda leaf: leaf.replace(offsets=leaf.scales * 3) if isinstance(leaf, Quantised) else leaf
    return jax.tree.map(change, model, is_leaf=lambda leaf: isinstance(leaf, Quantised))


@pytest.mark.parametrize("form", ["int8", "int4", pytest.param("int4:exact", marks=pytest.mark.slow)])
def test_a_saved_model_has_the_same_bits(form, tmp_path):
    model = quantise_module(MODEL, form)
    save_model(model, tmp_path)
    found = load_model(tmp_path)
    assert_same(found, model)
    assert scheme_of(found) == form
    written = load_file(tmp_path / "model.safetensors")
    assert written["model.layers.0.self_attn.q_proj.weight.numbers"].shape == (64, 64 if form == "int8" else 32)
    assert not any(name.endswith("proj.weight") for name in written)


def test_a_saved_model_with_offsets_or_experts_or_without_tiles_has_the_same_bits(tmp_path, monkeypatch):
    for i, model in enumerate((with_offsets(quantise_module(MODEL, "int4")), quantise_module(EXPERTS, "int4"))):
        save_model(model, tmp_path / str(i))
        assert_same(load_model(tmp_path / str(i)), model)
    monkeypatch.setattr(tiles, "is_installed", lambda: False)
    found = load_model(tmp_path / "0")
    in_rows = jax.tree.map(lambda leaf: leaf.in_rows() if isinstance(leaf, Quantised) else leaf,
                           with_offsets(quantise_module(MODEL, "int4")), is_leaf=lambda leaf: isinstance(leaf, Quantised))  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(found), jax.tree.leaves(in_rows))


def test_another_form_of_a_saved_model(tmp_path):
    """The activations of ``stored:exact``, and other weights from the saved numbers."""
    save_model(quantise_module(MODEL, "int4"), tmp_path)
    assert scheme_of(load_model(tmp_path, Placement(quantize="stored:exact"))) == "int4:exact"
    again = load_model(tmp_path, Placement(quantize="int8")).layers[0].mlp.down[...]
    saved = load_model(tmp_path).layers[0].mlp.down[...]
    np.testing.assert_allclose(again.dequantise(), saved.dequantise(), atol=0.01 * np.abs(saved.dequantise()).max())


@pytest.mark.parametrize("form", [None, pytest.param("int8", marks=pytest.mark.slow), "int4"])
def test_parts_of_a_parameter_are_the_whole(form, tmp_path, monkeypatch):
    """Some rows at a time, a last part with a tile that is not full, and the experts one by one."""
    for i, model in enumerate((MODEL, EXPERTS)):
        save_model(model, tmp_path / str(i))
        whole = load_model(tmp_path / str(i), Placement(quantize=form))
        with monkeypatch.context() as patch:
            patch.setattr(parameters, "_PART", 1500)
            assert_same(load_model(tmp_path / str(i), Placement(quantize=form)), whole)


def test_what_is_not_saved_or_read_is_refused_in_one_line(tmp_path):
    with pytest.raises(RequestError, match="has fp8 weights, which is not saved quantised; save the model loaded"):
        specjax.save(language_model(quantise_module(MODEL, "fp8")), tmp_path / "fp8")
    raw = raw_config("gpt2")
    write_gguf(tmp_path / "gpt2.gguf", random_tensors(raw), raw)
    with pytest.raises(RequestError, match=r"layers.0.[a-z_.]+ is transposed in this family, which is not saved"):
        specjax.save(specjax.load(tmp_path / "gpt2.gguf", quantize="int8"), tmp_path / "gpt2")
    save_model(quantise_module(MODEL, "int8"), tmp_path)
    file, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    tensors, raw = load_file(file), json.loads(config.read_text())
    name = "model.layers.0.mlp.down_proj.weight.scales"
    for changed, words in [
        ({key: value for key, value in tensors.items() if key != name}, f"{name} is missing beside the packed weights"),
        (tensors | {name: tensors[name][:, :0]}, "must divide alike"),
        (tensors | {name: np.repeat(tensors[name], 11, 1)}, "must divide alike"),
        (tensors | {name: tensors[name][1:]}, "must divide alike"),
    ]:
        save_file({key: np.ascontiguousarray(value) for key, value in changed.items()}, file)
        with pytest.raises(CheckpointError, match=words):
            load_model(tmp_path)
    config.write_text(json.dumps(raw | {"quantization_config": {"quant_method": "specjax", "activations": 4}}))
    with pytest.raises(ConfigError, match="activations is 4; it must be one of 8, 16"):
        load_model(tmp_path)
