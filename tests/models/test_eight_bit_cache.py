"""Keys and values of eight bits: their numbers, attention by its definition, and texts that do not depend on the method."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.latent import LATENT
from support.models import disturbed, language_model, random_prompts, tiny_model

import specjax
from specjax import Generator, RequestError
from specjax.core.cache import commit, empty
from specjax.core.stored_rows import KV_SCHEMES, EightBitRows, EightBits, read, store
from specjax.kernels.gpu.attention import Scores
from specjax.models import attention
from specjax.models.attend import attend as by_definition
from specjax.models.attention import attend
from specjax.models.mixers import DeltaRuleConfig, latent
from specjax.text.cache_dtype import cache_dtype

FORMS = {name: EightBits(dtype, jnp.dtype("float32")) for name, dtype in KV_SCHEMES.items()}
TARGET = tiny_model(num_layers=2)
PROMPTS = [list(map(int, prompt)) for prompt in random_prompts(5, 40, seed=2)]
B, N, K, G, D, T = 2, 6, 2, 2, 8, 16

HYBRID = TARGET.config.replace(mixers=(DeltaRuleConfig(2, 4, 8, 8, 3), None))
FURTHER_CLASSES = ("latent", "fp8"), ("hybrid", "int8"), ("hybrid", "fp8")

each_form = pytest.mark.parametrize("form", FORMS)


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@each_form
def test_rows_are_rounded_to_the_nearest(form):
    x = random(B, K, N, D).at[0, 0, 0].set(0)
    found, most = store(x, FORMS[form]), {"int8": 127, "fp8": 448}[form]
    scales = np.abs(np.asarray(x)).max(-1, keepdims=True) / most
    np.testing.assert_allclose(np.asarray(found.scales)[1], scales[1], rtol=1e-6)
    error = np.abs(read(found) - x)
    # Half a step of int8; fp8 has four significant bits, and steps of 2^-9 near zero.
    assert (error <= (0.501 * found.scales if form == "int8" else np.abs(x) / 15.9 + found.scales * 2**-9)).all()
    assert not np.any(read(found)[0, 0, 0]) and found.values.dtype == KV_SCHEMES[form]


@each_form
def test_attention_reads_the_rounded_rows_committed_or_not(form):
    """The same six nodes: all uncommitted, and the first four of them in the cache."""
    q, (k, v) = random(B, N, K, G, D, seed=1), (store(random(B, K, N, D, seed=s), FORMS[form]) for s in (2, 3))
    positions, mask = jnp.broadcast_to(jnp.arange(N), (B, N)), jnp.tril(jnp.ones((N, N), bool))
    attend_at_once = jax.jit(attend, static_argnums=6)
    whole = attend_at_once(q, None, np.zeros(B, int), (k, v), mask, positions, Scores())
    by_rows = lambda q, k, v: by_definition(q, None, None, (read(k), read(v)), mask, positions, Scores())
    wanted = np.asarray(jax.jit(by_rows)(q, k, v))
    np.testing.assert_allclose(whole, wanted, atol=1e-5)
    config = TARGET.config.replace(num_kv_heads=K, head_dim=D, num_layers=1)
    rows = lambda part: jax.tree.map(lambda leaf: np.asarray(leaf)[:, :, part], (k, v))
    length = np.full(B, 4, np.int32)
    cache = jax.jit(
        lambda rows: commit(empty(config, B, T, FORMS[form]), (rows,), None, length, valid=np.ones(B, bool))
    )(rows(slice(4)))
    assert cache.dtype == FORMS[form] and cache.capacity == T
    given = cache.layers[0], length, rows(slice(4, 6)), mask[4:, 4:], positions[:, 4:], Scores()
    later = attend_at_once(q[:, 4:], *given)
    np.testing.assert_allclose(later, wanted[:, 4:], atol=1e-5)


METHODS = {
    "draft_model": dict(draft=language_model(disturbed(TARGET)), num_speculative_tokens=3),
    "layer_skip": dict(num_speculative_tokens=3),
    "quantized_self": dict(draft_scheme="int8", num_speculative_tokens=3),
    "partial_cache": dict(attention_sinks=1, draft_window=4, chunk_size=2, cache_chunks=2, num_speculative_tokens=3),
}


@pytest.fixture(scope="module", params=["int8", pytest.param("fp8", marks=pytest.mark.slow)])
def plain(request):
    """A target with such a cache, and its greedy texts."""
    target = specjax.LanguageModel(
        TARGET, TARGET.config, language_model(TARGET).tokenizer, "tiny", kv_quantize=request.param
    )
    return target, texts(Generator(target, "none"))


CLASSES = {"latent": LATENT, "hybrid": HYBRID}
"""Targets whose caches hold compressed rows, or states beside keys and values."""


def with_cache(kind: str, form: str) -> specjax.LanguageModel:
    target = language_model(tiny_model(config=CLASSES[kind]))
    return dataclasses.replace(target, kv_quantize=form)


@pytest.mark.parametrize(
    "kind, form", [("latent", "int8"), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in FURTHER_CLASSES)]
)
def test_the_logits_of_each_class_are_those_of_rows_rounded_by_definition(kind, form, monkeypatch):
    """Eight tokens after eight tokens of the cache. States are no keys and stay float32.

    The oracle is the same model with a float32 cache, whose rows are rounded when they are stored.
    """
    model, tokens = with_cache(kind, form).model, jnp.asarray([PROMPTS[0][:16]])
    assert tokens.shape == (1, 16)

    @jax.jit
    def read(model, cache):
        mask, position = jnp.tri(8, dtype=bool), jnp.arange(8)[None]
        rows = model(tokens[:, :8], position, mask, cache).rows
        cache = commit(cache, rows, None, jnp.array([8]), valid=jnp.ones(1, bool))
        return model.logits(model(tokens[:, 8:], 8 + position, mask, cache).hidden), cache

    found, cache = read(model, empty(model.config, 1, T, FORMS[form]))
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(cache.layers) if leaf.shape[2:3] == (T,)}
    assert dtypes == {KV_SCHEMES[form], jnp.dtype("float32")}  # numbers and scales
    assert cache.dtype == FORMS[form]
    for module in (attention, latent):
        monkeypatch.setattr(module, "store", lambda x, dtype: rounded(x, form))
    wanted = read(model, empty(model.config, 1, T, jnp.dtype("float32")))[0]
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


def rounded(x: jax.Array, form: str) -> jax.Array:
    """Rows rounded to eight bits by their definition, float32."""
    scales = jnp.abs(x).max(-1, keepdims=True) / {"int8": 127, "fp8": 448}[form]
    q = x / scales
    return scales * (jnp.round(q) if form == "int8" else q.astype(jnp.float8_e4m3fn).astype(jnp.float32))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "method"), [("latent", "ngram"), ("hybrid", "draft_model")])
def test_greedy_texts_of_each_class_are_those_of_plain_decoding_with_the_same_cache(kind, method):
    target = with_cache(kind, "int8")
    draft = language_model(disturbed(target.model)) if method == "draft_model" else None
    assert texts(Generator(target, method, draft, num_speculative_tokens=3)) == texts(Generator(target, "none"))


def texts(generator) -> list:
    options = dict(max_new_tokens=24, ignore_eos=True)
    return [result.token_ids for result in generator(PROMPTS, **options)]


FURTHER = [pytest.param(name, marks=pytest.mark.slow) for name in METHODS if name != "quantized_self"]


@pytest.mark.parametrize("method", ["quantized_self", *FURTHER])
def test_greedy_texts_are_those_of_plain_decoding_with_the_same_cache(plain, method):
    target, wanted = plain
    options = dict(METHODS[method])
    generator = Generator(target, method, options.pop("draft", None), **options)
    assert texts(generator) == wanted
    state = generator.start(PROMPTS, max_new_tokens=8).state
    assert all(isinstance(leaf, EightBitRows) for pair in state.cache.layers for leaf in pair)


def test_the_form_of_a_loaded_models_cache(tmp_path):
    specjax.save(language_model(TARGET), tmp_path / "model")
    target = specjax.load(tmp_path / "model", kv_quantize="int8")
    assert cache_dtype(target) == FORMS["int8"]
    with pytest.raises(RequestError, match="kv_quantize is 'int4'; it must be one of int8, fp8"):
        specjax.load(tmp_path / "model", kv_quantize="int4")
