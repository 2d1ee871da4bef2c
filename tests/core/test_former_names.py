"""Former names of modules: each leads to a module that is there, and its import says where."""

import importlib
import importlib.util

import pytest

import specjax
from specjax.core.former_names import NAMES, present_name


def test_every_present_name_is_a_module_and_no_former_name_is():
    assert all(importlib.util.find_spec(f"specjax.{present}") for present in NAMES.values())
    for former in NAMES:
        first = next(f for f in ancestors(former) if f in NAMES)  # Python imports a folder before its modules
        with pytest.raises(ImportError, match=f"^specjax.{first} is specjax.{NAMES[first]} now[,;] "):
            importlib.import_module(f"specjax.{former}")


def ancestors(name: str) -> list[str]:
    """The folders of a module from the outermost on, and the module: "a", "a.b", "a.b.c"."""
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("import specjax.verify", "specjax.verify is specjax.rules.acceptance now"),
        ("from specjax import verify", "specjax.verify is specjax.rules.acceptance now"),
        (
            "from specjax.planning.tune import tune_tree",
            "specjax.planning is specjax.tools now, and specjax.core.former_names has the names",
        ),
        ("from specjax.training.pruning import cut", "specjax.training.pruning is specjax.tools.prune now"),
        ("specjax.verify.resolve", "specjax.verify is specjax.rules.acceptance now"),
    ],
)
def test_an_old_line_of_code_fails_with_the_present_name(statement, message):
    with pytest.raises((ImportError, AttributeError), match=message):
        exec(statement, {"specjax": specjax})


def test_other_names_fail_as_usual():
    assert present_name("specjax.nosuch") is None
    with pytest.raises(ModuleNotFoundError, match="No module named 'specjax.nosuch'"):
        importlib.import_module("specjax.nosuch")
    with pytest.raises(AttributeError, match="nosuch"):
        specjax.nosuch  # noqa: B018
