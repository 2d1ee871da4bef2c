"""Shared by all tests: eight CPU devices, strict dtype promotion, one compilation cache, and tiny models."""

import gc
import os
from importlib.metadata import version
from pathlib import Path

# Compiling is most of what tests do. Machine code that is not optimised takes a quarter less of it, and half is left where XLA still has
# its older emitters, which 0.11 has not.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    + " --xla_cpu_use_fusion_emitters=false" * version("jaxlib").startswith("0.10."),
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Processes and commands that the tests start share what they compiled.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specjax import Decoder, LanguageModel, ModelConfig

jax.config.update("jax_numpy_dtype_promotion", "strict")
gc.set_threshold(20_000, 10, 10)  # tracing makes millions of objects, and a tenth of the time was looking through them

TINY = ModelConfig(
    "llama",
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_position_embeddings=256,
    eos_token_ids=(0,),
)


def tiny_model(seed: int = 0, sharpness: float = 6.0, config: ModelConfig = TINY, **changes) -> Decoder:
    """A random Decoder whose distributions are far from uniform: weights are scaled up by ``sharpness``."""
    model = Decoder(config.replace(**changes), jax.random.key(seed))
    graph, params = nnx.split(model)
    return nnx.merge(graph, jax.tree.map(lambda x: x * sharpness if x.ndim == 2 else x, params))


def random_head(kind, config, seed: int = 0, scale: float = 0.16):
    """A head of the class ``kind`` with random parameters throughout: matrices of standard deviation ``scale``, so that distributions are far
    from uniform as in ``tiny_model``, and biases and norms that all do something."""
    graph, params = nnx.split(nnx.eval_shape(lambda: kind(config, jax.random.key(0))))
    rng = np.random.default_rng(seed)

    def drawn(path, x):
        if x.dtype == jnp.int32:
            return jnp.zeros(x.shape, x.dtype)
        centre, spread = (0, scale) if len(x.shape) == 2 else ("bias" not in jax.tree_util.keystr(path), 0.3)
        return jnp.asarray(rng.normal(centre, spread, x.shape), x.dtype)

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(drawn, params))


def on_mesh(module: nnx.Module, mesh: jax.sharding.Mesh) -> nnx.Module:
    """The module with its parameters split as they are when it is loaded with a mesh."""
    from specjax.training.loop import placed  # orbax takes seconds

    graph, params = nnx.split(module)
    return nnx.merge(graph, placed(params, mesh))


def byte_tokenizer(vocab_size: int = 61, first: int = 0) -> PreTrainedTokenizerFast:
    """A tokenizer without merges: token 0 ends the text, the others stand for bytes from the ``first`` on, of which most are unknown."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[first : first + vocab_size - 2]
    vocab = {"<end>": 0, "<unk>": 1} | {letter: i + 2 for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>", clean_up_tokenization_spaces=False)


def language_model(model: Decoder, name: str = "tiny") -> LanguageModel:
    return LanguageModel(model, model.config, byte_tokenizer(model.config.vocab_size), name)


def random_prompts(count: int, longest: int, vocab_size: int = 61, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocab_size, rng.integers(1, longest + 1)).tolist() for _ in range(count)]


def disturbed(model: Decoder, amount: float = 0.05) -> Decoder:
    """A model that often agrees with ``model``."""
    graph, params = nnx.split(model)
    noise = lambda x: amount * x.std() * jax.random.normal(jax.random.key(x.size), x.shape)
    return nnx.merge(graph, jax.tree.map(lambda x: x + noise(x), params))


def warped(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    """The distribution of logits [V] under the options, by their definitions, one after another, in float64."""
    logits = np.asarray(logits, np.float64)
    if temperature == 0:
        return np.eye(logits.size)[logits.argmax()]
    weights = np.exp((logits - logits.max()) / temperature)
    keep = lambda chosen: np.where(chosen, weights, 0) / weights[chosen].sum()
    weights = keep(weights >= 0)
    if top_k:
        weights = keep(weights >= np.sort(weights)[-min(top_k, weights.size)])
    if top_p < 1:
        likeliest = np.sort(weights)[::-1]
        weights = keep(weights >= likeliest[np.argmax(np.cumsum(likeliest) >= top_p)])
    return keep(weights >= min_p * weights.max())


def p_value(counts, law) -> float:
    """Of the chi-square test that ``counts`` come from ``law``; outcomes expected less than five times share a cell."""
    counts, law = np.ravel(counts), np.ravel(law).astype(np.float64)
    expected = law / law.sum() * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    order = np.argsort(expected)
    cell = np.maximum(np.arange(counts.size) - np.sum(expected < 5), 0)
    counts, expected = (np.bincount(cell, x[order]) for x in (counts, expected))
    return float(stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), max(counts.size - 1, 1)))


@pytest.fixture(autouse=True, scope="module")
def room_for_programs():
    """A Linux process may map 65,530 areas of memory, and each compiled program takes a dozen; beyond them XLA aborts."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_text().splitlines()) > 30_000:
        jax.clear_caches()


@pytest.fixture(scope="session")
def target() -> LanguageModel:
    return language_model(tiny_model(0), "target")


@pytest.fixture(scope="session")
def draft(target) -> LanguageModel:
    return language_model(disturbed(target.model), "draft")
