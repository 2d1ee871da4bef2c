"""``specjax tune --chat``: the turns of conversations are the prompts of a tree and the texts of layers; ``--lookahead``."""

import json
import tomllib

import numpy as np
import pytest
from support.command_line import OPTIONS, assert_one_line, kept, models, reuse, specjax_main
from support.models import byte_tokenizer

from specjax.tools.tune import cost, layers
from specjax.tools.tune import tree as tune
from specjax.tools.tune.cost import Cost, Curve

pytestmark = pytest.mark.usefixtures("reuse")


@pytest.fixture
def conversations(tmp_path):
    file = tmp_path / "conversations.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "AB"}]}\n{"turns": ["left out"]}\n')
    return ("--chat", "--prompts", file, "--num-prompts", "1", *OPTIONS, "--json")


@pytest.mark.slow
def test_a_tree_is_tuned_on_turns_in_the_chat_template(specjax_main, models, conversations, monkeypatch):
    prompts, real = [], tune.tune_tree

    def tune_tree(target, draft, given, **options):
        prompts.extend(given)
        return real(target, draft, given, **options)

    monkeypatch.setattr(tune, "tune_tree", tune_tree)
    monkeypatch.setattr(cost, "measure", lambda *args, **options: Cost(Curve((1, 3), np.array([[1.0], [1.05]]))))
    method = ("--method", "token_recycling", "--max-nodes", "3")
    code, out, err = specjax_main("tune", "--tree", *method, "--model", models["chat"], *conversations)
    assert (code, err) == (0, "")
    assert json.loads(out)["settings"]["prompts"] == 1
    assert prompts == [byte_tokenizer().encode("[AB]")]


def test_layers_are_tuned_on_turns_in_the_chat_template(specjax_main, models, conversations, monkeypatch):
    texts = []
    monkeypatch.setattr(layers, "tune_layers", lambda target, given, **options: texts.extend(given) or {})
    monkeypatch.setattr(layers, "toml", lambda report: "")
    code, out, err = specjax_main("tune", "--layers", "--model", models["chat"], *conversations)
    assert (code, out, err) == (0, "{}\n", "")
    assert texts == [byte_tokenizer().encode("[AB]")]


def test_chat_needs_conversations_and_a_template(specjax_main, models, conversations):
    assert_one_line(specjax_main("tune", "--layers", "--chat", "--model", models["chat"]), "--chat needs --prompts")
    found = specjax_main("tune", "--layers", "--model", models["target"], *conversations)
    assert_one_line(found, "no chat template")


@pytest.mark.slow
def test_lookahead_prints_and_writes_the_best_sizes(specjax_main, models, tmp_path):
    (prompts := tmp_path / "prompts.jsonl").write_text('{"prompt": "AB"}\n')
    argv = ("--prompts", prompts, "--max-new-tokens", "9", "--budget", "2", *OPTIONS, "--output", tmp_path / "x.toml")
    code, out, err = specjax_main("tune", "--lookahead", "--model", models["target"], *argv, "--json")
    report = json.loads(out)
    assert (code, err) == (0, "") and len(report["tried"]) == 2
    assert tomllib.loads((tmp_path / "x.toml").read_text())["window"] == report["best"]["window"]


def test_what_to_tune_is_named_once(specjax_main, models):
    target = ("--model", models["target"])
    assert_one_line(specjax_main("tune", *target), "one of --tree, --layers, --lookahead and --auto")
    assert_one_line(
        specjax_main("tune", "--tree", "--lookahead", *target), "one of --tree, --layers, --lookahead and --auto"
    )
    assert_one_line(specjax_main("tune", "--lookahead", *target, "--draft", models["target"]), "takes no draft")
    assert_one_line(specjax_main("tune", "--lookahead", *target, "--budget", "0"), "--budget: must be")
    assert_one_line(specjax_main("tune", "--lookahead", *target, "--temperature", "-1"), "temperature")
