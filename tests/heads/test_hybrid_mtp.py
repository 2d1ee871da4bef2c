"""Multi-token prediction modules of Qwen3-Next and Qwen3.5: gated attention and norms about zero."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from support.decoding import decode_all
from support.golden import FILES, golden_model
from support.models import language_model, random_prompts
from support.published_heads import write

from specjax.checkpoints.heads import load_drafter, save_head
from specjax.drafters import Mtp, Plain

E, H, K, D, F = 16, 4, 2, 8, 12
PROMPTS = random_prompts(8, 20, 32, seed=1)


def published(directory, family: str):
    """A module inside its target's checkpoint, as it is published; also its tensors and its config.json."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(0, 0.2 if len(shape) == 1 else 0.3, shape).astype(np.float32)
    with safe_open(next(path for path in FILES if path.stem == family), framework="numpy") as file:
        known = ("tokens", "logits", "prompt")
        tensors = {name: file.get_tensor(name) for name in file.keys() if name not in known}
        raw = json.loads(file.metadata()["config"]) | dict(mtp_num_hidden_layers=1)
    own = {"mtp.fc.weight": normal(E, 2 * E)}
    own |= {f"mtp.{name}.weight": normal(E) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    layer = {"self_attn.q_proj": (2 * H * D, E), "self_attn.k_proj": (K * D, E), "self_attn.v_proj": (K * D, E)}
    layer |= {"self_attn.o_proj": (E, H * D), "self_attn.q_norm": (D,), "self_attn.k_norm": (D,)}
    layer |= {"mlp.gate_proj": (F, E), "mlp.up_proj": (F, E), "mlp.down_proj": (E, F)}
    layer |= {"input_layernorm": (E,), "post_attention_layernorm": (E,)}
    own |= {f"mtp.layers.0.{name}.weight": normal(*shape) for name, shape in layer.items()}
    return write(directory, raw, tensors | own), own, raw


@pytest.mark.parametrize("family", ["qwen3_5", pytest.param("qwen3_next", marks=pytest.mark.slow)])
def test_a_published_module_drafts_for_its_target(tmp_path, family: str):
    target = golden_model(family)
    head = load_drafter(published(tmp_path / "a", family)[0], language_model(target))
    options = dict(limit=[len(prompt) + 16 for prompt in PROMPTS], capacity=64, chunk=32, temperature=0.0)
    _, plain = decode_all(target, (), Plain(), PROMPTS, **options)
    _, found = decode_all(target, head.module, Mtp(3, head=head.config), PROMPTS, **options)
    assert found == plain


def test_a_module_is_written_and_read_with_the_same_bits(tmp_path):
    directory, own, _ = published(tmp_path / "a", "qwen3_5")
    target = language_model(golden_model("qwen3_5"))
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


@pytest.mark.slow
def test_a_module_equals_a_layer_of_transformers(tmp_path):
    """The joined input goes through a model of transformers that has one full layer."""
    torch = pytest.importorskip("torch", reason="layers of transformers need torch")
    from transformers import Qwen3_5TextConfig, Qwen3_5TextModel

    directory, own, raw = published(tmp_path / "a", "qwen3_5")
    target, N = golden_model("qwen3_5"), 9
    module = load_drafter(directory, language_model(target)).module.modules[0]
    rng = np.random.default_rng(1)
    features, tokens = rng.normal(size=(1, N, E)).astype(np.float32), rng.integers(0, 32, (1, N))
    hidden = module(target, tokens, jnp.asarray(features), jnp.arange(N)[None], jnp.tri(N, dtype=bool)).hidden

    theirs = Qwen3_5TextModel(Qwen3_5TextConfig(**raw | dict(num_hidden_layers=1, layer_types=["full_attention"])))
    weights = {name.removeprefix("mtp."): torch.tensor(tensor) for name, tensor in own.items()}
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
