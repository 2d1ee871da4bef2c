"""References in docstrings and comments, ``module.name`` or "see ``module``", name modules and names that are there.

The docstring of a module may name others by ``module`` alone. A reference may leave out the folders of a module.
"""

import ast
import re
from pathlib import Path

import pytest

import specjax

ROOT = Path(specjax.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def read_modules() -> dict[str, str]:
    """The text of all modules of each name, such as ``cache``. The text of a folder lists its modules too."""
    texts: dict[str, str] = {}
    for path in FILES:
        name = path.parent.name if path.stem == "__init__" else path.stem
        texts[name] = texts.get(name, "") + path.read_text()
        inner, outer = (path.parent, path.parent.parent) if path.stem == "__init__" else (path, path.parent)
        texts[outer.name] = texts.get(outer.name, "") + f" {inner.stem} "
    return texts


TEXTS = read_modules()


def words_of_code(text: str) -> set[str]:
    """All words of a module but those of its docstrings and comments."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = None
    return set(re.findall(r"\w+", ast.unparse(tree)))


WORDS = set().union(*(words_of_code(path.read_text()) for path in FILES))

OTHERS = {"growth", "datasets", "replay"}
"""Words that are also names of arguments, functions or other packages."""

DOTTED = re.compile(r"``(?:[a-z_]\w*\.)*([a-z_]\w*)\.([A-Za-z_]\w*)``")
SEEN = re.compile(r"see\s+``([a-z_]\w*)``")


def find_wrong_references(text: str) -> list[str]:
    """The references in the text of a module to modules that are not there, or to names that they lack."""
    present = TEXTS.keys() | WORDS
    dotted = [
        (module, name)
        for module, name in DOTTED.findall(text)
        if name not in ("py", "json", "pkl", "toml", "html", "jsonl")
    ]
    wrong = [f"{module}.{name}" for module, name in dotted if module not in present]
    known = [(module, name) for module, name in dotted if module in TEXTS.keys() - OTHERS]
    wrong += [f"{module}.{name}" for module, name in known if not re.search(rf"\b{name}\b", TEXTS[module])]
    return wrong + [name for name in SEEN.findall(text) if name not in present]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_references_name_what_is_there(path):
    wrong = find_wrong_references(path.read_text())
    assert not wrong, f"not there: {', '.join(wrong)}"


def test_wrong_references_are_noticed():
    text = "``cache.commit``, ``cache.committed_twice`` and ``nosuch.Halves``; see ``nosuch``"
    assert find_wrong_references(text) == ["nosuch.Halves", "cache.committed_twice", "nosuch"]
