"""Tiny models, prompts and tokenizers, the sampling options by their definitions, and the chi-square test."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from scipy import stats
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specjax import Decoder, LanguageModel, ModelConfig

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
    """A random Decoder. The factor ``sharpness`` on its matrices makes its distributions far from uniform."""
    model = Decoder(config.replace(**changes), jax.random.key(seed))
    graph, params = nnx.split(model)
    sharp = lambda path, x: by_parts(path, x * sharpness if x.ndim > 1 else x)
    return nnx.merge(graph, jax.tree_util.tree_map_with_path(sharp, params))


def by_parts(path: tuple, x):
    """A random parameter; one with the rows of a gate and then of an up projection gets the order of ``Layer.gate_up``."""
    if "gate_up" not in jax.tree_util.keystr(path):
        return x
    parts = np.gcd(len(x) // 2, 16)
    return jnp.reshape(x, (2, parts, -1, *x.shape[1:])).swapaxes(0, 1).reshape(x.shape)


def random_head(kind, config, seed: int = 0, scale: float = 0.16):
    """A head of the class ``kind`` with random parameters.

    Its matrices have the standard deviation ``scale``, which makes its distributions far from uniform. Its biases and norms
    are random too, so that each of them changes the output.
    """
    graph, params = nnx.split(nnx.eval_shape(lambda: kind(config, jax.random.key(0))))
    rng = np.random.default_rng(seed)

    def draw(path, x):
        if x.dtype == jnp.int32:
            return jnp.zeros(x.shape, x.dtype)
        centre, spread = (0, scale) if len(x.shape) == 2 else ("bias" not in jax.tree_util.keystr(path), 0.3)
        return by_parts(path, jnp.asarray(rng.normal(centre, spread, x.shape), x.dtype))

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(draw, params))


def on_mesh(module: nnx.Module, mesh: jax.sharding.Mesh) -> nnx.Module:
    """The module with its parameters split over the mesh, as loading with a mesh splits them."""
    from specjax.training.loop import place_parameters  # importing orbax takes seconds

    graph, params = nnx.split(module)
    return nnx.merge(graph, place_parameters(params, mesh))


def byte_tokenizer(vocab_size: int = 61, first: int = 0) -> PreTrainedTokenizerFast:
    """A tokenizer without merges. Token 0 ends the text, token 1 is unknown, the others are bytes from the ``first`` on."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[first : first + vocab_size - 2]
    vocab = {"<end>": 0, "<unk>": 1} | {letter: i + 2 for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = dict(eos_token="<end>", unk_token="<unk>", clean_up_tokenization_spaces=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def language_model(model: Decoder, name: str = "tiny") -> LanguageModel:
    """The model with a byte tokenizer."""
    return LanguageModel(model, model.config, byte_tokenizer(model.config.vocab_size), name)


def random_prompts(count: int, longest: int, vocab_size: int = 61, seed: int = 0) -> list[list[int]]:
    """Prompts of 1 to ``longest`` random tokens, none of which is the end token."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocab_size, rng.integers(1, longest + 1)).tolist() for _ in range(count)]


def disturbed(model: Decoder, amount: float = 0.05) -> Decoder:
    """A model that often agrees with ``model``: its parameters plus noise of ``amount`` times their deviation."""
    graph, params = nnx.split(model)
    noise = lambda x: amount * x.std() * jax.random.normal(jax.random.key(x.size), x.shape)
    return nnx.merge(graph, jax.tree_util.tree_map_with_path(lambda path, x: x + by_parts(path, noise(x)), params))


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
    """The p-value of the chi-square test that ``counts`` come from ``law``.

    Outcomes that are expected less than five times share a cell. A single impossible outcome gives 0.
    """
    counts, law = np.ravel(counts), np.ravel(law).astype(np.float64)
    expected = law / law.sum() * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    order = np.argsort(expected)
    cell = np.maximum(np.arange(counts.size) - np.sum(expected < 5), 0)
    counts, expected = (np.bincount(cell, x[order]) for x in (counts, expected))
    return float(stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), max(counts.size - 1, 1)))
