"""Draft shapes: the fitted latency against known times, and the search against brute force."""

import math

import jax
import numpy as np
import pytest
from flax import nnx
from support.models import TINY

from specjax import Decoder, RequestError
from specjax.tools.design import search as design
from specjax.tools.design.draft_latency import Latency, Sample, fit
from specjax.tools.design.search import Budget, Times, best_length, make_shape, needed_acceptance

TARGET = TINY.replace(vocab_size=512, hidden_size=256, num_layers=8, num_heads=8, num_kv_heads=4, head_dim=32)
SECONDS = (1e-4, 3e-5, 1e-10, 2e-10, 4e-10)
LATENCY = Latency(SECONDS, 1, 0.0, 0.0)


def verify(nodes):
    return 1e-3 + 5e-5 * nodes


TIMES = Times(1e-3, verify, LATENCY)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_those_of_the_arrays(tied):
    config = TARGET.replace(tie_embeddings=tied)
    arrays = jax.tree.leaves(nnx.state(nnx.eval_shape(lambda: Decoder(config, jax.random.key(0)))))
    assert config.num_weights == sum(math.prod(x.shape) for x in arrays if len(x.shape) == 2)


def test_the_fit_finds_the_times_of_each_part():
    """Seconds are made by hand: token, layers, layer weights, output weights, cached numbers."""

    def seconds(c, context):
        weights = c.hidden_size * (2 * (c.num_heads + c.num_kv_heads) * c.head_dim + 3 * c.intermediate_size)
        parts = 1, c.num_layers, c.num_layers * weights, c.vocab_size * c.hidden_size
        return np.dot(SECONDS[:4], parts) + SECONDS[4] * 2 * 3 * c.num_layers * context * c.num_kv_heads * c.head_dim

    shapes = design._sample_shapes(TARGET, 400)
    exact = [Sample(*shape, seconds(*shape)) for shape in shapes]
    found = fit(exact, 3)
    assert found.seconds == pytest.approx(SECONDS, rel=1e-6)
    assert found.worst < 1e-6
    other = make_shape(TARGET, 3, 160, 2)
    assert found(other, 900) == pytest.approx(seconds(other, 900))

    wrong = [Sample(s.config, s.context, s.seconds * (2 if i == 4 else 1)) for i, s in enumerate(exact)]
    assert fit(wrong, 3).worst > 0.3


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.8, 0.99])
def test_the_best_length_against_all_lengths(acceptance):
    tokens = lambda gamma: (1 - acceptance ** (gamma + 1)) / (1 - acceptance)  # Leviathan et al., equation 1
    speeds = {gamma: tokens(gamma) / (gamma * 2e-4 + verify(gamma + 1)) for gamma in range(1, design.LONGEST + 1)}
    best = max(speeds, key=lambda gamma: speeds[gamma])
    assert best_length(2e-4, TIMES, acceptance) == (best, pytest.approx(speeds[best]))


def test_the_needed_acceptance_against_a_fine_grid():
    speed = best_length(1e-4, TIMES, 0.6)[1]
    for seconds in (5e-5, 1e-4, 4e-4):
        enough = [a for a in np.linspace(0, 1, 4001) if best_length(seconds, TIMES, a)[1] >= speed]
        assert needed_acceptance(seconds, TIMES, speed) == pytest.approx(enough[0], abs=5e-4)
    assert needed_acceptance(1.0, TIMES, speed) is None


def test_two_drafts_break_even_where_tokens_rise_like_time():
    """TAR_1 / TAR_2 = (gamma t_1 + t_T) / (gamma t_2 + t_T) (2402.01528, section 5), here with gamma = 1."""
    times = Times(1e-3, lambda nodes: 1e-3 if nodes == 2 else 1.0, LATENCY)
    equal = needed_acceptance(3e-4, times, best_length(1e-4, times, 0.5)[1])
    assert (1 + 0.5) / (1 + equal) == pytest.approx((1e-4 + 1e-3) / (3e-4 + 1e-3), abs=1e-3)


@pytest.mark.parametrize("budget", ["120K", "0.45ms"])
def test_shapes_are_the_widest_within_the_budget(budget):
    budget = Budget.parse(budget)
    size = (lambda c: LATENCY(c, 100)) if budget.in_seconds else lambda c: c.num_weights
    found = design.design(TARGET, TIMES, budget, acceptance=0.7, context=100)
    for one in found:
        c, width = one.config, one.config.hidden_size
        wider = width + (16 if width < 128 else 32)  # half a head of 32, and from four heads on a whole one
        assert size(c) <= budget.most
        assert (
            wider > 256
            or size(make_shape(TARGET, c.num_layers, wider, c.intermediate_size // c.hidden_size)) > budget.most
        )
        assert one.speed == pytest.approx(one.tokens_per_round / (one.drafted * one.seconds + verify(one.drafted + 1)))
        assert one.speedup == pytest.approx(one.speed * 1e-3)
    order = [one.config.num_weights if budget.in_seconds else one.speed for one in found]
    assert order == sorted(order, reverse=True)
    assert {one.config.num_layers for one in found} <= {1, 2, 3, 4, 6}


@pytest.mark.parametrize("text", ["", "0", "-3M", "3 parsecs", "1e6", "ms"])
def test_a_budget_of_another_form_is_refused(text):
    with pytest.raises(RequestError, match="write it as 900K, 1.3B, 300us or 2.5ms"):
        Budget.parse(text)


def test_budgets():
    assert [Budget.parse(text) for text in ("900K", "1.3B", "300us", "2.5ms", "5000")] == [
        Budget(900e3, False), Budget(1.3e9, False), Budget(300e-6, True), Budget(2.5e-3, True), Budget(5000, False)
    ]  # fmt: skip
