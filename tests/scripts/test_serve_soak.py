"""scripts/benchmarks/serve_soak.py at toy size, with a server in a process of its own."""

import argparse
import importlib
from pathlib import Path

import numpy as np
import pytest
from support.models import disturbed, language_model, tiny_model

import specjax


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [None, 4], ids=["fixed slots", "few blocks"])
def test_random_requests_get_the_texts_of_a_generator(monkeypatch, tmp_path, blocks):
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "scripts" / "benchmarks")
    script = importlib.import_module("serve_soak")
    monkeypatch.setattr(script, "STOPS", ["!", "#", '"', "%&", "()", "A"])
    for name, value in dict(NEW=40, SAMPLES=[1, 1, 2], LEAVING=0.2, WRONG=0.2).items():
        monkeypatch.setattr(script, name, value)
    model = tiny_model(0, 4.0, num_layers=1)
    target, draft = language_model(model), language_model(disturbed(model))
    specjax.save(draft, tmp_path)
    texts = ["".join(map(chr, ids)) for ids in np.random.default_rng(0).integers(35, 80, (20, 40))]
    sizes = dict(requests=36, clients=4, slots=3, minutes=0, blocks=blocks)
    report = script.soak(target, texts, argparse.Namespace(draft=str(tmp_path), **sizes))
    assert report["passed"], report
    assert min(report[name] for name in ("right", "left", "invalid")) > 0
    assert report["at_the_signal"]["right"] == 8
