"""``specjax evaluate``: answers, report and page from files; an interruption and bad input are one line."""

import json

import pytest
from support.command_line import OPTIONS, assert_one_line, kept, models, reuse, specjax_main

from specjax.tools.evaluate.benchmark import run as runner
from specjax.tools.evaluate.suites import SUITES

pytestmark = pytest.mark.usefixtures("reuse")

ROW = {"task_id": "HumanEval/0", "prompt": "ABC", "canonical_solution": "D"}


@pytest.fixture
def argv(models, tmp_path):
    """A command that evaluates one question by plain decoding."""
    data = tmp_path / "HumanEval.jsonl"
    data.write_text(json.dumps(ROW) + "\n")
    given = dict(suite="humaneval", data=data, methods="none", model=models["target"], output=tmp_path / "output")

    def make(**changes):
        flags = {**given, **changes}
        return ["evaluate", *OPTIONS, *(part for name in flags for part in (f"--{name}", flags[name]))]

    return make


@pytest.fixture
def generators(monkeypatch, kept):
    """Gives runs the generators of earlier runs."""
    real = runner.make_generators

    def make(target, methods, draft, drafting):
        key = ("evaluate", id(target), *methods)
        if key not in kept:
            kept[key] = real(target, methods, draft, drafting)
        return kept[key]

    monkeypatch.setattr(runner, "make_generators", make)


def test_evaluate_writes_answers_and_reports(specjax_main, argv, tmp_path, generators):
    code, out, err = specjax_main(*argv(), "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    directory = tmp_path / "output"
    assert report == json.loads((directory / "report.json").read_text())
    assert report["tasks"]["humaneval"]["none"]["questions"] == 1
    assert (directory / "report.html").read_text().startswith("<!doctype html>")
    (line,) = (directory / "none.jsonl").read_text().splitlines()
    assert json.loads(line)["question_id"] == "HumanEval/0"

    code, out, err = specjax_main(*argv())
    assert (code, err) == (0, "")
    for words in ("speed-up", "humaneval", "note: 1 of 1 questions were answered by earlier runs", "report.html"):
        assert words in out


def test_the_chat_template_is_used_where_there_is_one(specjax_main, argv, models, tmp_path, generators):
    (tmp_path / "question.jsonl").write_text('{"question_id": 1, "category": "qa", "turns": ["AB", "C"]}\n')
    chat = dict(suite="spec-bench", data=tmp_path / "question.jsonl", model=models["chat"])
    code, out, _ = specjax_main(*argv(**chat), "--json")
    assert code == 0
    assert "the model's chat template" in json.loads(out)["settings"]["form"]
    (line,) = (tmp_path / "output" / "none.jsonl").read_text().splitlines()
    first, second = json.loads(line)["specjax"]["turns"]
    assert first["prompt_tokens"] == len("[AB]")
    assert second["prompt_tokens"] == len(f"[AB][{first['text']}][C]")


def test_the_help_names_every_suite(specjax_main):
    _, out, _ = specjax_main("evaluate", "--help")
    assert all(name in "".join(out.split()) for name in SUITES)


def test_an_interruption_says_how_to_continue(specjax_main, argv, tmp_path, generators, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_suite", interrupted)
    code, _, err = specjax_main(*argv())
    assert code == 130
    assert err == f"specjax: interrupted; the same command continues in {tmp_path / 'output'}\n"


def test_bad_input_is_one_line(specjax_main, argv, tmp_path):
    (tmp_path / "short.jsonl").write_text('{"task_id": "HumanEval/0"}\n')
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    cases = {
        "suite 'humanevil' is unknown; did you mean humaneval?": dict(suite="humanevil"),
        "short.jsonl, line 1: no column 'prompt'": dict(data=tmp_path / "short.jsonl"),
        "no such file or directory": dict(data=tmp_path / "missing"),
        "--methods is empty": dict(methods=","),
        "method 'best' is unknown": dict(methods="best"),
        "needs a draft": dict(methods="draft_model"),
        "temperature must be": dict(temperature="-1"),
        "exists and holds no evaluation": dict(output=tmp_path / "full"),
        "--batches must be a whole number": dict(batches="4,0"),
        "--samples tests the law of sampled texts": dict(samples="64"),
    }
    for words, changes in cases.items():
        assert_one_line(specjax_main(*argv(**changes)), words)
    assert not (tmp_path / "output").exists()
