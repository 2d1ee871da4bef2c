"""Reads the files that users name: bytes, text, JSON and TOML, of bounded size and depth."""

import json
import os
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path

from ..errors import RequestError, SpecjaxError

LARGEST_TEXT = 1 << 30
"""The most bytes of a file of prompts or of text."""

LARGEST_JSON = 1 << 26
"""The most bytes of a JSON file."""

LARGEST_TOML = 1 << 20
"""The most bytes of a TOML file."""

DEEPEST = 100
"""The most levels of nested lists and objects in JSON and TOML."""

_OTHER = "name another file"


def read_bytes(
    file: str | Path,
    name: str,
    largest: int = LARGEST_TEXT,
    error: type[SpecjaxError] = RequestError,
    mend: str = _OTHER,
) -> bytes:
    """The content of a file or of a pipe.

    Args:
      name: the beginning of messages.
      mend: the end of messages.

    Raises ``error`` for a file that cannot be read, for a device, which may have no end, and for
    more than ``largest`` bytes.
    """
    try:
        kind = os.stat(file).st_mode
        device = stat.S_ISCHR(kind) or stat.S_ISBLK(kind)
        content = b"" if device else _read(file, largest + 1)
    except (OSError, ValueError) as reason:  # ValueError: a zero byte in the name
        raise error(f"{name}: cannot be read ({getattr(reason, 'strerror', None) or reason}); {mend}") from None
    if device:
        raise error(f"{name}: is a device; {mend}")
    if len(content) > largest:
        raise error(f"{name}: is above the limit of {largest:,} bytes; {mend}")
    return content


def _read(file: str | Path, most: int) -> bytes:
    """The first ``most`` bytes, read in pieces, so a small file takes little memory."""
    pieces = []
    with open(file, "rb") as opened:
        while most and (piece := opened.read(min(most, 1 << 20))):
            pieces.append(piece)
            most -= len(piece)
    return b"".join(pieces)


def read_text(
    file: str | Path, name: str, largest: int = LARGEST_TEXT, errors: str = "strict", mend: str = _OTHER
) -> str:
    """The text of a file in UTF-8, with line ends as Python has them.

    Args:
      name, largest, mend: as for ``read_bytes``.
      errors: "ignore" to drop bytes that are not UTF-8.

    Raises the errors of ``read_bytes``, and RequestError for bytes that are not UTF-8.
    """
    try:
        text = read_bytes(file, name, largest, mend=mend).decode("utf-8-sig", errors)
    except UnicodeDecodeError as reason:
        raise RequestError(f"{name}: not UTF-8 ({reason.reason}); save it as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(file: str | Path, name: str, error: type[SpecjaxError] = RequestError, mend: str = _OTHER):
    """The value in a JSON file. Raises the errors of ``read_bytes`` and ``parse_json``."""
    return parse_json(name, read_bytes(file, name, LARGEST_JSON, error, mend), error, mend)


def read_toml(file: str | Path, name: str, mend: str = _OTHER) -> dict:
    """The table in a TOML file.

    Raises the errors of ``read_text``, and RequestError for text that is not TOML or nests more
    than ``DEEPEST`` levels.
    """
    text = read_text(file, name, LARGEST_TOML, mend=mend)
    return _parse(tomllib.loads, "TOML", text, name, RequestError, "mend the file")


def parse_json(name: str, text: str | bytes, error: type[SpecjaxError] = RequestError, mend: str = "mend it"):
    """The value of a JSON text. The message of an error ends with ``mend``.

    Raises ``error`` if the text is not JSON or nests more than ``DEEPEST`` levels. The message
    begins with ``name``.
    """
    return _parse(json.loads, "JSON", text, name, error, mend)


def _parse(parse: Callable, form: str, text: str | bytes, name: str, error: type[SpecjaxError], mend: str):
    try:
        value = parse(text)
        depth = _depth(value)
    except RecursionError:
        depth = DEEPEST + 1
    except ValueError as reason:
        raise error(f"{name} is not {form} ({reason}); {mend}") from None
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
