"""Tables of the documentation name everything that the code has: methods, rules, limits, kinds and keys of recipes, suites."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from specjax import METHODS
from specjax.core import read_files, tree
from specjax.requests import limits
from specjax.requests.options import Options
from specjax.rules import RULES
from specjax.tools.evaluate.suites import SUITES
from specjax.training.kinds import KINDS

DOCS = Path(__file__).parents[2] / "docs"


def read_page(name: str) -> str:
    return (DOCS / name).read_text()


def rows(page: str, first: str) -> list[str]:
    """The second cells of the table rows whose first cell names ``first``."""
    cells = [line.split("|") for line in page.splitlines() if line.startswith("|")]
    return [row[2].strip() for row in cells if f"`{first}`" in row[1]]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_row_and_a_section(method):
    page = read_page("methods.md")
    table = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    assert f"[`{method}`](#{method})" in table, "add the method to the first table of docs/methods.md"
    assert re.search(rf"^## {method}$", page, re.M), f"add a section '## {method}' to docs/methods.md"


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_row(rule):
    has_row = any(line.startswith(f"| `{rule}` |") for line in read_page("methods.md").splitlines())
    assert has_row, "add a row to the table of rules in docs/methods.md"


def test_every_limit_has_a_row_with_its_value():
    known = {
        name: value for module in (limits, tree, read_files) for name, value in vars(module).items() if name.isupper()
    }
    known = {name: value for name, value in known.items() if name.startswith(("MOST_", "LONGEST_", "LARGEST_"))}
    assert len(known) > 15
    for name, value in known.items():
        assert rows(read_page("options.md"), name) == [f"{value:,}"]


def test_every_option_is_described():
    page = read_page("options.md")
    for field in dataclasses.fields(Options):
        assert f"`{field.name}`" in page


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_recipes_are_listed(kind):
    """The row of ``hydra`` says "the same" as the row of ``medusa`` above it."""
    named = [kind, "medusa"] if kind == "hydra" else [kind]
    listed = " ".join(cell for name in named for cell in rows(read_page("training.md"), name))
    for part in (KINDS[kind].shape, KINDS[kind].loss):
        for field in dataclasses.fields(part):
            assert f"`{field.name}`" in listed


def test_the_table_of_families_is_that_of_the_registry():
    sys.path.insert(0, str(DOCS.parent / "scripts" / "docs"))
    from models_page import table

    assert table() in read_page("models.md"), "run scripts/docs/models_page.py"


def test_the_table_of_rules_and_methods_is_that_of_the_registry():
    sys.path.append(str(DOCS.parent / "scripts" / "benchmarks"))
    from lossless_table import rules_table

    hint = "run scripts/benchmarks/lossless_table.py --render"
    assert rules_table() in read_page("results/lossless.md"), hint


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_every_suite_has_a_row(suite):
    rows = [line for line in read_page("evaluate.md").splitlines() if line.startswith(f"| `{suite.name}` |")]
    assert len(rows) == 1
    assert ("| - |" in rows[0]) == (not suite.scores)
    assert ("no template" in rows[0]) == (not suite.chat)
