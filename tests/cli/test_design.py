"""``specjax design``: recipes that train the designed shapes, what bad input gets, and a run on this device."""

import json

import pytest
from support.command_line import assert_one_line, specjax_main
from support.models import TINY

from specjax.checkpoints.config import to_hf
from specjax.tools.design import search as design
from specjax.tools.design.draft_latency import Latency
from specjax.tools.design.search import Times, needed_acceptance
from specjax.training.recipe import read_recipe

TARGET = TINY.replace(vocab_size=512, hidden_size=256, num_layers=8, num_heads=8, num_kv_heads=4, head_dim=32)
TIMES = Times(1e-3, lambda nodes: 1e-3 + 5e-5 * nodes, Latency((1e-4, 3e-5, 1e-10, 2e-10, 4e-10), 1, 0.0, 0.0))


def test_the_command_writes_recipes_that_train_the_shapes(specjax_main, tmp_path, monkeypatch):
    planned = []
    monkeypatch.setattr("specjax.tools.plan.devices.compile_only", lambda *device: None)  # may not be installed
    monkeypatch.setattr(design, "plan_times", lambda config, *args, **options: planned.append(config) or TIMES)
    shape = tmp_path / "shape.json"
    shape.write_text(json.dumps(to_hf(TARGET)))
    command = lambda *argv: specjax_main("design", "--model", shape, "--device", "h100", *argv)
    code, out, _ = command("--budget", "120K", "--json", "--output", tmp_path / "out")
    assert code == 0 and planned[0].dtype == "bfloat16"
    report = json.loads(out)
    assert report == json.loads((tmp_path / "out" / "design.json").read_text())
    assert "2×" in (tmp_path / "out" / "design.svg").read_text()
    for rank, found in enumerate(report["shapes"][:5], 1):
        recipe = read_recipe(tmp_path / "out" / f"draft-{rank}.toml")
        config = recipe.head.config(TARGET)
        assert {name: getattr(config, name) for name in found if hasattr(config, name)}.items() <= found.items()
        assert config.num_weights == found["weights"]
    equal = report["break_even"][0][1]
    assert equal == pytest.approx(
        needed_acceptance(report["shapes"][1]["seconds_per_token"], TIMES, report["shapes"][0]["tokens_per_second"])
    )
    for argv, words in (
        (["--budget", "1K"], "no shape meets the budget; the smallest one has"),
        (["--budget", "1us"], "no shape meets the budget; the smallest one takes"),
        (["--budget", "many"], "budget 'many' is neither weights nor a time"),
        (["--output", tmp_path / "out"], "exists and is not empty; name a new directory"),
        (["--acceptance", "1.5"], "must be a number from 0 to 1"),
    ):
        assert_one_line(command(*argv), words)


@pytest.mark.slow
def test_a_design_is_measured_here(specjax_main, monkeypatch):
    monkeypatch.setattr(design, "_SAMPLES", ((1, 4), (1, 2), (1, 1), (2, 4), (2, 2)))
    code, out, _ = specjax_main("design", "--budget", "900K", "--json")
    report = json.loads(out)
    assert code == 0 and report["shapes"][0]["num_layers"] <= 2
    assert report["latency"]["median_error"] < 0.5
