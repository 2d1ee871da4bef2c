"""The largest scores and draws, against JAX's own functions, which are slower on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.sampling import random_keys
from specjax.core.selection import argmax, draw, likeliest

SIZES = (61, 1000, 1024)  # too small for pieces, not divisible by them, and cut into them


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


@pytest.mark.parametrize("V", SIZES)
def test_draws_are_those_of_categorical(V: int):
    """Most tokens are impossible, and no draw is one of them."""
    weights = np.random.default_rng(1).exponential(size=(200, V)) * (np.arange(V) % 9 == 4)
    p, keys = jnp.asarray(weights / weights.sum(-1, keepdims=True), jnp.float32), random_keys(range(200), 200)
    tokens = jax.jit(jax.vmap(draw))(keys, p)
    np.testing.assert_array_equal(tokens, jax.jit(jax.vmap(jax.random.categorical))(keys, jnp.log(p)))
    tokens = np.asarray(tokens)
    assert (tokens % 9 == 4).all() and len(set(tokens.tolist())) > min(V // 9, 50) // 2
