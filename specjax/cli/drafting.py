"""The flags of drafting options. Fields and docstrings of the drafting methods declare them."""

import argparse
import dataclasses
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ..core.tree import Topology, as_topology
from ..drafters import METHODS, Switch, all_options, own_options
from ..drafters.adaptive import Adaptive
from ..drafters.parts import ngram_statistics
from ..text.round_times import read_costs
from .fields import Flags, form_of, read_attributes

_REFERENCE = re.compile(r"as in ``(\w+)``")


def drafting_flags() -> dict[str, Flags]:
    """A flag for each option of a method.

    Options of the same methods stand in one group of the help. A missing flag gives None.
    """
    groups: dict[str, Flags] = {}
    own = {method: own_options(method) for method in METHODS}
    for option in all_options():
        fields = {method: _field(method, option) for method in METHODS if option in own[method]}
        form = {"default": None, "help": _describe(option, fields).replace("%", "%%")}
        _, field = next(iter(fields.values()))
        flag = form_of(field.type, dict(field.metadata) | form)
        groups.setdefault(f"options of {_join(fields)}", {})[option] = flag
    return groups


def drafting_options(args: argparse.Namespace) -> dict:
    """The drafting options that the user gave."""
    options = {name: getattr(args, name) for name in all_options() if getattr(args, name, None) is not None}
    return options | ({"tree": as_topology(options["tree"])} if "tree" in options else {})


def check_files(options: dict) -> None:
    """Raises RequestError for a file among drafting options that cannot be used."""
    if "costs" in options:
        read_costs(Path(options["costs"]))
    if "ngram_statistics" in options:
        ngram_statistics.read(options["ngram_statistics"])


def _field(method: str, option: str) -> tuple[type, dataclasses.Field]:
    """The class that owns an option of a method, and the field."""
    members = [type(drafter) for drafter in Switch().drafters] if method == "switch" else []
    for cls in (METHODS[method], *members, Adaptive):
        for field in dataclasses.fields(cls):
            if field.name == option:
                return cls, field
    raise KeyError(option)


def _describe(option: str, fields: dict) -> str:
    """The help of an option: its text, and the defaults of its methods."""
    texts = {cls: text for cls, _ in fields.values() if (text := read_attributes(cls).get(option))}
    referred = {match[1] for text in texts.values() if (match := _REFERENCE.match(text))}
    own = [cls for cls, text in texts.items() if not _REFERENCE.match(text)]
    own.sort(key=lambda cls: cls.__name__ not in referred)  # The sort is stable: else the first method's text.
    text = texts[own[0]].replace("``", "").rstrip(".") if own else "see the method"
    defaults = _describe_defaults(
        {method: field.metadata.get("default", field.default) for method, (_, field) in fields.items()}
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
