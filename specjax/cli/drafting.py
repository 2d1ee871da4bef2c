"""The flags of drafting options. Fields and docstrings of the drafting methods declare them."""

import argparse
import dataclasses
import inspect
import re
import types
import typing
from collections import Counter
from collections.abc import Iterable
from functools import cache

from ..drafters import METHODS, Switch, all_options, own_options
from ..drafters.adaptive import Adaptive
from ..tree import Topology, as_topology
from . import parser

_METAVARS = {"tree": "WIDTHS|FILE", "ngram_statistics": "FILE"}
_DEFAULTS = {"draft_length": "fixed"}
"""Defaults of ``make_drafter`` that differ from the field's default."""

_REFERENCE = re.compile(r"as in ``(\w+)``")
_ENTRY = re.compile(r"  (\w[\w, ]*): (.*)")


def add_drafting_flags(command: argparse.ArgumentParser) -> None:
    """Adds a flag for each option of a method.

    Options of the same methods stand in one group of the help.
    """
    groups: dict[tuple[str, ...], argparse._ArgumentGroup] = {}
    own = {method: own_options(method) for method in METHODS}
    for option in all_options():
        owners = tuple(method for method in METHODS if option in own[method])
        if owners not in groups:
            groups[owners] = command.add_argument_group(f"options of {_join(owners)}")
        fields = {method: _field(method, option) for method in owners}
        groups[owners].add_argument(
            f"--{option.replace('_', '-')}", help=_describe(option, fields).replace("%", "%%"), **_type(option, fields)
        )


def given_drafting(args: argparse.Namespace) -> dict:
    """The drafting options that the user gave."""
    given = {name: getattr(args, name) for name in all_options() if getattr(args, name, None) is not None}
    return given | ({"tree": as_topology(given["tree"])} if "tree" in given else {})


@cache
def read_attributes(cls: type) -> dict[str, str]:
    """The texts in the section ``Attributes:`` of a class's docstring and of its bases, by name."""
    entries: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        names: list[str] = []
        section = inspect.cleandoc(base.__dict__.get("__doc__") or "").partition("Attributes:\n")[2]
        for line in section.splitlines():
            if match := _ENTRY.fullmatch(line):
                names = match[1].split(", ")
                entries |= dict.fromkeys(names, match[2])
            elif line.startswith("    "):
                entries |= {name: f"{entries[name]} {line.strip()}" for name in names}
            else:
                break
    return entries


def _field(method: str, option: str) -> tuple[type, dataclasses.Field]:
    """The class that owns an option of a method, and the field."""
    members = [type(drafter) for drafter in Switch().drafters] if method == "switch" else []
    for cls in (METHODS[method], *members, Adaptive):
        for field in dataclasses.fields(cls):
            if field.name == option:
                return cls, field
    raise KeyError(option)


def _type(option: str, fields: dict) -> dict:
    """The arguments of ``add_argument`` for the field's type. A missing flag gives None."""
    annotation = next(iter(fields.values()))[1].type
    if isinstance(annotation, types.UnionType):
        annotation = next(part for part in typing.get_args(annotation) if part is not types.NoneType)
    if annotation is bool:
        return {"action": "store_true", "default": None}
    if typing.get_origin(annotation) is tuple:
        return {"type": parser.layers, "metavar": "LAYERS"}
    kinds = {int: (int, "N"), float: (float, "X")}
    convert, metavar = kinds.get(annotation, (parser.name, "NAME"))
    return {"type": convert, "metavar": _METAVARS.get(option, metavar)}


def _describe(option: str, fields: dict) -> str:
    """The help of an option: its text, and the defaults of its methods."""
    texts = {cls: text for cls, _ in fields.values() if (text := read_attributes(cls).get(option))}
    referred = {match[1] for text in texts.values() if (match := _REFERENCE.match(text))}
    own = [cls for cls, text in texts.items() if not _REFERENCE.match(text)]
    own.sort(key=lambda cls: cls.__name__ not in referred)  # The sort is stable: else the first method's text.
    text = texts[own[0]].replace("``", "").rstrip(".") if own else "see the method"
    defaults = _describe_defaults(
        {method: _DEFAULTS.get(option, field.default) for method, (_, field) in fields.items()}
    )
    return text + (f" (default {defaults})" if defaults else "")


def _describe_defaults(defaults: dict) -> str:
    """The commonest default, then the methods with other defaults: "5; suffix 8, mtp 3"."""
    shown = {method: _show(value) for method, value in defaults.items() if value is not None and value is not False}
    if not shown:
        return ""
    common = Counter(shown.values()).most_common(1)[0][0]
    others = [f"{method} {value}" for method, value in shown.items() if value != common]
    return "; ".join([common, ", ".join(others)] if others else [common])


def _show(value) -> str:
    return f"{len(value.parent) - 1} nodes" if isinstance(value, Topology) else str(value)


def _join(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
