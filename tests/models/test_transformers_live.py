"""transformers loads the checkpoints that specjax saves, specjax loads those of transformers, and the logits are equal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from flax import nnx
from support.golden import FILES, golden_model, read_file
from support.models import tiny_model

from specjax.checkpoints.config import read_config
from specjax.checkpoints.tensors import load_model, save_model
from specjax.models.config import Rope
from specjax.training.losses import scores

pytestmark = pytest.mark.slow

SHAPE = dict(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)
TOKENS = np.random.default_rng(0).integers(0, SHAPE["vocab_size"], (2, 12))
OURS = {
    "llama3": dict(rope=Rope(100.0, "llama3", factor=8.0, original_max_position_embeddings=32)),
    "biases and yarn": dict(
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        rope=Rope(10.0, "yarn", factor=4.0, original_max_position_embeddings=16),
    ),
    "mistral with windows": dict(family="mistral", windows=(4, 4)),
    "qwen2": dict(family="qwen2", qkv_bias=True),
    "qwen3 with a window, tied": dict(family="qwen3", qk_norm=True, windows=(None, 4), tie_embeddings=True),
}


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="models of transformers need torch")


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_specjax_loads_checkpoints_of_transformers(family, tmp_path, torch):
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(family, **SHAPE, initializer_range=0.3), dtype=torch.float32
    )
    theirs.save_pretrained(tmp_path)
    check(torch, load_model(tmp_path), theirs)


@pytest.mark.parametrize("options", OURS.values(), ids=OURS.keys())
def test_transformers_loads_checkpoints_of_specjax(options, tmp_path, torch):
    ours = tiny_model(**options)
    save_model(ours, tmp_path)
    check(torch, ours, transformers.AutoModelForCausalLM.from_pretrained(tmp_path))


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_models_of_all_families_go_to_transformers_and_back(name: str, tmp_path, torch):
    ours = golden_model(name)
    save_model(ours, tmp_path / "ours")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    check(torch, ours, theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    again = load_model(tmp_path / "theirs")
    assert again.config == read_config(tmp_path / "ours")
    jax.tree.map(np.testing.assert_array_equal, nnx.state(again), nnx.state(ours))


def test_the_language_model_of_a_model_with_images_is_read(tmp_path, torch):
    torch.manual_seed(0)
    heads = dict(num_attention_heads=2, num_hidden_layers=1, hidden_size=16, intermediate_size=16)
    config = transformers.Gemma3Config(
        text_config=read_file("gemma3")[1],
        vision_config=heads | dict(image_size=28, patch_size=14),
        mm_tokens_per_image=1,
    )
    theirs = transformers.Gemma3ForConditionalGeneration(config).to(torch.float32)
    theirs.save_pretrained(tmp_path)
    check(torch, load_model(tmp_path), theirs)


def check(torch, ours, theirs) -> None:
    """Compares the logits of the two models."""
    tokens = TOKENS % ours.config.vocab_size
    with torch.no_grad():
        theirs = theirs.eval()(torch.tensor(tokens)).logits.numpy()
    ours = scores(ours, jnp.asarray(tokens, jnp.int32))
    assert np.abs(theirs).max() > 0.1
    assert np.abs(ours - theirs).max() / np.abs(theirs).max() < 1e-4
