"""Whole trainings: their log, resuming bit for bit, meshes, dtypes, and the drafter that is saved."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.float64_training import STREAM, WINDOW, S
from support.models import language_model, on_mesh
from support.training import are_equal, read_log, train_mtp

import specjax
from specjax import RequestError
from specjax.checkpoints.heads import load_drafter
from specjax.parallel import make_mesh
from specjax.training.kinds import KINDS, mtp
from specjax.training.recipe import make_recipe
from specjax.training.run import cast, make_loss, train


def test_a_run_logs_each_step_and_saves_its_head(whole, small, saved):
    output, head = whole
    log = read_log(output)
    assert [record["step"] for record in log] == [1, 2, 3, 4]
    assert [record.get("acceptance") for record in log] == [None, 1.5, None, 1.5]
    assert all(record["loss"] > 0 and record["tokens_per_second"] > 0 for record in log)
    assert head.config.kind == "mtp"
    untrained = mtp.MtpShape().make(small, STREAM, jax.random.key(0))
    assert not np.array_equal(untrained.modules[0].join[...], head.module.modules[0].join[...])


def test_an_interrupted_run_goes_on_bit_for_bit(whole, small, text, tmp_path, saved):
    """Killed after the first checkpoint and in the middle of a line; a half-written checkpoint and a damaged newest one are passed over."""
    stop = iter([1.5])
    with pytest.raises(StopIteration):
        train_mtp(small, text, tmp_path, measure=lambda module: next(stop))
    checkpoints = tmp_path / "checkpoints"
    assert sorted(int(p.name) for p in checkpoints.iterdir()) == [2, 4]
    for file in (p for p in (checkpoints / "4").rglob("*") if p.is_file() and p.stat().st_size > 200):
        file.write_bytes(file.read_bytes()[:100])
    shutil.copytree(checkpoints / "2", checkpoints / "3.orbax-checkpoint-tmp-7")
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"step": 4, "lo')
    head = train_mtp(small, text, tmp_path)
    assert are_equal(head, whole[1])
    assert [(r["step"], r["loss"]) for r in read_log(tmp_path)] == [(r["step"], r["loss"]) for r in read_log(whole[0])]


@pytest.mark.parametrize(("data", "model"), [(4, 2), pytest.param(8, 1, marks=pytest.mark.slow)])
def test_a_mesh_gives_the_same_losses_and_parameters(whole, small, text, tmp_path, saved, data, model):
    spread = language_model(on_mesh(small.model, make_mesh(data, model)), "small")
    head = train_mtp(spread, text, tmp_path, mesh={"data": data, "model": model})
    for a, b in zip(read_log(tmp_path), read_log(whole[0])):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5) and a["gradient_norm"] == pytest.approx(
            b["gradient_norm"], rel=1e-4
        )
    for a, b in zip(*(jax.tree.leaves(nnx.state(h.module)) for h in (head, whole[1]))):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("kind", [pytest.param("medusa", marks=pytest.mark.slow), "hydra"])
def test_heads_without_layers_are_saved_in_the_dtype_of_the_target(small, text, tmp_path, kind):
    target = dataclasses.replace(small, model=cast(small.model, "bfloat16"))
    short = dict(kind=kind, loss={}, head={"num_heads": 2}, steps=1, batch=2)
    head = train_mtp(target, text, tmp_path, **short)
    assert head.config.dtype == "bfloat16" and load_drafter(tmp_path, target).config == head.config


def test_another_recipe_is_not_mixed_in(whole, small, text, saved):
    with pytest.raises(RequestError, match="holds a run with seed 0, not 1; name another --output"):
        train_mtp(small, text, whole[0], seed=1)


def test_in_bfloat16_gradients_reach_every_parameter(small):
    heads = {
        "eagle3": {"draft_vocab_size": 30, "taps": [1], "from_target": True},
        "block": {"num_layers": 1, "block_size": 4},
    }
    for kind, shape in heads.items():
        recipe = make_recipe(
            {
                "kind": kind,
                "dtype": "bfloat16",
                "length": S,
                "head": shape,
                "loss": {"steps": 2} if kind == "eagle3" else {},
            },
            kind,
        )
        module = KINDS[kind].shape.make(recipe.head, small, STREAM, jax.random.key(0))
        if kind == "eagle3":
            assert (module.layers[0].mlp.down[...] == small.model.layers[0].mlp.down[...]).all()
        graph, params, rest = nnx.split(module, nnx.Param, ...)
        loss = make_loss(recipe)
        batch = jnp.asarray(WINDOW), jnp.ones((2, S + 2), bool), jnp.uint32(0)
        found = jax.jit(jax.grad(lambda params, target: loss(nnx.merge(graph, params, rest), batch, target)))(
            params, small.model
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(found):
            assert leaf.dtype == jnp.float32
            assert np.isfinite(leaf).all() and np.abs(leaf).max() > 0, path


def test_a_draft_is_measured_and_saved(small, text, tmp_path):
    """The whole of it with the engine: acceptance on held-out prompts, and a checkpoint that loads."""
    specjax.save(small, tmp_path / "start")
    table = dict(
        kind="draft", head={"start": str(tmp_path / "start")}, optimizer={"rate": 1e-6, "name": "adamw"}, prompts=2
    )
    train(make_recipe(table | dict(steps=2, every=1, batch=2, length=12), "test"), small, [text], tmp_path / "run")
    assert [record["acceptance"] > 4 for record in read_log(tmp_path / "run")] == [
        True,
        True,
    ]  # it is the target, nearly
    draft = specjax.load(tmp_path / "run")
    assert draft.tokenizer.get_vocab() == small.tokenizer.get_vocab()
