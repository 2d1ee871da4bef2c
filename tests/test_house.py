"""The shape of the source: what no test of behaviour sees."""

import ast
from pathlib import Path

import specjax
from specjax import Drafter, drafters
from specjax.loop import decode
from specjax.loop.chooser import Chooser

ROOT = Path(specjax.__file__).parent
MOST_MEMBERS, LONGEST_STEP = 16, 10


def subclasses_of(kind: type) -> set[type]:
    return {one for own in kind.__subclasses__() for one in (own, *subclasses_of(own))}


DRAFTERS = {kind.__name__ for kind in subclasses_of(Drafter) if kind.__module__.startswith(drafters.__name__)}
OUTSIDE = sorted(
    path for path in ROOT.rglob("*.py") if path != ROOT / "chooser.py" and not path.is_relative_to(ROOT / "drafters")
)


def class_tests(source: str) -> list[int]:
    """The lines that compare an object's class with that of a drafter: ``isinstance``, ``issubclass`` or ``type``."""
    is_call = lambda node, *names: (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    )
    names_drafter = lambda node: any(
        isinstance(part, ast.Name)
        and part.id in DRAFTERS | {"Chooser", "Drafter"}
        or isinstance(part, ast.Attribute)
        and part.attr in DRAFTERS | {"Chooser", "Drafter"}
        for part in ast.walk(node)
    )
    found = []
    for node in ast.walk(ast.parse(source)):
        if is_call(node, "isinstance", "issubclass") and names_drafter(node.args[1]):
            found.append(node.lineno)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(is_call(side, "type") for side in sides) and any(map(names_drafter, sides)):
                found.append(node.lineno)
    return found


def test_the_base_class_of_drafters_is_small():
    """Methods, properties and attributes, ``__post_init__`` among them."""
    own = {name for name in vars(Drafter) if not name.startswith("__")} | {"__post_init__"}
    assert len(own) <= MOST_MEMBERS, sorted(own)


def test_a_chooser_adds_to_a_drafter_and_takes_nothing_away():
    assert issubclass(Chooser, Drafter) and Drafter().chooser is None


def test_the_step_is_ten_lines():
    (step,) = (
        node
        for node in ast.parse(Path(decode.__file__).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "step"
    )
    body = step.body[1:]  # without the docstring
    assert body[-1].end_lineno - body[0].lineno + 1 <= LONGEST_STEP


def test_no_module_asks_what_class_a_drafter_is():
    found = {str(path.relative_to(ROOT)): class_tests(path.read_text()) for path in OUTSIDE}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_checker_sees_a_class_test():
    lines = ["isinstance(x, Auto)", "isinstance(x, Head | DraftModel)", "type(x) is Ngram", "isinstance(x, Head)"]
    assert class_tests("\n".join(lines)) == [1, 2, 3]


PROSE_COLUMNS, CODE_COLUMNS, MOST_LINES = 100, 120, 300
MOST_IN_ROOT, MOST_IN_FOLDER = 20, 30


def sources() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(ROOT.rglob("*.py"))}


def wide_prose(source: str) -> list[int]:
    """The lines of docstrings, and comments on lines of their own, over ``PROSE_COLUMNS`` columns."""
    docstrings = {
        number
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, node.end_lineno + 1)
    }
    return [
        number
        for number, line in enumerate(source.split("\n"), 1)
        if len(line) > PROSE_COLUMNS and (number in docstrings or line.lstrip().startswith("# "))
    ]


def entries(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name != "__pycache__")


def test_prose_is_at_most_100_columns_wide():
    wide = [f"{path}:{number}" for path, source in sources().items() for number in wide_prose(source)]
    assert wide == []


def test_code_is_at_most_120_columns_wide_and_300_lines_long():
    wide = [
        f"{path}:{number}"
        for path, source in sources().items()
        for number, line in enumerate(source.split("\n"), 1)
        if len(line) > CODE_COLUMNS
    ]
    assert wide == []
    lengths = {path: source.count("\n") for path, source in sources().items()}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_the_root_and_folders_have_few_entries():
    folders = [folder for folder in ROOT.rglob("*") if folder.is_dir() and folder.name != "__pycache__"]
    sizes = {folder.relative_to(ROOT).as_posix(): len(entries(folder)) for folder in folders}
    assert len(entries(ROOT)) <= MOST_IN_ROOT, entries(ROOT)
    crowded = {folder: size for folder, size in sizes.items() if size > MOST_IN_FOLDER}
    assert crowded == {}, f"a folder has at most {MOST_IN_FOLDER} entries; join a file, or make a folder of kin"
