"""The distance of two samples' laws against its definition, and the drafts of method auto in a check."""

from collections import Counter

import numpy as np
import pytest
from support.models import disturbed, language_model, tiny_model

from specjax import Generator
from specjax.core.stats import total
from specjax.tools.evaluate.lossless import UNLIKELY, always_drafting, compare_laws


def draws(law, count: int, prompt: int, seed: int) -> Counter:
    return Counter({(prompt, token): n for token, n in enumerate(np.random.default_rng(seed).multinomial(count, law))})


def jensen_shannon(a, b) -> float:
    middle = (a + b) / 2
    return float(sum(x @ np.log(x / middle) for x in (a, b)) / 2)


def test_the_distance_is_the_mean_divergence_of_the_prompts():
    p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.35, 0.3, 0.15, 0.2])
    a = draws(p, 40_000, 0, 0) + draws(p, 40_000, 1, 1)
    value, distance = compare_laws(a, draws(q, 40_000, 0, 2) + draws(p, 40_000, 1, 3), 2)
    assert value < UNLIKELY and distance == pytest.approx(jensen_shannon(p, q) / 2, rel=0.1)
    value, distance = compare_laws(a, draws(p, 40_000, 0, 4) + draws(p, 40_000, 1, 5), 2)
    assert value > UNLIKELY and distance < 1e-4


def test_method_auto_drafts_in_a_check():
    """For 64 rows it rests otherwise, and a check would compare plain decoding with itself."""
    target = language_model(tiny_model(num_layers=1))
    auto = Generator(target, "auto", language_model(disturbed(target.model)))
    results = always_drafting(auto)([5, 6, 7], n=64, max_new_tokens=3, temperature=1.0)
    assert total([result.stats for result in results]).drafted > 64
    plain = Generator(auto.target, "none")
    assert always_drafting(plain) is plain
