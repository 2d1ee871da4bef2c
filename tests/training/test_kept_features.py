"""Features on disk: against the target's own forward pass, interrupted trainings, the bound."""

import jax
import numpy as np
import pytest

from specjax.errors import RequestError
from specjax.heads.training_forward import read_target
from specjax.training import data
from specjax.training.kept_features import FEATURES, KeptBatches
from specjax.training.kinds import KINDS
from specjax.training.recipe import make_recipe
from specjax.training.run import train

LENGTH, BATCH = 24, 4


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.py"
    path.write_text("\n".join(f"def f{i}(x):\n    return x + {i * i}" for i in range(60)))
    return path


def recipe(**changes):
    table = dict(kind="eagle3", loss={"steps": 2}, length=LENGTH, batch=BATCH, prompts=0, features=1 << 30, steps=6)
    return make_recipe(table | changes, "test")


@pytest.fixture
def make(target, text, tmp_path):
    """Makes the batches of a recipe."""
    mixture, _ = data.read_streams([text], target.tokenizer, 0)

    def make(**changes):
        of = recipe(**changes)
        head = KINDS["eagle3"].shape.make(of.head, target, mixture.learnt, jax.random.key(0))
        return KeptBatches(of, mixture, target.model, head, tmp_path), head.config.taps, mixture

    return make


def test_features_are_those_of_the_target(make, target):
    """When they are computed, and when they are read from disk."""
    batches, taps, mixture = make()
    first, learnt, _ = batches.read(0)
    again, marks, _ = batches.read(0)
    jax.tree.map(np.testing.assert_array_equal, (first, learnt), (again, marks))
    out = jax.jit(read_target, static_argnums=2)(target.model, np.asarray(first.tokens), taps)
    for given, right in ((first.taps, np.stack(out.taps, 2)), (first.hidden, out.hidden)):
        np.testing.assert_allclose(np.float32(given), np.float32(right), rtol=1e-2, atol=1e-2)
    stream = mixture.streams[0]
    for window, mark in zip(first.tokens, learnt):
        places = range(0, stream.tokens.size - LENGTH, LENGTH)
        starts = [s for s in places if (stream.tokens[s : s + LENGTH + 1] == window).all()]
        assert any((stream.learnt[s : s + LENGTH + 2] == mark).all() for s in starts)


def test_each_window_is_computed_once(make):
    batches, _, mixture = make()
    calls = []
    compute, batches._compute = batches._compute, lambda windows: (calls.append(1), compute(windows))[1]
    epochs = 3
    steps = epochs * (mixture.streams[0].tokens.size // LENGTH) // BATCH
    for step in range(steps):
        batches.read(step)
    assert len(calls) <= steps / epochs + 2


def test_the_bound_holds(make):
    """Windows without room are computed each time, and are the same."""
    unbounded, _, _ = make()
    right = [unbounded.read(step)[0] for step in range(6)]
    unbounded._rows.unlink()
    unbounded._marks.unlink()
    size = unbounded._bytes
    bounded, _, _ = make(features=3 * size)
    for step, window in enumerate(right):
        jax.tree.map(np.testing.assert_array_equal, bounded.read(step)[0], window)
    assert bounded._rows.stat().st_size <= 3 * size


def test_a_write_that_was_cut_counts_for_nothing(make):
    batches, _, _ = make()
    right, _, _ = batches.read(0)
    batches._marks.write_bytes(b"")
    batches._rows.write_bytes(b"\7" * 100)
    jax.tree.map(np.testing.assert_array_equal, batches.read(0)[0], right)


def test_an_interrupted_training_is_that_without_interruption(target, text, tmp_path):
    class Stop(Exception):
        pass

    calls = []

    def stop(module):
        calls.append(module)
        if len(calls) == 2:
            raise Stop

    whole = train(recipe(every=2), target, [text], tmp_path / "whole", measure=lambda module: None)
    with pytest.raises(Stop):
        train(recipe(every=2), target, [text], tmp_path / "cut", measure=stop)
    resumed = train(recipe(every=2), target, [text], tmp_path / "cut", measure=lambda module: None)
    leaves = [jax.tree.leaves(head.module) for head in (whole, resumed)]
    for a, b in zip(*leaves):
        np.testing.assert_array_equal(a, b)
    assert (tmp_path / "cut" / FEATURES / "rows.bin").stat().st_size > 0


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(kind="medusa", loss={}), "kind 'medusa' keeps no features of its windows; leave features out"),
        (dict(on_policy="target"), "on one device; leave on_policy and [mesh] out"),
        (dict(mesh={"data": 2}), "on one device; leave on_policy and [mesh] out"),
    ],
)
def test_recipes_that_keep_no_features(changes, message):
    with pytest.raises(RequestError) as error:
        recipe(**changes)
    assert message in str(error.value)
