"""The objectives of feedback against their formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.float64_training import KEY, WEIGHT, WINDOW, Computed, S, V, softmax
from support.models import tiny_model

from specjax.training.feedback.windows import FeedbackBatch, LoggedWindows
from specjax.training.kinds.draft import DraftLoss
from specjax.training.kinds.feedback import FeedbackLoss

RNG = np.random.default_rng(7)
K = 4


def make_windows() -> LoggedWindows:
    """Random verdicts: half of the places were visited, and some of them rejected. One place lists fewer tokens."""
    log_p = np.log([softmax(3 * RNG.normal(size=V)) for _ in range(2 * S)]).reshape(2, S, V)
    top_ids = np.argsort(-log_p, -1)[..., :K].astype(np.int32)
    top = np.take_along_axis(log_p, top_ids, -1).astype(np.float32)
    top[0, 0, 2:] = -np.inf
    label = np.where(RNG.random((2, S)) < 0.6, RNG.integers(0, V, (2, S)), -1).astype(np.int32)
    label[0, 0], label[1, 1] = 5, 6
    rejected = (label >= 0) & (RNG.random((2, S)) < 0.5)
    rejected[0, 0] = True
    action = np.where(label >= 0, RNG.integers(0, V, (2, S)), -1).astype(np.int32)
    number = lambda scale: (scale * RNG.normal(size=(2, S))).astype(np.float32)
    temperature = np.where(np.arange(S) % 2, 1.0, 0.7)[None].repeat(2, 0).astype(np.float32)
    old = np.log(RNG.uniform(0.002, 0.05, (2, S))).astype(np.float32)
    return LoggedWindows(WINDOW[:, :-1], label, rejected, top_ids, top, action, old, number(2), temperature)


WINDOWS = make_windows()


def distill(q, b, i):
    ids, p = WINDOWS.top_ids[b, i], np.exp(np.float64(WINDOWS.top[b, i]))
    q = softmax(q)[ids]
    listed = sum(p[k] * np.log(p[k] / q[k]) for k in range(K) if p[k] > 0)
    rest = 1 - sum(p), 1 - sum(q[k] for k in range(K) if p[k] > 0)
    return listed + rest[0] * np.log(rest[0] / rest[1])


def pseudo(q, b, i):
    return -np.log(softmax(q)[WINDOWS.label[b, i]])


def policy(q, b, i):
    new = softmax(q / WINDOWS.temperature[b, i])[WINDOWS.action[b, i]]
    ratio, A = new / np.exp(np.float64(WINDOWS.old[b, i])), WINDOWS.advantage[b, i]
    return -min(ratio * A, np.clip(ratio, 0.7, 1.3) * A)


CASES = {
    "distill all": (distill, WINDOWS.label >= 0),
    "distill rejected": (distill, WINDOWS.rejected),
    "pseudo all": (pseudo, WINDOWS.label >= 0),
    "pseudo rejected": (pseudo, WINDOWS.rejected),
    "policy all": (policy, WINDOWS.action >= 0),
}


def test_objectives(target):
    draft = tiny_model(1, num_layers=1)
    q, windows = Computed(draft).logits, jax.tree.map(jnp.asarray, WINDOWS)

    @jax.jit
    def found(draft, target):
        named = [name.split() for name in CASES]
        losses = [FeedbackLoss(objective=name, positions=places, clip=0.3, replay=0.0) for name, places in named]
        return [loss(draft, FeedbackBatch(windows, None), KEY, target) for loss in losses]

    for value, (formula, read) in zip(found(draft, target.model), CASES.values()):
        wanted = [formula(q[b, i], b, i) for b, i in np.argwhere(read)]
        assert len(wanted) > 3
        assert float(value) == pytest.approx(np.mean(wanted), rel=1e-4)


@pytest.mark.slow
def test_replay_has_the_weight_of_its_share(target):
    draft, windows = tiny_model(1, num_layers=1), jax.tree.map(jnp.asarray, WINDOWS)
    replay, loss = (jnp.asarray(WINDOW), jnp.asarray(WEIGHT)), FeedbackLoss(replay=0.3)
    value = lambda batch: float(jax.jit(loss)(draft, batch, KEY, target.model))
    divergence = float(jax.jit(DraftLoss())(draft, *replay, KEY, target.model))
    wanted = 0.7 * value(FeedbackBatch(windows, None)) + 0.3 * divergence
    assert value(FeedbackBatch(windows, replay)) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(("replay", "batch", "count"), [(0.0, 8, 0), (0.25, 8, 2), (0.01, 8, 1), (0.9, 4, 3)])
def test_a_batch_has_windows_of_both_kinds(replay, batch, count):
    assert FeedbackLoss(replay=replay).replayed(batch) == count
