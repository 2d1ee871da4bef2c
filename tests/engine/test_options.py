"""The records of an engine's and a server's options: bounds, defaults, and the pages that list them."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from specjax import Engine, RequestError
from specjax.engine import EngineOptions
from specjax.engine.options import BOUNDS
from specjax.serve.options import ServerOptions, server_engine_options

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(slots=0), "slots must be a whole number, at least 1"),
        (dict(slots=None), "slots must be a whole number"),
        (dict(chunk=48), "chunk must be a power of two, not 48"),
        (dict(blocks=9, prompts_together=3), "prompts_together must be a power of two, not 3"),
        (dict(blocks=9, prompts_together=64), "prompts_together must be a whole number, at least 1 and at most 32"),
        (dict(prompts_together=2), "prompts_together needs blocks; give blocks or memory"),
        (dict(chunk=8), "chunk must be a whole number, at least 16 and at most 512"),
        (dict(rounds=65), "rounds must be a whole number, at least 1 and at most 64"),
        (dict(widths=[16]), "widths must be below the 16 slots"),
        (dict(logprobs=-1), "logprobs must be"),
        (dict(prefix_bytes=-1), "prefix_bytes must be"),
        (dict(constraint_states=1), "constraint_states must be a whole number, at least 2"),
        (dict(constraint_classes=0), "constraint_classes must be"),
        (dict(capacity=0), "capacity must be"),
    ],
)
def test_values_out_of_bounds_are_refused(options, words):
    with pytest.raises(RequestError, match=words):
        EngineOptions(**options)


def test_widths_are_sorted_and_each_is_there_once():
    assert EngineOptions(slots=8, widths=[4, 1, 4]).widths == (1, 4)


def test_a_server_records_logprobs_and_has_widths_unless_told_otherwise():
    assert server_engine_options(False, slots=64) == EngineOptions(slots=64, widths=(1, 4, 16), logprobs=5)
    assert server_engine_options(True, widths=None) == EngineOptions(logprobs=5)
    assert server_engine_options(False, widths=(), logprobs=None) == EngineOptions()


@pytest.mark.parametrize("options", [dict(queue=-1), dict(largest_body=0)])
def test_a_server_refuses_bounds_that_let_nothing_through(options):
    with pytest.raises(RequestError, match=next(iter(options))):
        ServerOptions(**options)


def test_a_misspelt_option_of_an_engine_is_one_line_that_names_the_option():
    with pytest.raises(RequestError, match="option 'slot' is unknown; did you mean slots?"):
        Engine("tiny-python", slot=3)


@pytest.mark.parametrize("record", [EngineOptions, ServerOptions])
def test_every_option_is_described(record):
    section = inspect.getdoc(record).partition("Attributes:\n")[2]
    assert re.findall(r"^  (\w+): ", section, re.M) == [field.name for field in dataclasses.fields(record)]


def test_every_number_has_bounds():
    assert {*BOUNDS} == {field.name for field in dataclasses.fields(EngineOptions)} - {"widths", "memory"}


@pytest.mark.parametrize(("page", "record"), [("engine.md", EngineOptions), ("ray.md", ServerOptions)])
def test_the_page_lists_the_options_with_their_defaults(page, record):
    table = (
        (DOCS / page).read_text().partition("| option | default | meaning |\n|---|---|---|\n")[2].partition("\n\n")[0]
    )
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| ", table, re.M))
    assert rows == {field.name: str(field.default) for field in dataclasses.fields(record)}
