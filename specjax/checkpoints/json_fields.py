"""Fields of a JSON object: their types, ranges and defaults, and the message for a bad value."""

import dataclasses
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigError

REQUIRED = object()
"""Marks a field without a default, which the file must give."""

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60


@dataclasses.dataclass(frozen=True)
class Field:
    """A field.

    Attributes:
      allowed: the allowed values in words, after "it must be".
      accept: whether a value is allowed.
      default: the value where the file does not give the field, or ``REQUIRED``.
      null: whether null is allowed; it is read as None.
      convert: from the value in the file to the value that is used.
    """

    allowed: str
    accept: Callable[[Any], bool]
    default: Any = REQUIRED
    null: bool = False
    convert: Callable[[Any], Any] = lambda value: value

    def __or__(self, other: "Field") -> "Field":
        """A field that allows the values of both."""
        return Field(f"{self.allowed} or {other.allowed}", lambda value: self.accept(value) or other.accept(value))

    def otherwise(self, default: Any) -> "Field":
        """The same field, with a default."""
        return dataclasses.replace(self, default=default)

    def optional(self, default: Any = None) -> "Field":
        """The same field, with a default, and allowed to be null."""
        return dataclasses.replace(self, default=default, null=True)


def integer(least: int, most: int) -> Field:
    """A whole number from ``least`` to ``most``; true and 1.0 are refused."""
    accept = lambda value: type(value) is int and least <= value <= most
    return Field(f"a whole number from {least} to {most}", accept)


def number(above: float, most: float) -> Field:
    """A finite number that is greater than ``above`` and at most ``most``."""
    accept = lambda value: type(value) in (int, float) and above < value <= most  # false for NaN
    return Field(f"a number above {above:g} and at most {most:g}", accept, convert=float)


def flag(default: bool | None = False) -> Field:
    """True or false; null gives the default."""
    convert = lambda value: default if value is None else value
    return Field(
        "true, false or null", lambda value: value is None or isinstance(value, bool), default, convert=convert
    )


def choice(*values: str | bool | int) -> Field:
    """One of a few values."""
    accept = lambda value: any(type(value) is type(allowed) and value == allowed for allowed in values)
    return Field("one of " * (len(values) > 1) + ", ".join(map(show, values)), accept)


def text() -> Field:
    return Field("a string", lambda value: isinstance(value, str))


def table() -> Field:
    return Field("an object", lambda value: isinstance(value, dict))


def list_of(item: Field) -> Field:
    """A list of values that ``item`` allows."""
    accept = lambda value: isinstance(value, list) and all(map(item.accept, value))
    return Field(f"a list; each entry must be {item.allowed}", accept)


def read_fields(raw: Mapping, fields: Mapping[str, Field], where: str, within: str = "") -> dict[str, Any]:
    """The value of each field: from ``raw``, or the field's default.

    Args:
      raw: the object. Entries that are not among ``fields`` are ignored.
      where: the file, for messages.
      within: the name of the field that holds ``raw``, for messages.

    Raises ConfigError, which names the file, the field, its value and the allowed values.
    """
    values = {}
    for name, field in fields.items():
        path = f"{within}.{name}" if within else name
        if name not in raw:
            if field.default is REQUIRED:
                raise ConfigError(f"{where}: {path} is missing; it must be {field.allowed}")
            values[name] = field.default
        elif raw[name] is None and field.null:
            values[name] = None
        elif not field.accept(raw[name]):
            null = " or null" * field.null
            raise ConfigError(f"{where}: {path} is {show(raw[name])}; it must be {field.allowed}{null}")
        else:
            values[name] = field.convert(raw[name])
    return values


def show(value: Any) -> str:
    """A value as JSON has it, in one short line, for messages."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    try:
        return _REPR.repr(value)
    except ValueError:  # Python prints no whole number of more than 4,300 digits
        return "a number of thousands of digits"
