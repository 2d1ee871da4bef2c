"""Training: batches that cover the text, losses against numpy, and a resumed run that equals an uninterrupted one bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.models import tiny_model

from specjax import NumericsError
from specjax.models.layers import linear
from specjax.training import data, losses
from specjax.training.loop import fit, step_of
from specjax.training.optimizers import Optimizer

WINDOW = np.random.default_rng(0).integers(0, 61, (2, 13)).astype(np.int32)


@pytest.fixture(autouse=True)
def promotion():
    """optax mixes integers and floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def test_an_epoch_covers_the_stream_once():
    stream, length, batch = np.arange(1000, dtype=np.int32), 10, 7
    rows = (stream.size - 1) // length - 1
    steps = [data.batch_at(stream, seed=3, step=s, batch=batch, length=length) for s in range(rows // batch)]
    windows = np.concatenate(steps)
    assert windows.shape[1] == length + 1
    assert (np.diff(windows, axis=1) == 1).all()
    assert np.unique(windows[:, 0]).size == len(windows)  # no window twice
    assert (data.batch_at(stream, 3, 5, batch, length) == steps[5]).all()
    assert (data.batch_at(stream, 4, 5, batch, length) != steps[5]).any()


def test_epochs_differ():
    stream = np.arange(101, dtype=np.int32)
    first, second = (np.sort(data.batch_at(stream, 0, step, 9, 10)[:, 0]) for step in (0, 1))
    assert (first != second).any()


def test_held_out_modules_are_not_trained_on():
    trained, held = (set(data.standard_library(held_out=h)) for h in (False, True))
    assert trained and held and not trained & held
    assert 0.02 < len(held) / len(trained | held) < 0.1


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_losses_against_numpy():
    target, draft = tiny_model(0), tiny_model(1)
    p, q = (softmax(np.asarray(losses.scores(m, jnp.asarray(WINDOW[:, :-1])), np.float64)) for m in (target, draft))
    cross_entropy = -np.log(np.take_along_axis(q, WINDOW[:, 1:, None], -1)).mean()
    divergence = (p * np.log(p / q)).sum(-1).mean()
    assert float(losses.next_token(draft, jnp.asarray(WINDOW))) == pytest.approx(cross_entropy, rel=1e-4)
    assert float(losses.distillation(draft, jnp.asarray(WINDOW), target)) == pytest.approx(divergence, rel=1e-4)
    assert float(losses.distillation(target, jnp.asarray(WINDOW), target)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("rows", [(1,), (2, 5)])
def test_gradients_of_a_linear_map(dtype, tolerance, rows):
    x, w, g = (np.random.default_rng(i).normal(size=s) for i, s in enumerate([(*rows, 6), (4, 6), (*rows, 4)]))
    x, w = (jnp.asarray(a, dtype) for a in (x, w))
    of_x, of_w = jax.grad(lambda x, w: (linear(x, w) * jnp.asarray(g, jnp.float32)).sum(), (0, 1))(x, w)
    assert of_x.dtype == of_w.dtype == dtype
    np.testing.assert_allclose(np.asarray(of_x, np.float64), g @ np.asarray(w, np.float64), tolerance, tolerance)
    expected = g.reshape(-1, 4).T @ np.asarray(x, np.float64).reshape(-1, 6)
    np.testing.assert_allclose(np.asarray(of_w, np.float64), expected, tolerance, 4 * tolerance)


def test_a_step_in_pieces_is_the_step():
    graph, params, rest = nnx.split(tiny_model(sharpness=1.0, num_layers=1), nnx.Param, ...)
    rule = Optimizer(rate=1e-2, warmup=0, name="adamw").rule(2)
    loss = lambda model, batch: losses.next_token(model, batch[0]) * batch[1]
    batch = np.concatenate([WINDOW, WINDOW + 0, (WINDOW + 7) % 61]), np.float32(0.5)
    steps = [step_of(graph, loss, rule, pieces)(jax.tree.map(jnp.copy, params), rule.init(params), rest, batch, ()) for pieces in (1, 3)]
    for whole, part in zip(*map(jax.tree.leaves, steps)):
        np.testing.assert_allclose(np.asarray(whole), np.asarray(part), 1e-3, 1e-5)


def trained(directory, steps, stop=None):
    stream = np.random.default_rng(1).integers(0, 61, 500).astype(np.int32)

    def batches(step):
        if step == stop:
            raise KeyboardInterrupt
        return data.batch_at(stream, 0, step, 4, 12)

    model = tiny_model(sharpness=1.0, num_layers=1)
    return fit(model, losses.next_token, batches, Optimizer(rate=1e-2, warmup=1).rule(6), steps, directory, every=2)


def test_resumed_is_bit_for_bit_uninterrupted(tmp_path):
    whole = trained(tmp_path / "whole", 6)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", 6, stop=5)
    resumed = trained(tmp_path / "cut", 6)
    leaves = zip(*(jax.tree.leaves(nnx.state(m)) for m in (whole, resumed, tiny_model(sharpness=1.0, num_layers=1))))
    for a, b, start in leaves:
        assert (a == b).all()
        assert (a != start).any()


def test_training_learns(tmp_path):
    pattern = np.tile(np.arange(1, 9, dtype=np.int32), 60)
    batches = lambda step: data.batch_at(pattern, 0, step, 4, 16)
    start = tiny_model(sharpness=1.0, num_layers=1)
    end = fit(start, losses.next_token, batches, Optimizer(rate=2e-2, warmup=2).rule(30), 30, tmp_path, every=30)
    before, after = (float(losses.next_token(m, jnp.asarray(batches(0)))) for m in (start, end))
    assert after < 0.3 * before


def test_a_loss_that_is_not_finite_stops(tmp_path):
    with pytest.raises(NumericsError, match="step 1"):
        fit(
            tiny_model(),
            lambda model, batch: jnp.float32(jnp.nan) * model.norm[...].sum(),
            lambda step: WINDOW,
            Optimizer(rate=1e-2).rule(2),
            2,
            tmp_path,
        )
