"""The tensors of experts in the forms of each family, and checkpoints with experts that do not fit."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.mixtures import MIXTURES
from support.models import tiny_model

from specjax import CheckpointError, ModelConfig, RequestError, make_mesh
from specjax.checkpoints.config import from_hf, to_hf
from specjax.checkpoints.experts import Rows, Stack, stack_experts, unstack_experts
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model, save_model
from specjax.cli.main import main
from specjax.models.feed_forwards import ExpertsConfig


class Tensor:
    """An array with the interface of a safetensors slice, which refuses what lies outside."""

    def __init__(self, array):
        self.array = np.asarray(array)

    def get_shape(self):
        return list(self.array.shape)

    def get_dtype(self):
        return "F32"

    def __getitem__(self, index):
        assert all(0 <= part.indices(n)[0] and (part.stop or 0) <= n for part, n in zip(index, self.array.shape))
        return self.array[index]


@pytest.mark.parametrize("config", MIXTURES.values(), ids=MIXTURES.keys())
def test_a_saved_model_is_read_again(config: ModelConfig, tmp_path):
    """The same bits, the same configuration, and a second copy with the same bytes."""
    model = tiny_model(config=config)
    save_model(model, tmp_path / "one")
    again = load_model(tmp_path / "one")
    assert again.config == config
    save_model(again, tmp_path / "two")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert from_hf(to_hf(config)) == config


def test_rows_and_stacks_read_any_part():
    rng = np.random.default_rng(0)
    joint = rng.normal(size=(3, 8, 5))  # the rows 0, 2, 4, 6 are of the gate
    index = slice(1, 3), slice(1, 4), slice(0, 2)
    odd = Rows(Tensor(joint), 1, 4, 2)
    assert odd.get_shape() == [3, 4, 5]
    np.testing.assert_array_equal(odd[index], joint[:, 1::2][index])
    turned = Rows(Tensor(joint.swapaxes(1, 2)), 0, 4, 2, transposed=True)
    assert turned.get_shape() == [3, 4, 5]
    np.testing.assert_array_equal(turned[index], joint[:, 0::2][index])
    stack = Stack([Tensor(matrix) for matrix in joint])
    np.testing.assert_array_equal(stack[index], joint[index])


def test_newer_checkpoints_with_fused_experts_are_read(tmp_path):
    """One tensor with gate and up projections of all experts, gates first."""
    save_model(tiny_model(config=MIXTURES["qwen3_moe"]), tmp_path)
    tensors, prefix = load_file(tmp_path / "model.safetensors"), "model.layers.0.mlp.experts"
    of = lambda name: np.stack([tensors.pop(f"{prefix}.{i}.{name}.weight") for i in range(5)])
    gate, up, down = map(of, ("gate_proj", "up_proj", "down_proj"))
    tensors |= {f"{prefix}.gate_up_proj": np.concatenate([gate, up], 1), f"{prefix}.down_proj": down}
    save_file(tensors, tmp_path / "model.safetensors")
    experts = load_model(tmp_path).layers[0].mlp
    for param, wanted in ((experts.gates, gate), (experts.ups, up), (experts.downs, down)):
        np.testing.assert_array_equal(param[...], wanted)


def test_mxfp4_is_unpacked_on_read(tmp_path):
    """Blocks and scales that stand for the numbers of an unpacked checkpoint."""
    wide = MIXTURES["gpt_oss"].replace(
        intermediate_size=32, mlps=(ExpertsConfig(4, 2, 32, bias=True, clamp=(1.702, 7.0)),) * 2
    )
    save_model(tiny_model(config=wide), tmp_path)
    tensors, rng = load_file(tmp_path / "model.safetensors"), np.random.default_rng(0)
    wanted = {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        X, inputs, outputs = tensors.pop(name).shape
        blocks = rng.integers(0, 256, (X, outputs, inputs // 32, 16), dtype=np.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": np.full((X, outputs, inputs // 32), 126, np.uint8)}
        halves = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]) / 2
        numbers = np.concatenate([halves, -halves])
        wanted[name] = np.stack([numbers[blocks & 15], numbers[blocks >> 4]], -1).reshape(X, outputs, inputs)
    save_file(tensors, tmp_path / "model.safetensors")
    raw = json.loads((tmp_path / "config.json").read_text()) | dict(quantization_config=dict(quant_method="mxfp4"))
    (tmp_path / "config.json").write_text(json.dumps(raw))
    for i, layer in enumerate(load_model(tmp_path).layers):
        joint = wanted[f"model.layers.{i}.mlp.experts.gate_up_proj"]
        np.testing.assert_array_equal(layer.mlp.gates[...], joint[:, 0::2])
        np.testing.assert_array_equal(layer.mlp.ups[...], joint[:, 1::2])
        np.testing.assert_array_equal(layer.mlp.downs[...], wanted[f"model.layers.{i}.mlp.experts.down_proj"])


def test_a_missing_or_different_expert_is_named():
    config, matrix = MIXTURES["mixtral"], np.zeros((24, 32), np.float32)
    of = lambda name: f"model.layers.0.block_sparse_moe.experts.{name}.weight"
    tensors = {
        of(f"{i}.{name}"): Tensor(matrix if name != "w2" else matrix.T) for i in range(5) for name in ("w1", "w2", "w3")
    }
    with pytest.raises(CheckpointError, match="experts.2.w3.weight is missing"):
        stack_experts({name: x for name, x in tensors.items() if name != of("2.w3")}, config, "here")
    with pytest.raises(CheckpointError, match="experts.3.w1.weight differs from .*experts.0.w1.weight in shape"):
        stack_experts(tensors | {of("3.w1"): Tensor(matrix[:5])}, config, "here")


def test_stacks_become_the_tensors_that_they_came_from():
    rng, config = np.random.default_rng(0), MIXTURES["gpt_oss"].with_layers([0])
    prefix, shapes = "model.layers.0.mlp.experts", {"gate_up_proj": (5, 32, 48), "down_proj": (5, 24, 32)}
    shapes |= {"gate_up_proj_bias": (5, 48), "down_proj_bias": (5, 32)}
    tensors = {f"{prefix}.{name}": rng.normal(size=shape) for name, shape in shapes.items()}
    stacks = stack_experts({name: Tensor(array) for name, array in tensors.items()}, config, "here")
    whole = lambda stack: stack[tuple(slice(0, n) for n in stack.get_shape())]
    again = unstack_experts({name: whole(stack) for name, stack in stacks.items()}, config)
    assert again.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(again[name], array)


def test_a_mesh_that_cannot_hold_the_experts_is_one_line(tmp_path, capsys):
    config = MIXTURES["qwen3_moe"].replace(num_heads=8, num_kv_heads=8, intermediate_size=64)
    config = config.replace(mlps=(ExpertsConfig(4, 2, 12), None))
    save_model(tiny_model(config=config), tmp_path)
    message = (
        "a mesh with model=8 cannot hold the model's 4 experts, because it does not divide the 12 channels of each"
    )
    with pytest.raises(RequestError, match=message):
        load_model(tmp_path, Placement(mesh=make_mesh(model=8)))
    flags = ["--model", str(tmp_path), "--mesh", "model=8", "--prompt", "a"]
    assert main(["generate", "--method", "none", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
