"""The loop learns, resumes bit for bit, splits a step into pieces, and stops at a loss that is not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.models import tiny_model

from specjax import NumericsError
from specjax.training import data, losses
from specjax.training.loop import BatchSource, _Log, fit, make_step
from specjax.training.optimizers import Optimizer

WINDOW = np.random.default_rng(0).integers(0, 61, (2, 13)).astype(np.int32)


def test_a_step_in_pieces_is_the_step():
    graph, params, rest = nnx.split(tiny_model(sharpness=1.0, num_layers=1), nnx.Param, ...)
    optimizer = Optimizer(rate=1e-2, warmup=0, name="adamw").make(2)
    loss = lambda model, batch: losses.next_token(model, batch[0]) * batch[1]
    batch = np.concatenate([WINDOW, WINDOW + 0, (WINDOW + 7) % 61]), np.float32(0.5)
    steps = [
        make_step(graph, loss, optimizer, pieces)(
            jax.tree.map(jnp.copy, params), optimizer.init(params), rest, batch, ()
        )
        for pieces in (1, 3)
    ]
    for whole, part in zip(*map(jax.tree.leaves, steps)):
        np.testing.assert_allclose(np.asarray(whole), np.asarray(part), 1e-3, 1e-5)


def trained(directory, steps, stop=None):
    stream = np.random.default_rng(1).integers(0, 61, 500).astype(np.int32)

    def batches(step):
        if step == stop:
            raise KeyboardInterrupt
        return whole(stream).cut(0, 4 * step, 4, 12)[0]

    model = tiny_model(sharpness=1.0, num_layers=1)
    return fit(
        model,
        losses.next_token,
        BatchSource(batches),
        Optimizer(rate=1e-2, warmup=1).make(6),
        steps,
        directory,
        every=2,
    )


@pytest.mark.slow
def test_resumed_is_bit_for_bit_uninterrupted(tmp_path):
    whole = trained(tmp_path / "whole", 6)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", 6, stop=5)
    resumed = trained(tmp_path / "cut", 6)
    leaves = zip(*(jax.tree.leaves(nnx.state(m)) for m in (whole, resumed, tiny_model(sharpness=1.0, num_layers=1))))
    for a, b, start in leaves:
        assert (a == b).all()
        assert (a != start).any()


def whole(tokens: np.ndarray) -> data.Mixture:
    """The tokens as the only stream, all of them learnt."""
    return data.Mixture.join([data.Stream(tokens, np.ones(tokens.size, bool))])


def test_training_learns(tmp_path):
    pattern = np.tile(np.arange(1, 9, dtype=np.int32), 60)
    batches = lambda step: whole(pattern).cut(0, 4 * step, 4, 16)[0]
    start = tiny_model(sharpness=1.0, num_layers=1)
    end = fit(
        start, losses.next_token, BatchSource(batches), Optimizer(rate=2e-2, warmup=2).make(30), 30, tmp_path, every=30
    )
    value = jax.jit(losses.next_token)
    before, after = (float(value(model, jnp.asarray(batches(0)))) for model in (start, end))
    assert after < 0.3 * before


def test_a_loss_that_is_not_finite_stops(tmp_path):
    with pytest.raises(NumericsError, match="step 1"):
        fit(
            tiny_model(num_layers=1),
            lambda model, batch: jnp.float32(jnp.nan) * model.norm[...].sum(),
            BatchSource(lambda step: WINDOW),
            Optimizer(rate=1e-2).make(2),
            2,
            tmp_path,
        )


def test_a_loss_that_is_not_finite_keeps_the_checkpoint_before(tmp_path):
    model = tiny_model(num_layers=1, sharpness=1.0)
    loss = lambda model, batch: (batch * 1.0).sum() * model.norm[...].sum()
    batches = lambda step: np.full((2, 3), np.nan if step == 3 else 1.0, np.float32)
    with pytest.raises(NumericsError, match=r"step 4, of windows 6 to 8; the last checkpoint .* is good"):
        fit(
            model,
            loss,
            BatchSource(batches, describe=lambda step: f", of windows {2 * step} to {2 * step + 2}"),
            Optimizer(warmup=1).make(6),
            6,
            tmp_path,
            every=2,
        )
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["2"]


def test_lines_of_a_log_that_are_of_another_program_are_left_out(tmp_path):
    file = tmp_path / "log.jsonl"
    lines = [
        b'{"step": 1}',
        b"[1]",
        b"1",
        b'{"step": []}',
        b'{"step": null}',
        b"\xff\xfe",
        b"[" * 9000,
        b'{"step": 2}',
        b'{"st',
    ]
    file.write_bytes(b"\n".join(lines))
    _Log(file, 2)
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n'
    _Log(file, 1)
    assert file.read_text() == '{"step": 1}\n'
