"""Keys and values of bfloat16 on a CPU: their bits, texts that do not depend on the method, and no widened cache."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import disturbed, language_model, random_prompts, tiny_model

from specjax import Engine, Generator
from specjax.core.stored_rows import EightBits, HalfRows, Halves, finite_bits, read, store
from specjax.loop import decode
from specjax.text.cache_dtype import cache_dtype

TARGET = tiny_model(num_layers=2, head_dim=16, dtype="bfloat16")
PROMPTS = [list(map(int, prompt)) for prompt in random_prompts(5, 40, seed=2)]
OPTIONS = dict(max_new_tokens=24, ignore_eos=True)


def test_numbers_are_rounded_as_bfloat16():
    x = (
        jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 5, 16)), jnp.float32)
        .at[0, 0, 0, :3]
        .set(jnp.array([jnp.nan, jnp.inf, -jnp.inf]))
    )
    rows = store(x, Halves())
    np.testing.assert_array_equal(read(rows), x.astype(jnp.bfloat16).astype(jnp.float32))
    whole = read(HalfRows(finite_bits(rows.bits)))
    np.testing.assert_array_equal(whole, np.where(np.isfinite(x), read(rows), 0))


@pytest.fixture(scope="module")
def plain():
    """A target with such a cache, and its greedy texts."""
    target = language_model(TARGET)
    return target, texts(Generator(target, "none"))


def texts(generator) -> list:
    return [result.token_ids for result in generator(PROMPTS, **OPTIONS)]


METHODS = {
    "draft_model": dict(draft=language_model(disturbed(TARGET))),
    "ngram": {},
    "layer_skip": {},
    "quantized_self": dict(draft_scheme="int8"),
    "partial_cache": dict(attention_sinks=1, draft_window=4, chunk_size=2, cache_chunks=2),
}
FURTHER = [
    pytest.param(name, marks=pytest.mark.slow) for name in METHODS if name not in ("draft_model", "partial_cache")
]


@pytest.mark.parametrize("method", ["draft_model", "partial_cache", *FURTHER])
def test_greedy_texts_are_those_of_plain_decoding(plain, method):
    target, wanted = plain
    options = dict(METHODS[method])
    generator = Generator(target, method, options.pop("draft", None), num_speculative_tokens=3, **options)
    assert texts(generator) == wanted
    state = generator.start(PROMPTS, max_new_tokens=8).state
    assert all(isinstance(leaf, HalfRows) for pair in state.cache.layers for leaf in pair)


def test_an_engine_keeps_them_in_its_blocks(plain):
    target, wanted = plain
    engine = Engine(target, "none", slots=3, blocks=6, capacity=128, chunk=16)
    handles = [engine.submit(prompt, **OPTIONS) for prompt in PROMPTS]
    assert [handle.result().token_ids for handle in handles] == wanted
    pools = [leaf for leaf in jax.tree.leaves(engine.programs._pools) if leaf.ndim == 4]
    assert pools and all(leaf.dtype == jnp.uint16 for leaf in pools)


def test_a_round_widens_no_cache():
    """XLA:CPU would turn the cache into float32 and back to write one position of bfloat16."""
    target = language_model(TARGET)
    generator = Generator(target, "ngram", capacity=2048)
    decoding = generator.start(PROMPTS[:1], max_new_tokens=8)
    session = generator.session
    step = jax.jit(decode.step, static_argnames=("drafter", "rule"), donate_argnums=2)
    options = dict(drafter=session.drafter, rule=session.rule)
    text = step.lower(target.model, None, decoding.state, **options).compile().as_text()
    shape = "[1,2,2048,16]"
    assert f"u16{shape}" in text and f"bf16{shape}" not in text and f"f32{shape}" not in text


def test_where_there_are_halves():
    assert cache_dtype(language_model(TARGET)) == Halves()
    assert cache_dtype(language_model(tiny_model(num_layers=1))) == jnp.float32
    assert cache_dtype(language_model(tiny_model(num_layers=1, dtype="float16"))) == jnp.float32
    eight = dataclasses.replace(language_model(TARGET), kv_quantize="int8")
    assert cache_dtype(eight) == EightBits(jnp.dtype("int8"), jnp.dtype("float32"))
