"""The tensors of families: read by parts on several devices, and out of models of text and images."""

from functools import partial

import jax
import numpy as np
import pytest
from flax import nnx
from support.golden import FILES, golden_model, load_tensors, read_file

from specjax import make_mesh
from specjax.checkpoints.blocks import blocks
from specjax.checkpoints.experts import unstack_experts
from specjax.checkpoints.families import NAMES, tensors_in
from specjax.checkpoints.tensors import tensors_of


def written(model) -> dict[str, np.ndarray]:
    """The tensors with which a model is saved."""
    tensors = tensors_of(model, partial(blocks, names=NAMES[model.config.family], config=model.config))
    return unstack_experts(tensors, model.config)


@pytest.mark.parametrize("name", [path.stem for path in FILES if "mxfp4" not in path.stem])
def test_parts_on_two_devices_are_those_of_the_file(name: str):
    """If there are fewer key heads than devices, each device has a copy."""
    split, whole = golden_model(name, make_mesh(model=2)), read_file(name)[0]
    mixer = split.layers[0].mixer
    out = mixer.out_proj if hasattr(mixer, "out_proj") else mixer.out
    assert not out[...].is_fully_replicated
    tensors = written(split)
    assert {*tensors} == {*tensors_in(split.config, whole)} - {"tokens", "logits", "prompt"}
    for tensor, value in tensors.items():
        np.testing.assert_array_equal(value, whole[tensor])


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
@pytest.mark.parametrize("name", ["gemma3", "gemma4", "llama4", "qwen3_5_biases", "qwen3_5_experts"])
def test_the_language_model_of_a_model_with_images_is_read(name: str, prefix: str):
    tensors, raw = read_file(name)
    inside = {x.replace("model.", prefix, 1): value for x, value in tensors.items() if x.startswith("model.")}
    head = "lm_head.weight"
    place = head if prefix.startswith("model.") else f"language_model.{head}"
    inside |= {place: tensors[head]} if head in tensors else {}
    outside = {"model.vision_tower.patch.weight": np.ones(3, np.float32)}
    outer = name.replace("experts", "moe").removesuffix("_biases")
    wrapped = dict(model_type=outer, architectures=["WithImages"], text_config=raw, vision_config=dict(depth=3))
    found = load_tensors(inside | outside, wrapped)
    assert found.config == golden_model(name).config
    jax.tree.map(np.testing.assert_array_equal, nnx.state(found), nnx.state(golden_model(name)))


def test_the_tensors_of_bare_models_have_no_prefix():
    tensors, raw = read_file("gpt2")
    bare = {x.removeprefix("transformer."): value for x, value in tensors.items() if x.startswith("transformer.")}
    masks = {f"h.{i}.attn.bias": np.ones((1, 1, 4, 4), np.float32) for i in range(2)}
    found = load_tensors(bare | masks, raw)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(found), nnx.state(golden_model("gpt2")))


@pytest.mark.parametrize("name", ["qwen3", "bloom", "phi"])
def test_a_checkpoint_of_the_class_without_a_head_has_no_prefix(name: str):
    tensors, raw = read_file(name)
    prefix = "transformer." if name == "bloom" else "model."
    bare = {x.removeprefix(prefix): value for x, value in tensors.items() if "." in x}
    found = load_tensors(bare, raw)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(found), nnx.state(golden_model(name)))


def test_other_names_are_read():
    tensors, raw = read_file("gpt_neox")
    renamed = {x.replace("embed_out", "lm_head"): value for x, value in tensors.items() if "." in x}
    found = load_tensors(renamed, raw)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(found), nnx.state(golden_model("gpt_neox")))


def test_shared_layers_may_store_keys_that_nothing_reads():
    tensors, raw = read_file("gemma4")
    extra = {f"model.layers.3.self_attn.{x}_proj.weight": np.ones((16, 16), np.float32) for x in "kv"}
    found = load_tensors({x: value for x, value in tensors.items() if "." in x} | extra, raw)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(found), nnx.state(golden_model("gemma4")))
