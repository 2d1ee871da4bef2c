"""Encoder-decoders: their logits, trees and greedy texts, and the checkpoints of transformers."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from support.decoding import decode_all
from support.golden import FILES, load_tensors
from support.models import disturbed

from specjax.cache import KVCache, commit
from specjax.drafters import DraftModel, DraftTree, DynamicTree, Ngram, Plain, Suffix, TokenRecycling
from specjax.models.decoder import Decoder
from specjax.models.relative import Relative
from specjax.prefill import fill
from specjax.tree import Tree, ancestors

NAMES = ["t5", "t5_1.1", "bart"]
TOLERANCE = 1e-4
PARENT = np.array([0, 0, 0, 1, 1, 2, 3, 6, 6, 5])


def read_file(name: str) -> tuple[dict[str, np.ndarray], dict]:
    """The tensors and the config.json of a recorded model."""
    with safe_open(FILES[0].parent / "encoder_decoders" / f"{name}.safetensors", framework="numpy") as file:
        return {tensor: file.get_tensor(tensor) for tensor in file.keys()}, json.loads(file.metadata()["config"])


@pytest.fixture(scope="module")
def models() -> dict[str, Decoder]:
    recorded = ("source", "lengths", "tokens", "logits")
    read = {name: read_file(name) for name in NAMES}
    return {
        name: load_tensors({key: x for key, x in tensors.items() if key not in recorded}, raw)
        for name, (tensors, raw) in read.items()
    }


def encoded(model: Decoder, source: np.ndarray, lengths: np.ndarray) -> KVCache:
    """The cache after the encoder has read the sources int32 [B, S], and the decoder nothing."""
    begin = np.zeros((len(source), len(model.config.decoder_prompt)), np.int32)
    texts = jnp.asarray(np.concatenate([source, begin, np.zeros((len(source), 24), np.int32)], 1))
    return fill(model, texts, jnp.asarray(lengths) + begin.shape[1], 8, jnp.float32, unread=begin.shape[1])[0]


def chain(model: Decoder, cache: KVCache, tokens: np.ndarray) -> tuple[jax.Array, tuple]:
    """Logits [B, N, V] of tokens int32 [B, N] that follow the cache one after another, and their rows."""
    N = tokens.shape[1]
    out = model(jnp.asarray(tokens), cache.length[:, None] + jnp.arange(N), jnp.tri(N, dtype=bool), cache)
    return model.logits(out.hidden), out.rows


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str, models):
    tensors, model = read_file(name)[0], models[name]
    golden, tokens = tensors["logits"], tensors["tokens"]
    cache = encoded(model, tensors["source"], tensors["lengths"])
    found, rows = chain(model, cache, tokens)
    assert np.abs(found - golden).max() / np.abs(golden).max() < TOLERANCE
    # Committed tokens are read from the cache, in rows of different lengths.
    kept = jnp.array([11, 6])
    cache = commit(cache, rows, None, cache.length + kept, valid=jnp.ones(2, bool))
    at = kept[:, None] + jnp.arange(8)
    found, _ = chain(model, cache, jnp.take_along_axis(jnp.asarray(tokens), at, 1))
    expected = np.take_along_axis(golden, np.asarray(at)[..., None], 1)
    assert np.abs(found - expected).max() / np.abs(golden).max() < TOLERANCE
