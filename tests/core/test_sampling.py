"""The logits pipeline against the definitions of its options, and draws against its distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import p_value, warped

from specjax import RequestError
from specjax.core.sampling import probabilities, random_keys, sample, sampling_params

V = 17
OPTIONS = {
    "greedy": dict(temperature=0.0),
    "unchanged": dict(temperature=1.0),
    "cold": dict(temperature=0.3),
    "hot": dict(temperature=2.5),
    "top_k": dict(temperature=1.0, top_k=5),
    "top_1": dict(temperature=1.0, top_k=1),
    "top_all": dict(temperature=1.0, top_k=V),
    "top_more": dict(temperature=1.0, top_k=V + 100),
    "top_p": dict(temperature=1.0, top_p=0.8),
    "top_p_least": dict(temperature=1.0, top_p=1e-6),
    "min_p": dict(temperature=1.0, min_p=0.15),
    "min_p_most": dict(temperature=1.0, min_p=1.0),
    "top_k, top_p": dict(temperature=0.7, top_k=6, top_p=0.7),
    "top_p, min_p": dict(temperature=1.5, top_p=0.9, min_p=0.3),
    "together": dict(temperature=1.3, top_k=8, top_p=0.83, min_p=0.07),
    "greedy, the rest ignored": dict(temperature=0.0, top_k=3, top_p=0.5, min_p=0.5),
}
ROWS, NODES = len(OPTIONS), 50  # of every batch, so that one program serves all tests
apply = jax.jit(probabilities)


def normal(seed: int, scale=3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, (ROWS, NODES, V)).astype(np.float32)


def params(rows: list[dict]):
    """Options of several rows. Options that a row does not name have their defaults."""
    defaults = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    return sampling_params(
        len(rows), **{name: [row.get(name, default) for row in rows] for name, default in defaults.items()}
    )


def check(logits: np.ndarray, rows: list[dict]):
    """Compares the distributions of logits under the options of each row with the definitions."""
    p = np.asarray(apply(jnp.asarray(logits), params(rows)))
    assert p.dtype == np.float32
    for b, n in np.ndindex(ROWS, NODES):
        expected = warped(logits[b, n], **rows[b])
        np.testing.assert_array_equal(p[b, n] > 0, expected > 0, err_msg=f"{rows[b]} {logits[b, n]}")
        np.testing.assert_allclose(p[b, n], expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_alone(name):
    check(normal(0), [OPTIONS[name]] * ROWS)


def test_each_row_has_its_own_options():
    logits, rows = normal(1), list(OPTIONS.values())
    check(logits, rows)
    mixed = apply(jnp.asarray(logits), params(rows))
    for b, options in enumerate(rows):
        alone = apply(jnp.asarray(logits), params([options] * ROWS))
        np.testing.assert_array_equal(alone[b], mixed[b])


@pytest.mark.parametrize("seed", range(4))
def test_random_options(seed):
    rng = np.random.default_rng(seed)
    some = lambda: dict(
        temperature=rng.choice([0.0, 0.5, 1.0, 2.0]),
        top_k=rng.integers(V + 3),
        top_p=rng.uniform(0.05, 1),
        min_p=rng.uniform(0, 0.5),
    )
    check(normal(seed, 2.0), [some() for _ in range(ROWS)])


def test_equal_logits_are_kept_or_dropped_together():
    rows = list(OPTIONS.values())
    check(np.round(normal(3, 1.0)), rows)
    check(np.zeros((ROWS, NODES, V), np.float32), rows)


def test_greedy_takes_the_first_of_equals():
    p = probabilities(jnp.array([[[0.0, 2.0, 2.0, 1.0]]]), params([OPTIONS["greedy"]]))
    assert p.tolist() == [[[0.0, 1.0, 0.0, 0.0]]]


@pytest.mark.parametrize("temperature", [0.0, 2e-38, 1e-30, 1e-6, 1.0, 1e6, 2e9])
def test_extreme_values_stay_finite(temperature):
    logits = normal(4, 1.0) * np.resize(np.float32([1, 100, 1e4, 1e30]), (ROWS, 1, 1))
    logits[:, ::2, 3] = -np.inf
    options = np.resize([{}, dict(top_k=4), dict(top_p=0.9), dict(min_p=0.1), dict(top_k=9, min_p=0.5)], ROWS)
    p = np.asarray(apply(jnp.asarray(logits), params([dict(temperature=temperature) | o for o in options])))
    assert np.isfinite(p).all() and np.all(p[:, ::2, 3] == 0)
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-5)
    likeliest = np.eye(V)[logits.argmax(-1)]
    assert np.all(p[likeliest > 0] > 0)
    if temperature <= 1e-30:
        np.testing.assert_array_equal(p, likeliest)


def test_half_precision_logits_are_warped_in_float32():
    logits, rows = jnp.asarray(normal(5), jnp.bfloat16), params(list(OPTIONS.values()))
    p = apply(logits, rows)
    np.testing.assert_array_equal(p, apply(logits.astype(jnp.float32), rows))
    assert p.dtype == jnp.float32


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")), ("temperature", "hot"), ("temperature", None),
        ("temperature", [1.0, 1.0, 1.0]), ("top_k", -2), ("top_k", 2.5), ("top_k", [1, -2]), ("top_k", 2**40), ("top_p", 0.0), ("top_p", 1.1),
        ("top_p", float("nan")), ("top_p", [0.5, 0.0]), ("min_p", -0.1), ("min_p", 1.5), ("min_p", [[0.1, 0.1]]),
    ],
)  # fmt: skip
def test_options_out_of_bounds_are_named(name, value):
    with pytest.raises(RequestError, match=name) as error:
        sampling_params(2, **{name: value})
    assert "\n" not in str(error.value)


def test_options_at_their_bounds_are_taken():
    taken = sampling_params(2, temperature=[0, 3], top_k=0, top_p=1, min_p=[0.0, 1.0])
    assert [x.dtype for x in (taken.temperature, taken.top_k, taken.top_p, taken.min_p)] == [
        jnp.float32,
        jnp.int32,
        jnp.float32,
        jnp.float32,
    ]
    assert taken.temperature.tolist() == [0, 3] and taken.top_k.tolist() == [0, 0] and taken.min_p.tolist() == [0, 1]


@pytest.mark.slow
def test_draws_have_the_law_of_p():
    logits, rows = np.tile(normal(6, 2.0)[:1, :1], (ROWS, NODES, 1)), list(OPTIONS.values())
    p = apply(jnp.asarray(logits), params(rows))[:, 0]
    draw = jax.jit(jax.vmap(lambda keys: sample(keys, p, params(rows))))
    tokens = np.asarray(draw(jax.random.split(random_keys(0, 1)[0], (100_000, ROWS))))
    for row, options in enumerate(rows):
        assert p_value(np.bincount(tokens[:, row], minlength=V), warped(logits[row, 0], **options)) > 1e-4, options


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, options in OPTIONS.items() if options["temperature"]])
def test_options_mean_what_they_mean_in_transformers(name):
    torch = pytest.importorskip("torch", reason="the warpers of transformers work on torch tensors")
    from transformers.generation import logits_process as hf

    options, logits = OPTIONS[name], normal(8)
    warpers = [hf.TemperatureLogitsWarper(options["temperature"])]
    warpers += [hf.TopKLogitsWarper(options["top_k"])] if "top_k" in options else []
    warpers += [hf.TopPLogitsWarper(options["top_p"])] if "top_p" in options else []
    warpers += [hf.MinPLogitsWarper(options["min_p"])] if "min_p" in options else []
    scores = torch.tensor(logits.reshape(-1, V))
    for warper in warpers:
        scores = warper(None, scores)
    ours = apply(jnp.asarray(logits), params([options] * ROWS)).reshape(-1, V)
    np.testing.assert_allclose(ours, torch.softmax(scores, -1).numpy(), rtol=1e-5, atol=1e-7)
