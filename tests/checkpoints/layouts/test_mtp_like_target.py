"""Modules of multi-token prediction inside the checkpoints of models with latent attention or experts."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file
from support.decoding import decode_all
from support.golden import golden_model, read_file
from support.models import language_model, random_prompts

from specjax import load_drafter, save_head
from specjax.checkpoints.tensors import load_model
from specjax.drafters import Mtp, Plain

LAYERS = 2


def write_target(directory, name: str, copied: int) -> dict[str, np.ndarray]:
    """Writes the checkpoint of a recorded model with a module, whose layer is the model's layer ``copied``."""
    tensors, raw = read_file(name)
    tensors = {key: value for key, value in tensors.items() if "." in key}
    E, rng = raw["hidden_size"], np.random.default_rng(0)
    module = f"model.layers.{LAYERS}."
    layer = f"model.layers.{copied}."
    tensors |= {key.replace(layer, module): value for key, value in tensors.items() if key.startswith(layer)}
    tensors[f"{module}eh_proj.weight"] = rng.normal(0, 0.3, (E, 2 * E)).astype(np.float32)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{module}{norm}.weight"] = rng.normal(1, 0.2, E).astype(np.float32)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(raw | dict(num_nextn_predict_layers=1)))
    return tensors


@pytest.mark.parametrize(
    "name, copied", [("deepseek_v3", 1), ("deepseek_v3", 0), ("glm4_moe", 1), ("glm4_moe_lite", 1)]
)
def test_a_module_has_a_layer_of_its_target(tmp_path, name: str, copied: int):
    """The layer is read as the target's own, with experts or dense. The target ignores the module."""
    write_target(tmp_path, name, copied)
    model = load_model(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model), nnx.state(golden_model(name)))
    head = load_drafter(tmp_path, language_model(model))
    assert head.layout == "deepseek"
    (layer,) = head.module.modules[0].layers
    assert layer.config == dataclasses.replace(model.layers[copied].config, depth=1)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(layer), nnx.state(model.layers[copied]))
    save_head(head, tmp_path / "saved")
    again = load_drafter(tmp_path / "saved", language_model(model))
    assert again.config == head.config
    jax.tree.map(np.testing.assert_array_equal, nnx.state(again.module), nnx.state(head.module))


@pytest.mark.slow
def test_the_text_drafted_by_modules_is_that_of_plain_decoding(tmp_path):
    write_target(tmp_path, "deepseek_v3", 1)
    model = load_model(tmp_path)
    head = load_drafter(tmp_path, language_model(model))
    prompts = random_prompts(3, 20, 32, seed=1)
    options = dict(limit=[len(prompt) + 16 for prompt in prompts], capacity=64, chunk=32, temperature=0.0)
    _, plain = decode_all(model, (), Plain(), prompts, **options)
    drafter = Mtp(2, head=head.config)
    _, found = decode_all(model, head.module, drafter, prompts, **options)
    assert found == plain
