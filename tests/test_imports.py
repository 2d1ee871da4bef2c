"""The order of imports: every module of specjax imports only modules to its left, and there are no circles."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

import specjax

ROOT = Path(specjax.__file__).parent
ORDER = [
    "errors kernels",
    "parallel",
    "core",
    "rules",
    "models",
    "heads",
    "loop",
    "drafters",
    "checkpoints",
    "requests",
    "text",
    "engine",
    "specjax",
    "training",
    "serve",
    "tools",
    "cli __main__",
]
"""From left to right. Modules of one group may import one another. A folder counts as its name, ``specjax`` as __init__."""

RANK = {name: rank for rank, names in enumerate(ORDER) for name in names.split()}


def list_modules() -> dict[str, Path]:
    """The modules of the package by their full names."""
    names = {path: [*path.relative_to(ROOT.parent).with_suffix("").parts] for path in ROOT.rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in names.items()}


MODULES = list_modules()


def find_imports(name: str) -> set[str]:
    """The modules of specjax that a module imports, inside functions too."""
    path, found = MODULES[name], set()
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names}
    return (found & MODULES.keys()) - {name}


def group_of(name: str) -> str:
    """The file or folder below specjax that a module belongs to; "specjax" for the package itself."""
    return name.split(".")[1] if "." in name else name


def test_every_module_has_its_place():
    assert {group_of(name) for name in MODULES} <= RANK.keys()


def test_no_module_imports_to_its_right():
    edges = [(name, other) for name in MODULES for other in find_imports(name)]
    wrong = [f"{a} imports {b}" for a, b in edges if RANK[group_of(a)] < RANK[group_of(b)]]
    assert not wrong, "\n".join(sorted(wrong))


def test_private_names_of_jax_stand_in_one_module():
    private = {name for name, path in MODULES.items() if re.search(r"\bjax\._src\b", path.read_text())}
    assert private == {"specjax.parallel.private_jax"}


def test_processes_end_without_clean_up_only_for_a_command_or_a_dead_host():
    """Each of these calls states its reason. Everything else ends by an exception."""
    calls = {name: path.read_text().count("os._exit(") for name, path in MODULES.items()}
    assert {name: count for name, count in calls.items() if count} == {
        "specjax.cli.interrupt": 1,
        "specjax.parallel.hosts": 2,
        "specjax.core.startup": 1,
    }


def test_there_are_no_circles():
    """A package's ``__init__`` counts as one more module. Importing a module of a folder does not count as importing it."""
    try:
        graphlib.TopologicalSorter({name: find_imports(name) for name in MODULES}).prepare()
    except graphlib.CycleError as error:
        pytest.fail("a circle of imports: " + " > ".join(error.args[1]))


def test_the_reader_of_imports_sees_all_kinds():
    """``cli`` imports inside functions, ``drafters.parts`` from two folders above, ``specjax`` a folder itself."""
    assert "specjax.text.session" in find_imports("specjax.text.generator")
    assert "specjax.core.cache" in find_imports("specjax.drafters.parts.self_chain")
    assert "specjax.drafters" in find_imports("specjax")
