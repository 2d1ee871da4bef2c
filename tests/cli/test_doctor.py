"""``specjax doctor``: the answer before the figures, and what bad input gets."""

import json

import pytest
from support.command_line import assert_one_line, models, specjax_main

from specjax.tools.doctor import examination
from specjax.tools.doctor.report import answer

CAST = dict(
    batch=1, temperature=0.0, speedup=1.4, speedup_interval=[1.2, 1.6], tokens_per_round=2.5, break_even_tokens=1.8,
    round_ms=4.0, draft_ms=1.0, verify_ms=3.0, plain_ms=2.2,
)  # fmt: skip
REPORT = {
    "machine": {},
    "settings": {"model": "target", "draft": "draft", "method": "draft_model", "device": None},
    "forecasts": [
        CAST,
        CAST | dict(batch=8, speedup=0.5, speedup_interval=[0.4, 0.6]),
        CAST | dict(temperature=1.0, speedup=1.02, speedup_interval=[0.9, 1.1]),
    ],
    "reasons": [{"name": "verification", "text": "it is not free", "figures": {}}],
}


def test_the_answer_comes_before_the_figures(specjax_main, models, monkeypatch, tmp_path):
    monkeypatch.setattr(examination, "examine", lambda *args, **options: REPORT)
    argv = ("doctor", "--model", models["target"], "--draft", models["draft"], "--output", tmp_path / "report.json")
    code, out, err = specjax_main(*argv)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == "draft_model with draft on target, measured here:"
    assert lines[1] == "drafting helps: at batch 1, temperature 0 1.40 (1.20 to 1.60) times plain"
    assert lines[2].startswith("drafting may help or hurt: at batch 1, temperature 1 1.02")
    assert lines[3].startswith("drafting does not help: at batch 8") and lines[4] == "verification: it is not free"
    assert "pays from" in lines[6]
    assert json.loads(specjax_main(*argv, "--json")[1]) == REPORT == json.loads((tmp_path / "report.json").read_text())


def test_a_loss_without_a_reason_is_said():
    lines = answer(REPORT | {"reasons": [], "settings": REPORT["settings"] | {"device": "h100:1", "draft": None}})
    assert lines[0] == "draft_model on target, planned for h100:1:"
    assert lines[-1] == "no test finds a reason beside the acceptance itself"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "nothing drafts here; name a draft with --draft"),
        (("--method", "none"), "nothing drafts here"),
        (("--method", "guess"), "method 'guess' is unknown"),
        (("--method", "draft_model"), "needs a draft"),
        (("--method", "ngram", "--tree-nodes", "5"), "belongs to another method"),
        (("--method", "ngram", "--device", "h300"), "device 'h300' is unknown; use one of"),
        (("--method", "ngram", "--temperature", "-1"), "temperature must be a number"),
        (("--method", "ngram", "--batch", "0"), "--batch: must be a whole number from 1"),
        (("--method", "ngram", "--max-new-tokens", "7"), "--max-new-tokens: must be a whole number from 8"),
        (("--method", "ngram", "--max-new-tokens", "250"), "the most beside 250 new ones in a context of 256"),
        (("--method", "ngram", "--prompts", "/nowhere/prompts"), "/nowhere/prompts: cannot be read"),
        (("--method", "ngram", "--chat"), "--chat needs --prompts"),
        (("--method", "ngram", "--output", "/nowhere/report.json"), "cannot be written"),
        (("--draft", "foreign"), "share 0 of 59 tokens of text"),
    ],
)
def test_bad_input_gets_one_line(specjax_main, models, argv, words):
    argv = [models.get(argument, argument) for argument in argv]
    assert_one_line(specjax_main("doctor", "--model", models["target"], *argv), words)


@pytest.mark.slow
def test_a_pair_is_examined(specjax_main, models, tmp_path):
    """One row and a batch of two, greedy and sampled, with conversations; temperature 0 is read as a control."""
    (prompts := tmp_path / "talks.jsonl").write_text('{"turns": ["def f("]}\n{"turns": ["class A:", "more"]}\n')
    argv = ("--prompts", prompts, "--chat", "--batch", "1", "--batch", "2", "--temperature", "1")
    options = ("--max-new-tokens", "8", "--num-speculative-tokens", "2", "--json")
    code, out, err = specjax_main("doctor", "--model", models["chat"], "--draft", models["draft"], *argv, *options)
    report = json.loads(out)
    assert (code, err, report["settings"]["prompts"], report["settings"]["nodes"]) == (0, "", 2, 3)
    assert [(cast["batch"], cast["temperature"]) for cast in report["forecasts"]] == [(1, 1.0), (2, 1.0)]
    for cast in report["forecasts"]:
        assert 1 <= cast["tokens_per_round"] <= 3 and cast["plain_ms"] > 0
        low, high = cast["speedup_interval"]
        assert low <= cast["speedup"] <= high
    assert "vocabulary" not in [reason["name"] for reason in report["reasons"]]
