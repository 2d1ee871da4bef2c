"""The largest scores, against JAX's own functions, which are slower, and the law of draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from specjax.core.sampling import KEYS
from specjax.core.selection import argmax, draw, likeliest

SIZES = (61, 1000, 1024)  # too small for pieces, not divisible by them, and cut into them
LAW_SIZES = [61, pytest.param(1000, marks=pytest.mark.slow), 1024]


best, largest = jax.jit(likeliest, static_argnums=1), jax.jit(argmax)


def make_scores(V: int) -> list[np.ndarray]:
    """Float32 [2, 5, V]: different, with equals, and all minus infinity."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(2, 5, V)), rng.integers(0, 9, (2, 5, V)), np.full((2, 5, V), -np.inf)]


@pytest.mark.parametrize("V", SIZES)
def test_the_likeliest_are_those_of_a_whole_sort(V: int):
    """Equals come in the order of their ids, also where all are minus infinity."""
    for scores in make_scores(V):
        for k in (0, 1, 3, 8):
            values, where = best(np.float32(scores), k)
            right = np.argsort(-scores, axis=-1, kind="stable")[..., :k]
            np.testing.assert_array_equal(where, right)
            np.testing.assert_array_equal(values, np.take_along_axis(scores, right, -1).astype(np.float32))


@pytest.mark.parametrize("V", SIZES)
def test_the_largest_is_the_first_of_equals(V: int):
    for scores in make_scores(V):
        found = largest(np.float32(scores))
        assert found.dtype == jnp.int32
        np.testing.assert_array_equal(found, scores.argmax(-1))


@pytest.mark.parametrize("V", LAW_SIZES)
def test_draws_have_their_law(V: int):
    """By a chi-square test. Most tokens are impossible, and no draw is one of them."""
    weights = np.random.default_rng(1).exponential(size=V) * (np.arange(V) % 9 == 4)
    p = jnp.asarray(weights / weights.sum(), jnp.float32)
    keys = jax.random.split(jax.random.key(3, impl=KEYS), 100_000)
    count = np.bincount(jax.jit(jax.vmap(draw, (0, None)))(keys, p), minlength=V)
    assert not count[weights == 0].any()
    possible = weights > 0
    expected = 100_000 * weights[possible] / weights.sum()
    assert scipy.stats.chisquare(count[possible], expected).pvalue > 1e-3


@pytest.mark.parametrize("V", LAW_SIZES)
def test_close_distributions_give_one_token_mostly(V: int):
    """At the distance d one noise for all tokens agrees in (1 - d) / (1 + d) of draws or more.

    Daliri, Musco and Suresh 2024. A draw in two steps may lose a little of it.
    """
    rng = np.random.default_rng(2)
    weights = rng.dirichlet(np.full(V, 0.05)) * np.exp([np.zeros(V), rng.normal(size=V) / 2])
    p, q = jnp.asarray(weights / weights.sum(-1, keepdims=True), jnp.float32)
    keys = jax.random.split(jax.random.key(4, impl=KEYS), 20_000)
    tokens = jax.jit(jax.vmap(lambda key: (draw(key, p), draw(key, q))))(keys)
    distance = float(jnp.abs(p - q).sum() / 2)
    assert 0.05 < distance < 0.5
    assert (tokens[0] == tokens[1]).mean() > (1 - distance) / (1 + distance) - 0.03


def test_without_a_possible_token_the_first_is_drawn():
    assert draw(jax.random.key(0), jnp.full(1000, jnp.nan)) == 0
