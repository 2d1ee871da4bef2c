"""Our checkpoints in transformers and theirs in ours, with equal logits. Only where torch is installed."""

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import tiny_model

from specjax.checkpoints.tensors import load_model, save_model
from specjax.models.config import Rope
from specjax.training.losses import scores

torch = pytest.importorskip("torch", reason="models of transformers need torch")

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402, after torch is known to be there

SHAPE = dict(
    vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8
)
TOKENS = np.random.default_rng(0).integers(0, SHAPE["vocab_size"], (2, 12))
OURS = {
    "llama3": dict(rope=Rope(100.0, "llama3", factor=8.0, original_max_position_embeddings=32)),
    "biases and yarn": dict(
        qkv_bias=True, out_bias=True, mlp_bias=True, rope=Rope(10.0, "yarn", factor=4.0, original_max_position_embeddings=16)
    ),
    "mistral with windows": dict(family="mistral", windows=(4, 4)),
    "qwen2": dict(family="qwen2", qkv_bias=True),
    "qwen3 with a window, tied": dict(family="qwen3", qk_norm=True, windows=(None, 4), tie_embeddings=True),
}


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_we_load_what_transformers_saves(family, tmp_path):
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SHAPE, initializer_range=0.3), dtype=torch.float32)
    theirs.save_pretrained(tmp_path)
    check(load_model(tmp_path), theirs)


@pytest.mark.parametrize("options", OURS.values(), ids=OURS.keys())
def test_transformers_loads_what_we_save(options, tmp_path):
    ours = tiny_model(**options)
    save_model(ours, tmp_path)
    check(ours, AutoModelForCausalLM.from_pretrained(tmp_path))


def check(ours, theirs) -> None:
    """Compares the logits of the two models."""
    with torch.no_grad():
        theirs = theirs.eval()(torch.tensor(TOKENS)).logits.numpy()
    ours = scores(ours, jnp.asarray(TOKENS, jnp.int32))
    assert np.abs(theirs).max() > 0.1
    assert np.abs(ours - theirs).max() / np.abs(theirs).max() < 1e-4
