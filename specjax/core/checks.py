"""Checks of values that users give, on the host, before anything is loaded or compiled."""

import dataclasses
import difflib
import json
from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import RequestError, SpecjaxError

LARGEST = 2**31 - 1
"""The upper bound of numbers that have no tighter bound: the largest int32."""

DEEPEST = 100
"""The most levels of nested lists and objects in a JSON text."""


def per_row(name: str, value, batch: int, dtype, least=0, most=LARGEST, above: bool = False) -> np.ndarray:
    """``value`` as an array [batch]; it is one number, or a list with one number for each row.

    Args:
      name: the option's name in messages.
      least, most: bounds. Both are allowed values; with ``above`` the lower one is not.

    Raises RequestError for booleans, text, NaN, numbers out of bounds, lists of another length, and
    for fractions if ``dtype`` is an integer type.
    """
    kinds = "iu" if np.issubdtype(dtype, np.integer) else "iuf"
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # a ragged list
        array = np.asarray(None)
    if array.size == 0:
        raise RequestError(f"{name} is empty; give one number, or one for each prompt")
    if (
        array.dtype.kind not in kinds
        or not _within(array, least, most, above)
        or not _within(array.astype(dtype), least, most, above)
    ):
        number = "a whole number" if kinds == "iu" else "a number"
        bounds = f"{'above' if above else 'at least'} {least} and at most {most}"
        raise RequestError(f"{name} must be {number}, {bounds}, not {shorten(value)}")
    if array.ndim > 1:
        raise RequestError(f"{name} has shape {array.shape}; give one number, or a list with one for each prompt")
    if array.ndim == 1 and array.size != batch:
        raise RequestError(
            f"{name} has {array.size} values for {batch} prompts; give one value, or one for each prompt"
        )
    return np.broadcast_to(array, batch).astype(dtype)


def _within(array: np.ndarray, least, most, above: bool) -> bool:
    return bool(np.all((array > least if above else array >= least) & (array <= most)))


def whole(name: str, value, least: int = 1, most: int = LARGEST) -> int:
    """``value`` as a whole number. Raises RequestError unless it is from ``least`` to ``most``."""
    if isinstance(value, list | tuple) or getattr(value, "ndim", 0):
        raise RequestError(f"{name} must be one whole number, not {shorten(value)}")
    return int(per_row(name, value, 1, np.int64, least, most)[0])


def field_names(record: type) -> tuple[str, ...]:
    """The names of the fields of a dataclass."""
    return tuple(field.name for field in dataclasses.fields(record))


def pop_fields(record: type, options: dict) -> dict:
    """Removes the fields of the dataclass ``record`` from ``options``, and returns them."""
    return {name: options.pop(name) for name in field_names(record) if name in options}


def plain(value):
    """``value`` with tuples instead of lists, and with numbers and tuples instead of arrays."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Raises RequestError for a name of an option that is not among the ``known`` ones."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            mend = f"did you mean {near[0]}?" if near else f"use {', '.join(known)}"
            raise RequestError(f"option {name!r} is unknown; {mend}")


def shorten(value, longest: int = 60) -> str:
    """``value`` as Python writes it, on one line of at most ``longest`` characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= longest else text[: longest - 3] + "..."


def parse_json(name: str, text: str | bytes, error: type[SpecjaxError] = RequestError):
    """The value of a JSON text.

    Raises ``error`` if the text is not JSON or nests more than ``DEEPEST`` levels. The message
    begins with ``name``.
    """
    try:
        value = json.loads(text)
        depth = _depth(value)
    except RecursionError:
        depth = DEEPEST + 1
    except ValueError as reason:
        raise error(f"{name} is not JSON ({reason}); mend it") from None
    if depth > DEEPEST:
        raise error(f"{name} nests too deeply; use at most {DEEPEST} levels")
    return value


def _depth(value) -> int:
    """Levels of nested lists and objects, counted without recursion."""

    def items(value):
        if isinstance(value, dict):
            return value.values()
        return value if isinstance(value, list) else ()

    depth = 0
    level = [value]
    while level := [item for outer in level for item in items(outer)]:
        depth += 1
    return depth
