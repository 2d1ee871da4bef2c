"""Method auto on the command line: the default, ``tune --auto``, ``explain``, and what bad input gets."""

import dataclasses
import json

import numpy as np
import pytest
from support.command_line import assert_one_line, models, specjax_main

from specjax import Generator
from specjax.drafters.auto.arms import ARMS
from specjax.text import round_times
from specjax.tools.tune import auto

__all__ = ["models", "specjax_main"]  # fixtures


def test_auto_is_the_default_unless_more_is_asked(target, draft):
    method = lambda **options: Generator(target, **options).method
    assert method() == method(draft=draft) == "auto"
    assert method(draft=draft, num_speculative_tokens=2) == method(draft=draft, rule="rejection") == "draft_model"
    assert method(rule="sample_and_walk") == "none" and method(draft=[draft, draft]) == "merged"


def test_explain_tells_choices_and_their_reasons(specjax_main, models, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(auto, "measure", lambda *given: np.full((2, len(given[3]), len(given[4]), len(given[2])), 0.01))
    pair = ("--model", models["target"], "--draft", models["draft"])
    code, out, _ = specjax_main("tune", "--auto", *pair, "--batch", "2", "--json")
    record = json.loads(out)
    assert code == 0 and record["batches"] == [1, 2] and record["note"] == "measured"
    file = tmp_path / "specjax" / "costs"
    assert [str(path) for path in file.iterdir()] == [record["file"]]
    old = json.loads(open(record["file"]).read())
    old["machine"]["jax"], old["arms"] = "0.1", [dataclasses.asdict(arm) for arm in ARMS]
    old["seconds"] = np.ones((2, 2, len(old["contexts"]), len(ARMS))).tolist()
    open(record["file"], "w").write(json.dumps(old))
    (tmp_path / "prompts.txt").write_text('{"prompt": "abcabcabcabc"}')
    argv = ("explain", *pair, "--prompts", tmp_path / "prompts.txt", "--max-new-tokens", "12")
    code, out, err = specjax_main(*argv)
    assert code == 0 and "times: predicted" in out and "times the time of a plain round" in out
    assert err.count("specjax: note: costs") == 1 and "of another machine or version (jax)" in err
    code, out, _ = specjax_main("tune", "--auto", *pair)
    assert code == 0 and "measured anew: the file was of another" in out
    assert round_times.read_costs(next(file.iterdir()))["machine"]["jax"] != "0.1"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("tune", "--auto", "--tree"), "give one of --tree, --layers, --lookahead and --auto"),
        (("tune", "--layers", "--anew"), "--anew is for --auto"),
        (("tune", "--auto", "--batch", "0"), "--batch: must be"),
        (("explain", "--costs", "/nowhere/costs.json"), "costs /nowhere/costs.json: cannot be read"),
        (("explain", "--batch", "0"), "--batch: must be"),
        (("generate", "--prompt", "x", "--method", "ngram", "--costs", "f"), "belongs to another method than 'ngram'"),
    ],
)
def test_bad_input_gets_one_line(specjax_main, models, argv, words):
    assert_one_line(specjax_main(argv[0], "--model", models["target"], *argv[1:]), words)
