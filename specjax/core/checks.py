"""Checks of values that users give, on the host, before anything is loaded or compiled."""

import dataclasses
import difflib
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

import numpy as np

from ..errors import RequestError

LARGEST = 2**31 - 1
"""The upper bound of numbers that have no tighter bound: the largest int32."""


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


def check_extra(extra: str, packages: Iterable[str], user: str) -> None:
    """Raises RequestError where a package is missing that the ``user`` needs from an extra."""
    for package in packages:
        if (sys.modules[package] if package in sys.modules else find_spec(package)) is None:
            raise RequestError(f"{user} needs the package {package}; install it with pip install 'specjax[{extra}]'")


def plain(value):
    """``value`` with tuples instead of lists, and with numbers and tuples instead of arrays."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def check_known(what: str, name, known: Iterable[str]) -> None:
    """Raises RequestError for a ``name`` of ``what`` that is not among the ``known`` ones."""
    known = list(known)
    if name not in known:
        mend = suggest(str(name), known) or f"; use one of {', '.join(known)}"
        raise RequestError(f"{what} {shorten(name)} is unknown{mend}")


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Raises RequestError for a name of an option that is not among the ``known`` ones."""
    for name in names:
        check_known("option", name, known)


def suggest(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: the most similar name, if one is similar."""
    near = difflib.get_close_matches(name[:100], list(names), 1)
    return f"; did you mean {near[0]}?" if near else ""


def check_text(text, name: str) -> str:
    """Returns ``text``. Raises RequestError for no string and for half of a surrogate pair."""
    if not isinstance(text, str):
        raise RequestError(f"{name} must be a string, not {shorten(text)}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{name} holds characters that are no text; remove its surrogates") from None
    return text


def shorten(value, longest: int = 60) -> str:
    """``value`` as Python writes it, on one line of at most ``longest`` characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= longest else text[: longest - 3] + "..."
