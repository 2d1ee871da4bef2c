"""Tiny models, prompts and tokenizers, the sampling options by their definitions, and the chi-square test."""

from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.random import fold_in, key_data, normal, split, wrap_key_data
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


_wrap = partial(wrap_key_data, impl="threefry2x32")
_split = jax.jit(lambda key, count: key_data(split(_wrap(key), count)), static_argnums=1)
_fold_in = jax.jit(lambda key, number: key_data(fold_in(_wrap(key), number)))
_normal = jax.jit(lambda key, count: normal(_wrap(key), (count,), jnp.float32), static_argnums=1)


def random_normal(key: np.ndarray, shape=(), dtype=np.float32) -> np.ndarray:
    """The numbers of ``jax.random.normal``. Those of a longer array begin with them, so all shapes share few programs."""
    size = int(np.prod(shape))
    count = 4 ** max(5, -(-(size - 1).bit_length() // 2))
    return np.asarray(_normal(key, count))[:size].reshape(shape).astype(dtype).view(_Weak)


class _Weak(np.ndarray):
    """An array whose product with a number of Python keeps the dtype, also bfloat16."""

    def __mul__(self, number: float) -> np.ndarray:
        return np.asarray(self) * self.dtype.type(number)


@contextmanager
def random_in_numpy():
    """Modules get the random parameters that JAX draws, as arrays of numpy. A key is uint32 [2].

    With JAX each shape of a parameter has several programs, which take longer than what most tests do with the model.
    """
    numpy = dict(
        split=lambda key, num=2: np.asarray(_split(key, max(64, num)))[:num],  # more keys begin with the same ones
        fold_in=lambda key, number: np.asarray(_fold_in(key, number)),
        normal=random_normal,
    )
    with patch.multiple(jax.random, **numpy), patch.multiple(jnp, ones=np.ones, zeros=np.zeros, full=np.full):
        yield


def tiny_model(seed: int = 0, sharpness: float = 6.0, config: ModelConfig = TINY, **changes) -> Decoder:
    """A random Decoder. The factor ``sharpness`` on its matrices makes its distributions far from uniform."""
    with random_in_numpy():
        model = Decoder(config.replace(**changes), np.array([0, seed], np.uint32))
    graph, params = nnx.split(model)
    sharp = lambda path, x: by_parts(path, x * x.dtype.type(sharpness) if x.ndim > 1 else x)
    return nnx.merge(graph, jax.tree_util.tree_map_with_path(sharp, jax.device_get(params)))


def by_parts(path: tuple, x) -> jax.Array:
    """A random parameter; one with the rows of a gate and then of an up projection gets the order of ``Layer.gate_up``."""
    if "gate_up" in jax.tree_util.keystr(path):
        parts = np.gcd(len(x) // 2, 16)
        x = np.asarray(x).reshape(2, parts, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    return jax.device_put(x)  # jnp.asarray would compile a program for each shape


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
        return by_parts(path, rng.normal(centre, spread, x.shape).astype(x.dtype))

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

    def add(path, x):
        noise = (
            np.float32(amount)
            * np.asarray(x.std())
            * np.asarray(random_normal(np.array([0, x.size], np.uint32), x.shape))
        )
        return jax.device_put(np.asarray(x) + np.asarray(by_parts(path, noise)))

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(add, params))


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
