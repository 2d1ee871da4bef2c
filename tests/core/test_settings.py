"""Decoding under JAX settings that the program around specjax may have set: the tokens stay those of the default settings."""

import itertools
from functools import cache

import jax
import numpy as np
import pytest
from support.decoding import decode_all, start
from support.grid import METHODS, count_draws, p_values
from support.models import disturbed, language_model, tiny_model

from specjax import Generator, RequestError, make_requests
from specjax.drafters import DraftModel, Plain
from specjax.loop.prefill import prefill

SETTINGS = {
    "JAX_ENABLE_X64": lambda: jax.enable_x64(True),
    "jax_numpy_rank_promotion": lambda: jax.numpy_rank_promotion("raise"),
    "jax_transfer_guard": lambda: jax.transfer_guard("disallow"),
    "jax_disable_jit": lambda: jax.disable_jit(),
    "jax_default_prng_impl": lambda: jax.default_prng_impl("rbg"),
}
DRAFTING = {
    "none": {},
    "ngram": dict(num_speculative_tokens=2),
    "draft_model": dict(num_speculative_tokens=2),
    "tree": dict(tree=(2, 1)),
}
OPTIONS = dict(temperature=[0.0, 0.8, 0.8], top_k=[0, 9, 0], seed=[0, 3, 4])
PROMPTS = [[5, 6, 7, 5, 6], [9, 4], [7]]


@cache
def models() -> tuple:
    """A target and its draft."""
    model = tiny_model(0, num_layers=1)
    return language_model(model), language_model(disturbed(model))


def tokens_of(method: str) -> list[list[int]]:
    """The tokens of a new generator: a greedy row, a truncated one and a sampled one."""
    target, draft = models()
    draft = draft if method in ("draft_model", "tree") else None
    results = Generator(target, method, draft, **DRAFTING[method])(PROMPTS, max_new_tokens=6, **OPTIONS)
    return [result.token_ids for result in results]


default_tokens = cache(tokens_of)


# Each setting; the second tier runs every setting with every method.
FIRST_TIER = {
    ("draft_model", "JAX_ENABLE_X64"),
    ("ngram", "jax_transfer_guard"),
    ("none", "jax_disable_jit"),
    ("none", "jax_numpy_rank_promotion"),
    ("draft_model", "jax_default_prng_impl"),
}
PAIRS = [
    pytest.param(*pair, marks=() if pair in FIRST_TIER else pytest.mark.slow)
    for pair in itertools.product(DRAFTING, SETTINGS)
]


def test_the_first_tier_meets_every_setting():
    assert {setting for _, setting in FIRST_TIER} == set(SETTINGS)


@pytest.mark.parametrize(("method", "setting"), PAIRS)
def test_the_generator_gives_the_tokens_of_the_default_settings(method, setting):
    wanted = default_tokens(method)
    with SETTINGS[setting]():
        assert tokens_of(method) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["JAX_ENABLE_X64", "jax_numpy_rank_promotion"])
def test_the_pure_layer_gives_the_tokens_of_the_default_settings(setting):
    """Under the caller's own ``jit``."""
    target, draft = (language.model for language in models())
    decode = lambda: decode_all(target, draft, DraftModel(2), PROMPTS, temperature=[0.0, 0.8, 0.8], seeds=[0, 3, 4])[1]
    wanted = decode()
    with SETTINGS[setting]():
        assert decode() == wanted


@pytest.mark.slow
@pytest.mark.parametrize("method", ["none", "draft_model"])
def test_texts_have_the_targets_law_under_rbg(method):
    """A vmapped draw with keys of "rbg" uses the first key for all rows, so that rows repeat each other."""
    drafter, (rule, *_) = METHODS[method]
    with jax.default_prng_impl("rbg"):
        counts, _ = count_draws(drafter, rule, seed=1, rows=2_500)
    values = p_values(counts)
    assert min(values.values()) > 1e-4, values


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_prefill_refuses_other_keys(kind):
    requests = make_requests([[1, 2, 3]], drafter=Plain(), max_new_tokens=4)
    keys = jax.random.split(jax.random.key(0, impl=kind), 1)
    requests = requests.replace(keys=keys)
    with pytest.raises(RequestError, match="threefry2x32"):
        prefill(models()[0].model, None, requests, drafter=Plain())


def test_a_finished_row_leaves_its_caches_alone():
    """Row 0 ends at once. The rounds of row 1 change neither the target's cache of row 0 nor the draft's."""
    target, draft = (language.model for language in models())
    lengths = np.array([len(prompt) for prompt in PROMPTS])
    limit = lengths + np.array([0, 12, 12])
    before = start(target, draft, DraftModel(2), PROMPTS, limit=limit)
    after, _ = decode_all(target, draft, DraftModel(2), PROMPTS, limit=limit)
    for old, new in ((before.cache, after.cache), (before.drafter.cache, after.drafter.cache)):
        held = int(old.length[0])
        assert held > 0 and new.length[0] == held
        for a, b in zip(jax.tree.leaves(old.layers), jax.tree.leaves(new.layers)):
            np.testing.assert_array_equal(a[0, :, :held], b[0, :, :held])
