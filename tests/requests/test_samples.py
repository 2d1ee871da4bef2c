"""Keys of samples: those of plain JAX for the first, others that nothing else in a request has."""

import jax
import jax.numpy as jnp
import numpy as np

from specjax.requests.samples import make_keys, repeat_rows

SEEDS = np.array([0, 1, 2**32 - 1], np.uint32)


def test_the_first_sample_has_the_key_of_its_seed():
    plain = [jax.random.key_data(jax.random.key(int(seed), impl="threefry2x32")) for seed in SEEDS]
    for n in (1, 4):
        np.testing.assert_array_equal(jax.random.key_data(make_keys(SEEDS, n))[::n], plain)


def test_no_two_samples_share_a_key():
    data = np.asarray(jax.random.key_data(make_keys(np.arange(40, dtype=np.uint32), 25)))
    assert len(np.unique(data, axis=0)) == 1000


def test_keys_of_samples_are_not_those_that_decoding_derives():
    """Decoding splits a row's key and folds in token counts; sample i must not draw as sample 0 does at its token i."""
    key = jax.random.key(7, impl="threefry2x32")
    split = [jax.random.split(key, m) for m in (2, 3)]
    folded = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(50))
    deeper = [jax.vmap(jax.random.fold_in, (None, 0))(k, jnp.arange(50)) for k in jax.random.split(key)]
    derived = np.concatenate([np.asarray(jax.random.key_data(keys)) for keys in (*split, folded, *deeper)])
    samples = np.asarray(jax.random.key_data(make_keys(np.array([7]), 50)))[1:]
    assert not {tuple(row) for row in derived.tolist()} & {tuple(row) for row in samples.tolist()}


def test_keys_do_not_follow_the_default_implementation():
    with jax.default_prng_impl("rbg"):
        keys = make_keys(SEEDS, 2)
        assert jax.random.key_impl(keys) == jax.random.key_impl(jax.random.key(0, impl="threefry2x32"))
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(make_keys(SEEDS, 2)))
    alone = [jax.random.uniform(key) for key in keys]
    np.testing.assert_array_equal(jax.vmap(jax.random.uniform)(keys), alone)


def test_rows_of_a_prompt_stand_together():
    rows = {"a": np.arange(6).reshape(3, 2), "b": jnp.arange(3)}
    repeated = repeat_rows(rows, 2)
    assert repeated["a"].tolist() == [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5]] and repeated["b"].tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]
    assert repeat_rows(rows, 1) is rows
