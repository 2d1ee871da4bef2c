"""The defaults that help texts state are those of the code."""

import dataclasses
import inspect
import re

import pytest
from support.models import language_model, tiny_model

from specjax import Generator
from specjax.cli import arguments, explain, prompt_file, tune, verify
from specjax.cli.main import COMMANDS, make_parser
from specjax.drafters import METHODS, all_options, own_options
from specjax.engine import EngineOptions
from specjax.requests.options import Options
from specjax.text.feedback_log import MEGABYTES
from specjax.tools.doctor.examination import ExamineSettings
from specjax.tools.plan.plan import PlanSettings
from specjax.tools.tune import lookahead

join = lambda values: " and ".join(f"{value:g}" for value in values)
STATED = {
    ("generate", "slots"): f"(default {prompt_file._SLOTS})",
    ("generate", "feedback_log_mb"): f"(default {MEGABYTES})",
    ("generate", "capacity"): f"with --prompts {EngineOptions.capacity}",
    ("doctor", "batch"): f"(default {join(ExamineSettings.batches)})",
    ("doctor", "temperature"): f"(default {join(ExamineSettings.temperatures)})",
    ("plan", "batch"): f"(default {PlanSettings.batch})",
    ("plan", "max_length"): f"(default {PlanSettings.max_length})",
    ("plan", "dtype"): f"(default {PlanSettings.dtype})",
    ("tune", "batch"): "(default 1; with --auto the most, default 4)",
    ("tune", "budget"): f"(default 8 for each layer), or sizes of lookahead (default {lookahead.BUDGET})",
    ("tune", "num_speculative_tokens"): f"(default {tune._LONGEST_DRAFT})",
    ("tune", "method"): "tree (default with a model as draft)",
    ("train", "output"): "(default runs/MODEL-KIND)",
}
"""Texts about defaults that no parser knows, because another module has the default."""


OPTIONS = {field.name: field.default for field in dataclasses.fields(Options)}


def actions(command: str) -> list:
    return make_parser([command])._subparsers._group_actions[0].choices[command]._actions


@pytest.mark.parametrize("command", COMMANDS)
def test_a_stated_default_is_that_of_the_parser(command):
    for action in actions(command):
        text = (action.help or "").replace("%%", "%")
        known = not any(action.default is none for none in (None, False)) and action.default not in (
            [],
            (),
            "==SUPPRESS==",
        )
        if known and action.option_strings:
            assert text.endswith(f"(default {action.default})"), action.option_strings
        elif (command, action.dest) in STATED:
            assert STATED[command, action.dest] in text, text
        elif action.dest in OPTIONS and "(default" in text:
            assert text.endswith(f"(default {OPTIONS[action.dest]})"), text
        elif action.dest not in all_options() and action.default is None:
            assert "(default" not in text, f"add {command} {action.dest} to STATED: {text}"


def test_the_defaults_of_drafting_options_are_those_of_the_methods():
    texts = {action.dest: action.help for action in actions("generate")}
    for option in all_options():
        match = re.search(r" \(default ([^()]*)\)$", texts[option])
        common, *others = re.split("; |, ", match[1]) if match else [None]
        stated = dict(other.split(" ", 1) for other in others)
        for method in METHODS:
            defaults = {name: field.default for name, field in METHODS[method].__dataclass_fields__.items()}
            value = defaults.get(option)
            if option in own_options(method) and isinstance(value, int | float) and not isinstance(value, bool):
                assert stated.get(method, common) == str(value), (option, method)


def test_the_number_of_prompts():
    texts = {
        command: {a.dest: a for a in actions(command)}["num_prompts"] for command in ("compare", "explain", "verify")
    }
    assert texts["compare"].help.endswith(
        f"or {inspect.signature(arguments.prepare_prompts).parameters['count'].default}"
    )
    assert texts["explain"].help.endswith("or 4") and "count=4" in inspect.getsource(explain.run)
    assert texts["verify"].default == verify._PROMPTS


def test_the_default_method():
    """Commands that decode take auto; commands that examine one method never do."""
    texts = {
        command: {a.dest: a.help for a in actions(command)}["method"] for command in COMMANDS if has_method(command)
    }
    for command in ("generate", "serve"):
        assert "by default auto without a draft, with a draft model, and with a head of one module" in texts[command]
        assert "with options of drafting, another rule" in texts[command] and "none without a draft" in texts[command]
    for command in ("verify", "doctor"):
        assert "by default none without a draft, draft_model with one, merged with several" in texts[command]
    target = language_model(tiny_model(0, num_layers=1), "target")
    draft = language_model(tiny_model(1, num_layers=1), "draft")
    assert [Generator(target, None, drafts).method for drafts in ([], [draft], [draft, draft])] == [
        "auto",
        "auto",
        "merged",
    ]
    assert Generator(target, rule="typical").method == "none"
    assert Generator(target, None, draft, num_speculative_tokens=3).method == "draft_model"


def has_method(command: str) -> bool:
    return any(action.dest == "method" for action in actions(command))
