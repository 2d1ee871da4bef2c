"""The logits pipeline against the definitions of its options, and draws against its distributions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import p_value, warped

from specjax import RequestError, sampling_params
from specjax.sampling import probabilities, sample

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
apply = jax.jit(probabilities)


def params(*rows: dict):
    """Options of several rows; what one does not name has its default."""
    defaults = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    return sampling_params(len(rows), **{name: [row.get(name, default) for row in rows] for name, default in defaults.items()})


def check(logits: np.ndarray, *rows: dict, atol=2e-6):
    """Compares float32 logits [B, N, V] under the options of each row with the definitions."""
    p = np.asarray(apply(jnp.asarray(logits), params(*rows)))
    assert p.dtype == np.float32 and np.isfinite(p).all()
    for b, n in itertools.product(*map(range, logits.shape[:2])):
        expected = warped(logits[b, n], **rows[b])
        np.testing.assert_array_equal(p[b, n] > 0, expected > 1e-42, err_msg=f"{rows[b]} {logits[b, n]}")
        np.testing.assert_allclose(p[b, n], expected, rtol=2e-5, atol=atol)


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_alone(name):
    rng = np.random.default_rng(0)
    check(rng.normal(0, 3, (4, 50, V)).astype(np.float32), *[OPTIONS[name]] * 4)


def test_a_row_keeps_to_its_own_options():
    logits = np.random.default_rng(1).normal(0, 2, (len(OPTIONS), 50, V)).astype(np.float32)
    check(logits, *OPTIONS.values())
    mixed = apply(jnp.asarray(logits), params(*OPTIONS.values()))
    for b, options in enumerate(OPTIONS.values()):
        alone = apply(jnp.asarray(logits[b : b + 1]), params(options))
        np.testing.assert_array_equal(alone[0] > 0, mixed[b] > 0)
        np.testing.assert_allclose(alone[0], mixed[b], rtol=1e-6)


def test_random_options():
    rng = np.random.default_rng(2)
    rows = [
        dict(
            temperature=rng.choice([0.0, 0.5, 1.0, 2.0]),
            top_k=rng.integers(0, V + 3),
            top_p=rng.uniform(0.05, 1),
            min_p=rng.uniform(0, 0.5),
        )
        for _ in range(64)
    ]
    check(rng.normal(0, 2, (64, 10, V)).astype(np.float32), *rows)


def test_equal_logits_are_kept_or_dropped_together():
    rng = np.random.default_rng(3)
    rows = [OPTIONS[name] for name in ("greedy", "top_k", "top_1", "top_p", "min_p", "top_k, top_p", "top_p, min_p", "together")]
    check(rng.integers(-2, 2, (len(rows), 60, V)).astype(np.float32), *rows)
    check(np.zeros((len(rows), 1, V), np.float32), *rows)


def test_greedy_takes_the_first_of_equals():
    p = apply(jnp.array([[[0.0, 2.0, 2.0, 1.0]]]), params(dict(temperature=0.0)))
    assert p.tolist() == [[[0.0, 1.0, 0.0, 0.0]]]


@pytest.mark.parametrize("temperature", [0.0, 2e-38, 1e-30, 1e-6, 1.0, 1e6, 2e9])
def test_extreme_values_stay_finite(temperature):
    rng = np.random.default_rng(4)
    logits = rng.normal(0, 1, (4, 20, V)).astype(np.float32) * np.array([1.0, 100.0, 1e4, 1e30], np.float32)[:, None, None]
    logits[:, ::2, 3] = -np.inf
    options = [dict(top_k=4), dict(top_p=0.9), dict(min_p=0.1), dict()]
    p = np.asarray(apply(jnp.asarray(logits), params(*[dict(temperature=temperature) | o for o in options])))
    assert np.isfinite(p).all() and np.all(p[:, ::2, 3] == 0)
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-5)
    assert np.all(np.take_along_axis(p, logits.argmax(-1)[..., None], -1) > 0)
    if temperature <= 1e-30:
        np.testing.assert_array_equal(p, np.eye(V)[logits.argmax(-1)])


def test_half_precision_logits_are_warped_in_float32():
    logits = jnp.asarray(np.random.default_rng(5).normal(0, 2, (1, 30, V)), jnp.bfloat16)
    p = apply(logits, params(OPTIONS["together"]))
    np.testing.assert_array_equal(p, apply(logits.astype(jnp.float32), params(OPTIONS["together"])))
    assert p.dtype == jnp.float32


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")), ("temperature", "hot"), ("temperature", None),
        ("temperature", [1.0, 1.0, 1.0]), ("top_k", -1), ("top_k", 2.5), ("top_k", [1, -1]), ("top_k", 2**40), ("top_p", 0.0), ("top_p", 1.1),
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
    logits = np.random.default_rng(6).normal(0, 2, V).astype(np.float32)
    rows = [OPTIONS[name] for name in ("unchanged", "cold", "top_k", "top_p", "min_p", "together")]
    p = np.asarray(apply(jnp.tile(jnp.asarray(logits), (len(rows), 1, 1)), params(*rows)))[:, 0]
    draw = jax.jit(jax.vmap(lambda keys: sample(keys, jnp.asarray(p), params(*rows))))
    tokens = np.asarray(draw(jax.random.split(jax.random.key(0), (100_000, len(rows)))))
    for row, options in enumerate(rows):
        assert p_value(np.bincount(tokens[:, row], minlength=V), warped(logits, **options)) > 1e-4


def test_greedy_rows_draw_their_likeliest_token_beside_any_other():
    logits = jnp.asarray(np.random.default_rng(7).normal(0, 1, (200, 1, V)), jnp.float32)
    rows = params(*[dict(temperature=float(b % 2)) for b in range(200)])
    tokens = sample(jax.random.split(jax.random.key(0), 200), probabilities(logits, rows)[:, 0], rows)
    likeliest = np.asarray(logits[:, 0].argmax(-1))
    assert np.all(tokens[::2] == likeliest[::2]) and np.any(tokens[1::2] != likeliest[1::2])


@pytest.mark.parametrize("name", OPTIONS)
def test_options_mean_what_they_mean_in_transformers(name):
    torch = pytest.importorskip("torch", reason="the warpers of transformers work on torch tensors")
    from transformers.generation import logits_process as hf

    options = OPTIONS[name]
    if options["temperature"] == 0:
        pytest.skip("transformers decodes greedily without warpers")
    logits = np.random.default_rng(8).normal(0, 3, (1, 200, V)).astype(np.float32)
    warpers = [hf.TemperatureLogitsWarper(options["temperature"])]
    warpers += [hf.TopKLogitsWarper(options["top_k"])] if "top_k" in options else []
    warpers += [hf.TopPLogitsWarper(options["top_p"])] if "top_p" in options else []
    warpers += [hf.MinPLogitsWarper(options["min_p"])] if "min_p" in options else []
    scores = torch.tensor(logits[0])
    for warper in warpers:
        scores = warper(None, scores)
    np.testing.assert_allclose(apply(jnp.asarray(logits), params(options))[0], torch.softmax(scores, -1).numpy(), rtol=1e-5, atol=1e-7)
