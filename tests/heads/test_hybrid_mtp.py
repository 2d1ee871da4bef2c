"""Multi-token prediction modules of Qwen3-Next and Qwen3.5: gated attention, norms about zero, dense or with experts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from support.decoding import decode_all
from support.golden import golden_model, read_file
from support.models import language_model, random_prompts
from support.published_heads import write

from specjax.checkpoints.heads import load_drafter, save_head
from specjax.drafters import Mtp, Plain

E, H, K, D, F, X, EXPERT = 16, 4, 2, 8, 12, 5, 8
PROMPTS = random_prompts(8, 20, 32, seed=1)


def published(directory, family: str):
    """A module inside its target's checkpoint, as it is published; also its tensors and its config.json."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(0, 0.2 if len(shape) == 1 else 0.3, shape).astype(np.float32)
    tensors, raw = read_file(family)
    tensors, raw = {name: x for name, x in tensors.items() if "." in name}, raw | dict(mtp_num_hidden_layers=1)
    own = {"mtp.fc.weight": normal(E, 2 * E)}
    own |= {f"mtp.{name}.weight": normal(E) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    layer = {"self_attn.q_proj": (2 * H * D, E), "self_attn.k_proj": (K * D, E), "self_attn.v_proj": (K * D, E)}
    layer |= {"self_attn.o_proj": (E, H * D), "self_attn.q_norm": (D,), "self_attn.k_norm": (D,)}
    mlp = "mlp.shared_expert" if family.endswith("experts") else "mlp"
    layer |= {f"{mlp}.gate_proj": (F, E), f"{mlp}.up_proj": (F, E), f"{mlp}.down_proj": (E, F)}
    if family.endswith("experts"):
        layer |= {"mlp.gate": (X, E), "mlp.shared_expert_gate": (1, E)}
        for i in range(X):
            layer |= {f"mlp.experts.{i}.{part}_proj": (EXPERT, E) for part in ("gate", "up")}
            layer |= {f"mlp.experts.{i}.down_proj": (E, EXPERT)}
    layer |= {"input_layernorm": (E,), "post_attention_layernorm": (E,)}
    own |= {f"mtp.layers.0.{name}.weight": normal(*shape) for name, shape in layer.items()}
    return write(directory, raw, tensors | own), own, raw


def stacked(tensors: dict, prefix: str) -> dict:
    """The tensors with one tensor for the gates, and one for the outputs, of all experts."""
    if f"{prefix}.experts.0.up_proj.weight" not in tensors:
        return tensors
    each = [[tensors[f"{prefix}.experts.{i}.{part}_proj.weight"] for i in range(X)] for part in ("gate", "up", "down")]
    gate, up, down = map(np.stack, each)
    others = {name: x for name, x in tensors.items() if ".experts." not in name}
    joint = {f"{prefix}.experts.gate_up_proj": np.concatenate([gate, up], 1), f"{prefix}.experts.down_proj": down}
    return others | joint


FAMILIES = ("qwen3_5", "qwen3_next", "qwen3_5_experts", "qwen3_next_experts")
DENSE_AND_EXPERTS = pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_experts", "qwen3_next_experts"])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_published_module_drafts_for_its_target(tmp_path, family: str):
    target = golden_model(family)
    head = load_drafter(published(tmp_path / "a", family)[0], language_model(target))
    options = dict(limit=[len(prompt) + 16 for prompt in PROMPTS], capacity=64, chunk=32, temperature=0.0)
    _, plain = decode_all(target, (), Plain(), PROMPTS, **options)
    _, found = decode_all(target, head.module, Mtp(3, head=head.config), PROMPTS, **options)
    assert found == plain


@DENSE_AND_EXPERTS
def test_a_module_is_written_and_read_with_the_same_bits(tmp_path, family: str):
    directory, own, _ = published(tmp_path / "a", family)
    target = language_model(golden_model(family))
    head = load_drafter(directory, target)
    save_head(head, tmp_path / "b")
    assert load_drafter(tmp_path / "b", target).config == head.config
    with safe_open(tmp_path / "b" / "model.safetensors", framework="numpy") as file:
        assert set(file.keys()) == set(own)
        for name, tensor in own.items():
            np.testing.assert_array_equal(file.get_tensor(name), tensor)


def test_a_module_is_read_beside_a_language_model_with_images(tmp_path):
    directory, own, raw = published(tmp_path / "a", "qwen3_5")
    target = language_model(golden_model("qwen3_5"))
    outside = {
        "model.visual.patch.weight": np.ones(3, np.float32),
        "model.language_model.norm.weight": np.ones(E, np.float32),
    }
    write(tmp_path / "b", dict(model_type="qwen3_5", text_config=raw), own | outside)
    assert load_drafter(tmp_path / "b", target).config == load_drafter(directory, target).config


@pytest.mark.parametrize("form", [dict, stacked], ids=["single", "stacked"])
@pytest.mark.parametrize("family", ["qwen3_5_experts", "qwen3_next_experts"])
def test_the_layer_of_a_module_is_a_full_layer_of_the_recorded_target(tmp_path, family: str, form):
    """The layer has the tensors of the target's layer 1, whose logits transformers recorded."""
    _, own, raw = published(tmp_path / "a", family)
    tensors, layer = read_file(family)[0], "model.layers.1."
    own |= {name.replace(layer, "mtp.layers.0."): x for name, x in tensors.items() if name.startswith(layer)}
    own = own if form is dict else stacked(own, "mtp.layers.0.mlp")
    target = golden_model(family)
    (found,) = load_drafter(write(tmp_path / "b", raw, own), language_model(target)).module.modules[0].layers
    assert found.config == dataclasses.replace(target.layers[1].config, depth=1)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(found), nnx.state(target.layers[1]))


@pytest.mark.slow
@DENSE_AND_EXPERTS
def test_a_module_equals_a_layer_of_transformers(tmp_path, family: str):
    """The joined input goes through a model of transformers that has one full layer."""
    torch = pytest.importorskip("torch", reason="layers of transformers need torch")
    import transformers

    directory, own, raw = published(tmp_path / "a", family)
    target, N = golden_model(family), 9
    module = load_drafter(directory, language_model(target)).module.modules[0]
    rng = np.random.default_rng(1)
    features, tokens = rng.normal(size=(1, N, E)).astype(np.float32), rng.integers(0, 32, (1, N))
    hidden = module(target, tokens, jnp.asarray(features), jnp.arange(N)[None], jnp.tri(N, dtype=bool)).hidden

    name = {"qwen3_5": "Qwen3_5Text", "qwen3_5_experts": "Qwen3_5MoeText", "qwen3_next_experts": "Qwen3Next"}[family]
    shape = raw | dict(num_hidden_layers=1, layer_types=["full_attention"], mlp_only_layers=[])
    theirs = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**shape))
    parts = stacked(own, "mtp.layers.0.mlp").items()
    weights = {name.removeprefix("mtp."): torch.tensor(tensor) for name, tensor in parts}
    joins, norms = (
        weights.pop("fc.weight"),
        [weights.pop(f"pre_fc_norm_{part}.weight") for part in ("embedding", "hidden")],
    )
    theirs.load_state_dict(weights | {"embed_tokens.weight": theirs.embed_tokens.weight})
    parts = [torch.tensor(np.asarray(target.embed[...])[tokens]), torch.tensor(features)]
    unit = lambda x: x / (x.pow(2).mean(-1, keepdim=True) + raw["rms_norm_eps"]).sqrt()
    joined = torch.cat([unit(x) * (1 + norm) for x, norm in zip(parts, norms)], -1) @ joins.T
    with torch.no_grad():
        expected = theirs.eval()(inputs_embeds=joined).last_hidden_state.numpy()
    assert np.abs(hidden - expected).max() / np.abs(expected).max() < 1e-4
