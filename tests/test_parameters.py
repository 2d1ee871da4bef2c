"""No function has more than ten parameters, so that facts that belong together travel in one record."""

import ast
from pathlib import Path

import specjax

PACKAGE = Path(specjax.__file__).parent
MOST = 10


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[str]:
    """The names of all parameters but ``self`` and ``cls``."""
    own = function.args
    names = [*own.posonlyargs, *own.args, *filter(None, [own.vararg]), *own.kwonlyargs, *filter(None, [own.kwarg])]
    return [name.arg for name in names if name.arg not in ("self", "cls")]


def too_many(source: str) -> list[tuple[int, int]]:
    """Line and number of parameters of each function that has more than ``MOST``."""
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    ]
    return [(node.lineno, len(parameters(node))) for node in functions if len(parameters(node)) > MOST]


def test_parameters_of_every_kind_are_counted():
    assert too_many("def f(self, a, b, /, c, d, e, *more, f, g, h, i=1, **options): pass") == [(1, 11)]
    assert too_many("def f(self, a, b, /, c, d, e, *more, f, g, h, **options): pass") == []


def test_no_function_has_more_than_ten_parameters():
    files = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "cli"]
    assert len(files) > 100
    assert {str(path.relative_to(PACKAGE)): found for path in files if (found := too_many(path.read_text()))} == {}
