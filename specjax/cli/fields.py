"""Flags from dataclasses and functions.

These and their docstrings state names, types, defaults and help.
"""

import argparse
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import shtab

from ..core.tree import Topology
from . import parser

Flags = dict[str, dict[str, Any]]
"""The arguments of ``add_argument`` for each flag, by the name of its field."""

COMMON = "common options"
"""The title of the first group in the help of a command."""

_ENTRY = re.compile(r"  (\w[\w, ]*): (.*)")
_SECTION = re.compile(r"^(?:Attributes|Args):\n", re.M)
_SENTENCE_END = re.compile(r"\.\s+(?=[A-Z`])")
_LARGEST = {int: parser.LARGEST, float: float("inf")}


def flag(default=dataclasses.MISSING, **form) -> Any:
    """A dataclass field whose flag has more arguments of ``add_argument`` than its type tells.

    Args:
      default: the default. A field without one makes a flag that users must give.
      form: the arguments. Also ``flags``, the spellings of the flag, and ``least`` and ``most``,
        the bounds of a number.
    """
    return dataclasses.field(default=default, kw_only=True, metadata=form)


def flags_of(
    record: type | Callable, *names: str, unset: bool = False, forms: Mapping[str, Mapping[str, Any]] | None = None
) -> Flags:
    """The flags for fields of a dataclass, or for arguments of a function.

    Args:
      record: the dataclass or the function. Its docstring's entries in ``Attributes:`` or ``Args:``
        are the help of the flags, see ``_summarise``.
      names: the fields; by default all.
      unset: whether a flag that the user does not give has the value None instead of the default.
      forms: changes of single flags by name, as ``flag`` takes them.
    """
    fields = _fields(record)
    texts = read_attributes(record)
    flags: Flags = {}
    for name in names or fields:
        kind, default, metadata = fields[name]
        changes = dict((forms or {}).get(name, {}))
        form = {"default": default} | dict(metadata) | changes
        form = form_of(type(default) if kind is Any else kind, form)
        form["help"] = form.get("help") or _summarise(texts[name])
        flags[name] = _finish(form, unset and "default" not in changes)
    return flags


def _fields(record: type | Callable) -> dict[str, tuple[Any, Any, Mapping]]:
    """The type, default and metadata of each field of a dataclass, or argument of a function."""
    if dataclasses.is_dataclass(record):
        return {field.name: (field.type, field.default, field.metadata) for field in dataclasses.fields(record)}
    arguments = inspect.signature(record).parameters
    return {name: (argument.annotation, argument.default, {}) for name, argument in arguments.items()}


def _summarise(text: str) -> str:
    """The first sentence of a text, and those that tell the default."""
    first, *others = _SENTENCE_END.split(text)
    return "; ".join([first, *(f"by{other[2:]}" for other in others if other.startswith("By default"))])


def form_of(kind: Any, form: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``add_argument`` for a type. Those in ``form`` go before."""
    form = dict(form)
    least = form.pop("least", None)
    most = form.pop("most", None)
    if isinstance(kind, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not types.NoneType)
    if kind is bool:
        return {"action": "store_true"} | form
    several = typing.get_origin(kind) in (tuple, Sequence)
    if several and not {"action", "nargs"} & {*form}:
        return {"type": parser.layers, "metavar": "LAYERS"} | form
    if several:
        kind = typing.get_args(kind)[0]
    if "choices" in form:
        return form
    kinds = {
        int: (int, "N"), float: (float, "X"), Path: (parser.path, "FILE"), Topology: (parser.name, "WIDTHS|FILE"),
    }  # fmt: skip
    convert, metavar = kinds.get(kind, (parser.name, "NAME"))
    if least is not None:
        most = _LARGEST[kind] if most in (None, float("inf")) else most
        convert = parser.integer(least, most) if kind is int else parser.decimal(least, most)
    return {"type": convert, "metavar": metavar} | form


def add_flags(command: argparse.ArgumentParser, groups: Mapping[str, Flags], common: Sequence[str]) -> None:
    """Adds flags to the parser of a command.

    Args:
      groups: the flags by the title of their group in the help.
      common: the names of the flags that stand in the first group instead.
    """
    every = {name: form for group in groups.values() for name, form in group.items()}
    first = {COMMON: {name: every[name] for name in common}}
    needed = []
    for title, flags in (first | dict(groups)).items():
        group = command.add_argument_group(title)
        for name, form in flags.items():
            if title != COMMON and name in common:
                continue
            form = {"flags": (f"--{name.replace('_', '-')}",), "dest": name} | form
            action = group.add_argument(*form.pop("flags"), **form)
            if form.get("type") is parser.path:
                action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
            needed += [f"{name} {action.metavar}" for name in action.option_strings[-1:] if action.required]
        if title == COMMON:
            group.add_argument("-h", "--help", action="help", help="show this help and exit")
    command.usage = command.usage or " ".join([command.prog, *needed, "[option ...]"])


@cache
def read_attributes(record: type | Callable) -> dict[str, str]:
    """The texts in ``Attributes:`` or ``Args:`` by name, those of base classes included."""
    entries: dict[str, str] = {}
    for base in reversed(getattr(record, "__mro__", (record,))):
        names: list[str] = []
        *_, section = _SECTION.split(inspect.cleandoc(base.__doc__ or ""))
        for line in section.splitlines():
            if match := _ENTRY.fullmatch(line):
                names = match[1].split(", ")
                entries |= dict.fromkeys(names, match[2])
            elif line.startswith("    "):
                entries |= {name: f"{entries[name]} {line.strip()}" for name in names}
            else:
                break
    return entries


def _finish(form: dict[str, Any], unset: bool) -> dict[str, Any]:
    """The arguments with the default in the help. With ``unset`` a missing flag gives None."""
    default = form["default"]
    text = form["help"].replace("``", "").rstrip(".")
    if form.get("action") == "append":
        text += "; may be given several times"
    if default is dataclasses.MISSING:
        del form["default"]
        return form | {"required": True, "help": text.replace("%", "%%")}
    if default is not None and default is not False and default != () and default != "":
        text += f" (default {default})"
    value = None if unset else [] if default == () else default
    return form | {"default": value, "help": text.replace("%", "%%")}
