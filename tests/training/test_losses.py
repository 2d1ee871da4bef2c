"""Losses of language models against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import tiny_model

from specjax.training import losses

WINDOW = np.random.default_rng(0).integers(0, 61, (2, 13)).astype(np.int32)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_losses_against_numpy():
    target, draft = tiny_model(0, num_layers=1), tiny_model(1, num_layers=1)
    scores, next_token, distillation = map(jax.jit, (losses.scores, losses.next_token, losses.distillation))
    window = jnp.asarray(WINDOW)
    p, q = (softmax(np.asarray(scores(model, window[:, :-1]), np.float64)) for model in (target, draft))
    cross_entropy = -np.log(np.take_along_axis(q, WINDOW[:, 1:, None], -1)).mean()
    divergence = (p * np.log(p / q)).sum(-1).mean()
    assert float(next_token(draft, window)) == pytest.approx(cross_entropy, rel=1e-4)
    assert float(distillation(draft, window, target)) == pytest.approx(divergence, rel=1e-4)
    assert float(distillation(target, window, target)) == pytest.approx(0, abs=1e-6)
