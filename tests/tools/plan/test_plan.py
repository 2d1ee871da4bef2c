"""Plans: the arithmetic of predictions, settings in files, and plans by the compilers of TPU and GPU (second tier)."""

import dataclasses
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import TINY

from specjax import RequestError, make_mesh
from specjax.checkpoints.config import read_shape
from specjax.drafters import METHODS, DraftModel, needs_of
from specjax.loop.drafter import TrainedHead
from specjax.tools.plan import plan as plan_module
from specjax.tools.plan import report as plan_report
from specjax.tools.plan import round_time as rounds
from specjax.tools.plan.devices import DEVICES, parse_device
from specjax.tools.plan.plan import break_even, tokens_a_round
from specjax.tools.plan.program_figures import Figures
from specjax.tools.plan.round_time import add, plan_round, predict
from specjax.tools.plan.settings import make_planned_drafter, read_settings

PLANS = sorted((Path(__file__).parents[3] / "configs" / "plans").glob("*.toml"))
FIGURES = Figures(
    weights=10, draft=0, cache=2, temporaries=1, moved=3.35e9, least=3e9, operations=1e9, launches=100,
    collectives={("all-reduce", 4500): 10, ("all-gather", 900): 1}, copies=0,
)  # fmt: skip


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("depth", [0, 1, 5])
def test_tokens_of_a_round(alpha, depth):
    """The mean over all outcomes of ``depth`` independent trials, each listed with its probability."""
    outcomes = [alpha**k * (1 - alpha if k < depth else 1) for k in range(depth + 1)]
    assert math.isclose(sum(outcomes), 1)
    assert math.isclose(tokens_a_round(alpha, depth), sum((k + 1) * p for k, p in enumerate(outcomes)))


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.5, 0.9, 1.2])
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_break_even_against_a_fine_grid(ratio, depth):
    faster = [alpha for alpha in np.linspace(0, 1, 10001) if tokens_a_round(alpha, depth) * ratio >= 1]
    found = break_even(ratio, depth)
    assert (found is None) == (not faster)
    if faster:
        assert found == pytest.approx(faster[0], abs=1e-4)


def test_seconds_by_hand():
    """1 ms of memory, 100 launches of 2 µs, eleven collectives of 8 µs, 10 x 7,875 and 787.5 bytes over the links."""
    links = (10 * 2 * 7 / 8 * 4500 + 7 / 8 * 900) / 450e9
    assert predict(FIGURES, DEVICES["h100"], 8) == pytest.approx(1e-3 + 100 * 2e-6 + 11 * 8e-6 + links)
    busy = dataclasses.replace(FIGURES, operations=989e12, collectives={})
    assert predict(busy, DEVICES["h100"], 1) == pytest.approx(1 + 100 * 2e-6)
    assert predict(FIGURES, DEVICES["v5e"], 1) == pytest.approx(3.35e9 / 819e9 + 11e-6)
    streamed = dataclasses.replace(FIGURES, streamed=8e9, collectives={})
    assert predict(streamed, DEVICES["h100"], 1) == pytest.approx(1e-3 + 100 * 2e-6 + 8 / 64)


def test_figures_add_up():
    other = dataclasses.replace(
        FIGURES, weights=4, collectives={("all-reduce", 4500): 2, ("all-to-all", 1): 1}, copies=3
    )
    found = add(FIGURES, other, -0.5)
    assert (found.weights, found.launches, found.copies) == (8, 50, 3)
    assert found.collectives == {("all-reduce", 4500): 9, ("all-gather", 900): 1, ("all-to-all", 1): -0.5}


def test_a_round_has_all_layers_of_all_models(monkeypatch):
    """With figures that are linear in both depths, the round of a deep pair follows exactly."""
    depths = []

    def figures(target, drafter, drafts, mesh, **sizes):
        depths.append((target.num_layers, *(draft.num_layers for draft in drafts)))
        L, M = depths[-1]
        launches = 7 + 12 * L + 5 * M
        return dataclasses.replace(FIGURES, launches=launches, collectives={("all-reduce", 8): 2 * L + 1})

    monkeypatch.setattr(rounds, "_figures", figures)
    big = TINY.replace(hidden_size=8192, intermediate_size=28672, num_heads=64, num_kv_heads=8, head_dim=128)
    sizes = dict(batch=1, capacity=256, dtype=jnp.dtype("bfloat16"))
    pair = big.replace(num_layers=80), (big.replace(num_layers=32),)
    found = plan_round(pair[0], DraftModel(5), pair[1], make_mesh(), DEVICES["h100"], **sizes)
    assert found.figures.launches == 7 + 12 * 80 + 5 * 32
    assert found.figures.collectives == {("all-reduce", 8): 161}
    assert found.launches_a_layer == 12
    assert max(max(pair) for pair in depths) <= 6


@pytest.mark.parametrize(
    ("method", "options", "depth"), [("draft_model", {"draft_length": "ema"}, 5), ("auto", {}, 12)]
)
def test_a_method_that_chooses_is_planned_with_its_largest_drafts(method, options, depth, monkeypatch):
    """A round runs one shape of drafts, so the shapes must not add up."""
    drafter, seen = make_planned_drafter(method, TINY, options), []
    monkeypatch.setattr(plan_module, "compile_only", lambda *_: jax.devices()[:1])
    monkeypatch.setattr(plan_module, "prefill_memory", lambda *_, **__: 0)
    monkeypatch.setattr(
        plan_module,
        "plan_round",
        lambda target, drafter, *_, **__: seen.append(drafter) or rounds.Round(FIGURES, 1, 1.0),
    )
    found = plan_module.plan(TINY, drafter, (TINY,), device="h100:1", max_length=64)
    assert found["chooses_drafts"] and found["depth"] == depth
    assert [one.chooser for one in seen] == [None, None] and seen[1].depth == depth
    assert not plan_module.plan(TINY, DraftModel(3), (TINY,), device="h100:1", max_length=64)["chooses_drafts"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(batsh=2), "option 'batsh' is unknown; did you mean batch"),
        (dict(batch=0), "batch must be a whole number, at least 1"),
        (dict(max_length=1), "max_length must be a whole number, at least 2"),
        (dict(dtype="int8"), "dtype is 'int8'"),
        (dict(draft_quantize="int3"), "draft_quantize is 'int3'"),
    ],
)
def test_settings_that_no_plan_has_are_refused(settings, words):
    with pytest.raises(RequestError, match=words):
        plan_module.plan(TINY, DraftModel(3), (TINY,), device="h100:1", **settings)


def test_the_error_of_a_plan_that_does_not_fit():
    memory = dict(weights=140e9, cache=2e9, draft=2e9, temporaries=1e9, total=145e9)
    planned = dict(memory_bytes=memory, device_memory_bytes=80e9, device="h100:1", mesh=dict(data=1, model=1))
    planned["offload"] = False
    assert plan_report.too_large(planned) == (
        "the plan does not fit: it needs 145.0 GB a device and h100:1 has 80 GB; use about 2 devices or "
        "quantised weights or offload"
    )
    full = planned | dict(memory_bytes=memory | dict(cache=60e9, total=203e9), mesh=dict(data=1, model=2))
    assert "about 6 devices or a smaller batch or max-length or quantised" in plan_report.too_large(full)
    both = planned | dict(memory_bytes=memory | dict(draft=90e9, total=233e9))
    assert "use a smaller draft or quantised weights" in plan_report.too_large(both)


@pytest.mark.parametrize("file", PLANS, ids=lambda file: file.stem)
def test_settings_of_this_project(file):
    """Each file names devices, a mesh of as many devices that divides the model, and models that are in configs/."""
    settings = read_settings(file)
    name, shape = parse_device(settings["device"])
    assert math.prod(shape) == math.prod(settings["mesh"].values())
    target = read_shape(settings["model"])
    target.split_over(settings["mesh"]["model"])
    drafter = make_planned_drafter(settings["method"], target, settings["options"])
    drafter.check(target)
    assert settings["max_length"] <= target.context
    for draft in settings.get("draft", []):
        assert read_shape(draft).vocab_size == target.vocab_size


def test_heads_of_usual_shapes_exist_for_all_methods():
    target = TINY.replace(num_layers=8)
    for method in METHODS:
        needs = needs_of(method)
        if isinstance(needs, TrainedHead):
            drafter = make_planned_drafter(method, target, {})
            assert drafter.head.kind == needs.kind and drafter.head.target_layers == 8
            drafter.check(target)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('modell = "x"', "key 'modell' is unknown; did you mean model?"),
        ("zzz = 1", "key 'zzz' is unknown; use one of model, draft, "),
        ('batch = "8"', "batch = '8' must be a whole number"),
        ("draft = [1]", "must be a list of strings"),
        ("mesh = 8", "must be a table"),
        ("[mesh]\nmodle = 2", "mesh axis 'modle' is unknown; use data, model, nodes"),
        ("model = ", "not TOML"),
    ],
)
def test_files_with_other_settings_are_refused(tmp_path, text, named):
    file = tmp_path / "plan.toml"
    file.write_text(text)
    with pytest.raises(RequestError, match=named):
        read_settings(file)
