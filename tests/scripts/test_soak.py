"""scripts/benchmarks/soak.py at toy size: many batches of random options, one compilation for all, greedy rows equal to plain decoding."""

import importlib.util
from pathlib import Path

import pytest
from support.models import disturbed, language_model, random_prompts, tiny_model

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "benchmarks" / "soak.py"


@pytest.mark.slow
def test_random_options_change_nothing(monkeypatch):
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "STOPS", ["!", "#", '"', "%&", "()", "A"])
    monkeypatch.setattr(script, "REGEXES", [None, "[!-Z]{2,40}", "[!-Z]+"])
    target = language_model(tiny_model(0, 4.0, num_layers=1))
    draft = language_model(disturbed(target.model))
    report = script.soak(
        target, "draft_model", draft, random_prompts(20, 60), prompts=240, rows=8, watch=lambda turns, _: turns
    )
    assert report["different"] == report["broken"] == report["compiled_after_warm_up"] == 0, report
    assert report["array_growth"] <= 0
    assert min(report[name] for name in ("greedy", "stop_string", "stop_token", "length")) > 10
