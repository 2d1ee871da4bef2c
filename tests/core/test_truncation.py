"""Truncation without a sort against the definitions by a sort, at thresholds that are hard to hit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.sampling import sampling_params, warp
from specjax.core.truncation import search_bits

V, NODES = 384, 5
MARGIN = 2e-6  # the most by which float32 sums of V weights round a mass
TINY = float(np.finfo(np.float32).smallest_subnormal)
apply = jax.jit(warp)


def truncate_by_sort(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    """The kept tokens, bool [V], by one sort and cumulative sums in float64."""
    scaled = (logits - logits.max()) / np.float32(temperature)
    order = np.argsort(-scaled, kind="stable")
    ranked = scaled[order]
    ranked = np.where(ranked >= ranked[min(top_k or V, V) - 1], ranked, -np.inf)
    p = np.exp(ranked.astype(np.float64)) / np.exp(ranked.astype(np.float64)).sum()
    before = np.array([p[ranked > value].sum() for value in ranked])  # of the likelier tokens
    if top_p < 1:
        assert (abs(before - top_p)[before > 0] > MARGIN).all(), "rounding decides this case; choose another"
    kept = ((before < top_p) | (top_p >= 1)) & (ranked > -np.inf) & (p >= min_p * p[0])
    return scaled >= ranked[kept].min()


def adversarial() -> dict[str, np.ndarray]:
    """Logits float32 [V] by name."""
    rng = np.random.default_rng(0)
    ulps = np.full(V, 10, np.float32)
    for i in range(1, V):
        ulps[i] = np.nextafter(ulps[i - 1], np.float32(-100))
    forbidden = np.where(np.arange(V) % 7 == 3, rng.normal(0, 2, V), -np.inf)
    return {
        name: np.float32(logits)
        for name, logits in {
            "random": rng.normal(0, 3, V),
            "flat": np.zeros(V),
            "a few values": rng.integers(0, 6, V),
            "most are forbidden": forbidden,
            "equals, most are forbidden": np.round(forbidden),
            "one token is allowed": np.where(np.arange(V) == 17, -5, -np.inf),
            "neighbouring floats": rng.permutation(ulps),
            "huge": rng.normal(0, 1e30, V),
            "weights around the least normal float": -87 - rng.random(V) * (np.arange(V) > 0) * 17 + 87 * (np.arange(V) == 0),
            "one likely token and a long tail": np.where(np.arange(V) == 300, 9.0, rng.normal(0, 0.01, V)),
        }.items()
    }  # fmt: skip


LOGITS = adversarial()
OPTIONS = [
    dict(), dict(top_k=1), dict(top_k=7), dict(top_k=V), dict(top_k=V + 5), dict(top_k=2**31 - 1), dict(top_p=0.35), dict(top_p=0.9),
    dict(top_p=TINY), dict(top_p=1e-6), dict(min_p=0.25), dict(min_p=1.0), dict(min_p=TINY), dict(top_k=40, top_p=0.7),
    dict(top_k=60, top_p=0.83, min_p=0.03), dict(temperature=0.3, top_p=0.55), dict(temperature=3.0, top_k=300, top_p=0.95),
]  # fmt: skip


def batch(options: list[dict]):
    get = lambda name, default: [row.get(name, default) for row in options]
    return sampling_params(
        len(options), get("temperature", 1.0), top_k=get("top_k", 0), top_p=get("top_p", 1.0), min_p=get("min_p", 0.0)
    )


@pytest.mark.parametrize("name", LOGITS)
def test_kept_tokens_are_those_of_a_sort(name):
    """Rows with different options, in one batch. Nodes are shifts of one vector, so each has its own answer."""
    logits = np.stack([np.roll(LOGITS[name], n) for n in range(NODES)])
    p = np.asarray(apply(jnp.asarray(np.tile(logits, (len(OPTIONS), 1, 1))), batch(OPTIONS)))
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-5)
    for (b, options), n in ((row, n) for row in enumerate(OPTIONS) for n in range(NODES)):
        kept = truncate_by_sort(logits[n], **options)
        scaled = (logits[n] - logits[n].max()).astype(np.float64) / options.get("temperature", 1.0)
        visible = scaled > -80  # smaller weights may be flushed to zero
        np.testing.assert_array_equal((p[b, n] > 0)[visible], kept[visible], err_msg=str(options))
        assert not p[b, n][~kept].any()
        expected = np.where(kept, np.exp(scaled), 0)
        np.testing.assert_allclose(p[b, n], expected / expected.sum(), rtol=1e-5, atol=1e-7)


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p():
    """Weights 8, 4, 2, 2, ... of 32, so masses are exact: equals at the threshold stay together, and a mass of top_p suffices."""
    weights = np.array([8, 4, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1])
    logits = jnp.log(jnp.asarray(weights, jnp.float32))
    sizes = {0.2: 1, 0.249: 1, 0.26: 4, 0.62: 4, 0.63: 8, 0.87: 8, 0.88: 12, 1.0: 12}
    p = apply(jnp.tile(logits, (len(sizes), 1, 1)), batch([dict(top_p=top_p) for top_p in sizes]))
    assert (p[:, 0] > 0).sum(-1).tolist() == [*sizes.values()]


def test_nan_and_forbidden_rows_are_nan_and_touch_no_other():
    logits = np.random.default_rng(1).normal(0, 2, (len(OPTIONS), NODES, V)).astype(np.float32)
    clean = np.asarray(apply(jnp.asarray(logits), batch(OPTIONS)))
    logits[::2, 1, 70] = np.nan
    logits[1::2, 3] = -np.inf
    p = np.asarray(apply(jnp.asarray(logits), batch(OPTIONS)))
    broken = np.zeros((len(OPTIONS), NODES), bool)
    broken[::2, 1] = broken[1::2, 3] = True
    assert np.isnan(p[broken]).all()
    np.testing.assert_array_equal(p[~broken], clean[~broken])


def test_a_nodes_distribution_depends_on_its_own_logits_and_options():
    """p of a tree, q of a chain and plain decoding compute the same node in different batches."""
    logits = jnp.asarray(np.random.default_rng(2).normal(0, 3, (len(OPTIONS), NODES, V)), jnp.float32)
    whole = apply(logits, batch(OPTIONS))
    for b, options in enumerate(OPTIONS):
        alone = apply(logits[b : b + 1, :1], batch([options]))[0, 0]
        np.testing.assert_array_equal(alone > 0, whole[b, 0] > 0)
        np.testing.assert_allclose(alone, whole[b, 0], rtol=1e-6)  # XLA:CPU sums a single row in another order


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5])
def test_the_search_finds_the_threshold_of_a_sort(bits: int):
    """Whole weights, so their sums are exact. Scores of all magnitudes, from zero to infinity, with equals."""
    rng = np.random.default_rng(bits)
    scores = np.float32(10.0 ** rng.integers(-37, 38, (40, 60)))
    scores[:, :20] = rng.choice([0, 1e-37, 1, 1 + 2**-23, 3e38, np.inf], (40, 20))
    weights = np.float32(rng.integers(0, 5, (40, 60)))
    wanted = np.float32(rng.integers(1, 140, (40, 1)))
    wanted[:5] = np.inf
    found = np.asarray(search_bits(*map(jnp.asarray, (scores, weights, wanted)), bits=bits))
    for b in range(40):
        reach = [s for s in scores[b] if weights[b][scores[b] >= s].sum() >= wanted[b]]
        np.testing.assert_array_equal(scores[b] >= found[b], scores[b] >= max(reach, default=0))


def test_no_program_sorts():
    """At 128,000 tokens a sort of 64 nodes takes as long as many rounds."""
    program = apply.lower(jnp.zeros((len(OPTIONS), NODES, V)), batch(OPTIONS)).compile().as_text()
    assert " while(" in program and " sort(" not in program
