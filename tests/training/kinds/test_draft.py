"""The losses of draft models against their formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.float64_training import DIVERGENCES, KEY, WEIGHT, WINDOW, Computed, S, V, softmax
from support.models import disturbed, tiny_model

from specjax.training import losses
from specjax.training.kinds.draft import DraftLoss


def test_draft_losses(target, out):
    draft = tiny_model(1, num_layers=1)
    p, q = out.logits, Computed(draft).logits

    @jax.jit
    def found(draft, target):
        named = (DraftLoss(**{"forward_kl": 0.0} | {name: 2.0}, lk_scale=0.9, lk_fall=2.0) for name in DIVERGENCES)
        return [loss(draft, jnp.asarray(WINDOW), jnp.asarray(WEIGHT), KEY, target) for loss in named]

    for value, divergence in zip(found(draft, target.model), DIVERGENCES.values()):
        rows = [divergence(softmax(p[b, i]), softmax(q[b, i]), WINDOW[b, i + 1]) for b in range(2) for i in range(S)]
        assert float(value) == pytest.approx(2 * np.average(rows, weights=WEIGHT[:, 1:-1].ravel()), rel=1e-4)


def test_with_earlier_drafts_only_tokens_count_that_all_miss(target, out):
    draft, *earlier = (disturbed(target.model, 0.3 + 0.1 * seed) for seed in range(3))
    loss = jax.jit(lambda *models: DraftLoss()(models[0], jnp.asarray(WINDOW), jnp.asarray(WEIGHT), KEY, *models[1:]))
    found = float(loss(draft, target.model, tuple(earlier)))
    q, *guesses = (Computed(model).logits for model in (draft, *earlier))
    values, weights = [], []
    for b in range(2):
        for i in range(S):
            missed = all(guess[b, i].argmax() != out.logits[b, i].argmax() for guess in guesses)
            values.append(DIVERGENCES["forward_kl"](softmax(out.logits[b, i]), softmax(q[b, i]), None))
            weights.append(WEIGHT[b, i + 1] * missed)
    assert 0 < np.count_nonzero(weights) < np.count_nonzero(WEIGHT[:, 1:-1])
    assert found == pytest.approx(np.average(values, weights=weights), rel=1e-4)


def test_pieces_give_what_the_whole_gives(target, monkeypatch):
    draft, whole = tiny_model(1, num_layers=1), DraftLoss()
    gradient = lambda: jax.jit(
        jax.value_and_grad(lambda d: whole(d, jnp.asarray(WINDOW), jnp.asarray(WEIGHT), KEY, target.model))
    )(draft)
    right = gradient()
    monkeypatch.setattr(losses, "MOST_LOGITS", 2 * V * 4)  # four rows at a time, of nine
    for a, b in zip(jax.tree.leaves(gradient()), jax.tree.leaves(right)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
