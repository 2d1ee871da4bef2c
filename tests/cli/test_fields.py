"""Flags from dataclasses: each has the name, the type, the default and the text of its field."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from specjax.cli.fields import add_flags, flag, flags_of, read_attributes


@dataclasses.dataclass(frozen=True)
class Record:
    """One.

    Attributes:
      one, two: the first
        and the second.
      files: names of files. Only the first sentence is help.
      switch: 100 % on.
      share: a share.
      sizes: some sizes.
      names: a name.
      needed: a number.

    After it.
    """

    one: str | None = None
    two: Any = 2.5
    files: tuple[Path, ...] = flag((), nargs="+", metavar="FILE")
    switch: bool = False
    share: float = flag(0.5, least=0, most=1)
    sizes: tuple[int, ...] | None = None
    names: tuple[str, ...] = flag((), action="append")
    needed: int = flag(least=1)


def make_parser(**options) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="x", add_help=False, exit_on_error=False)
    add_flags(parser, {"record": flags_of(Record, **options)}, ("needed", "switch"))
    return parser


def test_attributes_are_read_from_docstrings():
    texts = read_attributes(Record)
    assert texts["one"] == texts["two"] == "the first and the second."
    assert texts["files"] == "names of files. Only the first sentence is help."
    assert read_attributes(type("Child", (Record,), {})) == texts


def test_values_have_the_types_of_their_fields():
    argv = "--needed 3 --one a --two 1 --files b c --switch --share 1 --sizes 1,2 --names d --names e".split()
    assert vars(make_parser().parse_args(argv)) == {
        "needed": 3, "one": "a", "two": 1.0, "files": [Path("b"), Path("c")], "switch": True, "share": 1.0,
        "sizes": (1, 2), "names": ["d", "e"],
    }  # fmt: skip


def test_missing_flags_have_the_defaults_of_their_fields_or_none():
    defaults = dict(one=None, two=2.5, files=[], switch=False, share=0.5, sizes=None, names=[], needed=1)
    assert vars(make_parser().parse_args(["--needed", "1"])) == defaults
    unset = vars(make_parser(unset=True, forms={"share": dict(default=0.25)}).parse_args(["--needed", "1"]))
    assert unset == dict.fromkeys(defaults) | dict(share=0.25, needed=1)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--needed 0", "must be a whole number from 1 to 2147483647, not '0'"),
        ("--needed 1 --share nan", "must be a number from 0 to 1, not 'nan'"),
        ("--needed 1 --one=", "is empty"),
    ],
)
def test_values_out_of_bounds_are_refused(argv, words):
    with pytest.raises(argparse.ArgumentError, match=words):
        make_parser().parse_args(argv.split())


def test_the_help_begins_with_the_common_options():
    text = make_parser().format_help()
    assert text.startswith("usage: x --needed N [option ...]")
    common, others = text.index("common options:"), text.index("record:")
    assert common < text.index("--needed N", common) < text.index("--switch") < others < text.index("--one NAME")
    shown = " ".join(text.split())
    for words in ("100 % on", "the first and the second (default 2.5)", "a name; may be given several times"):
        assert words in shown
    assert "Only the first sentence" not in shown
