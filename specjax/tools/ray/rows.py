"""Rows of a table: a prompt and its options in, a text and its statistics out."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...core.checks import shorten
from ...errors import RequestError, SpecjaxError
from ...requests.batch import build_batch
from ...requests.chat import end_of_turn_ids, render_chat
from ...requests.options import Options
from ...requests.other_libraries import rename_options
from ...requests.prompts import encode_prompts
from ...text.generator import Generator
from ...text.result import Result

PROMPTS = {
    "prompt": (str, "a string"),
    "messages": (list, "a list of turns"),
    "prompt_token_ids": (list, "a list of token ids"),
}
"""The columns that can hold prompts, and the type of their values."""

_REFUSED = {
    "n": "make a row for each sample, with seeds of their own",
    "logprobs": "call a Generator for log-probabilities",
    "policy_logprobs": "call a Generator for log-probabilities",
}
"""Options that a row cannot have, and the mend."""

OPTIONS = tuple(field.name for field in dataclasses.fields(Options))
"""The columns that hold options."""


def check_defaults(options: Mapping) -> dict:
    """The options of rows that lack them, under the names of ``Options``.

    Raises RequestError for an unknown name, and for an option that a row cannot have.
    """
    defaults = rename_options(options)
    Options.of(defaults)
    _refuse(defaults)
    return defaults


def check_options(generator: Generator, defaults: Mapping) -> None:
    """Raises RequestError for a default that every row would have to refuse."""
    config = generator.target.config
    options = Options.of({"max_new_tokens": config.context} | dict(defaults))
    build_batch(options, [[0]], generator.target)


def check_columns(names: Sequence[str], added: Sequence[str]) -> str:
    """The column that holds the prompts.

    Args:
      names: the columns of the dataset.
      added: the columns that the stage adds.

    Raises RequestError unless one column holds prompts, and for a column that the stage adds or
    that holds an option that a row cannot have.
    """
    columns = [name for name in PROMPTS if name in names]
    if len(columns) != 1:
        mend = f"drop all but one of {', '.join(columns)}" if columns else f"name one {', '.join(PROMPTS)}"
        raise RequestError(f"the dataset has {len(columns)} columns of prompts; {mend}")
    for name in added:
        if name in names:
            raise RequestError(f"the dataset has a column {name!r}, which the stage adds; rename it")
    _refuse(names)
    return columns[0]


def decode_rows(
    generator: Generator, rows: Sequence[Mapping], column: str, defaults: Mapping
) -> list[Result | SpecjaxError]:
    """The result of each row, or the error that refuses it.

    A result depends on its own row alone. Refused rows do not change the others.

    Args:
      rows: the columns of each row by name. Columns that hold no options are left alone.
      column: the column of the prompts, a key of ``PROMPTS``.
      defaults: options of rows that lack them.
    """
    requests = [_read_or_refuse(generator, row, column, defaults) for row in rows]
    results = iter(_decode(generator, [one for one in requests if not isinstance(one, SpecjaxError)], column))
    return [one if isinstance(one, SpecjaxError) else next(results) for one in requests]


def plain(cell) -> Any:
    """The value of a cell as plain Python, None where it is missing.

    Arrow fills a dict with None for the keys of other rows' dicts. NumPy makes a column of whole
    numbers with missing values a column of floats.
    """
    cell = cell.tolist() if isinstance(cell, np.ndarray | np.generic) else cell
    if isinstance(cell, float):
        return None if math.isnan(cell) else int(cell) if cell.is_integer() else cell
    if isinstance(cell, Mapping):
        return {key: plain(value) for key, value in cell.items() if value is not None}
    return [plain(value) for value in cell] if isinstance(cell, list) else cell


def _refuse(names) -> None:
    for name, mend in _REFUSED.items():
        if name in names:
            raise RequestError(f"{name} is no option of a row; {mend}")


def _read_or_refuse(generator: Generator, row: Mapping, column: str, defaults: Mapping) -> dict | SpecjaxError:
    """The row's prompt and options by name, checked, or the error that refuses the row."""
    try:
        prompt, options = _read(row, column, defaults)
        tokenizer = generator.target.tokenizer
        ends = ()
        if column == "messages":
            ids = render_chat(tokenizer, prompt)
            ends = end_of_turn_ids(tokenizer)
        else:
            (ids,) = encode_prompts([prompt], tokenizer, generator.target.config)
        build_batch(options, [ids], generator.target, (), ends)
    except SpecjaxError as error:
        return error
    return {column: prompt} | vars(options) | options.rows(1)[0]


def _read(row: Mapping, column: str, defaults: Mapping) -> tuple[Any, Options]:
    """The row's prompt and its options."""
    kind, wanted = PROMPTS[column]
    prompt = plain(row[column])
    if not isinstance(prompt, kind):
        raise RequestError(f"{column} must be {wanted}, not {shorten(prompt)}")
    own = {name: plain(row[name]) for name in OPTIONS if name in row}
    own = {name: value for name, value in own.items() if value is not None}
    if isinstance(own.get("json_schema"), Mapping):
        raise RequestError("json_schema must be JSON text in a column, because Arrow adds keys to dicts")
    return prompt, Options.of(dict(defaults) | own)


def _decode(generator: Generator, rows: list[dict], column: str) -> list[Result | SpecjaxError]:
    """The results of rows that were checked one by one.

    A batch that is refused as a whole, or in which the model makes NaN, is decoded in halves.
    """
    if not rows:
        return []
    try:
        return _decode_batch(generator, rows, column)
    except SpecjaxError as error:
        if len(rows) == 1:
            return [error]
    half = len(rows) // 2
    return _decode(generator, rows[:half], column) + _decode(generator, rows[half:], column)


def _decode_batch(generator: Generator, rows: list[dict], column: str) -> list[Result | SpecjaxError]:
    """The results of one batch.

    The batch gets copies of its first prompt, up to a power of two, so that batches of similar size
    share compiled programs. A copy ends after one token.
    """
    copy = {column: rows[0][column]} | vars(Options(max_new_tokens=1))
    padded = rows + [copy] * ((1 << (len(rows) - 1).bit_length()) - len(rows))
    arguments: dict[str, Any] = {name: [row[name] for row in padded] for name in OPTIONS if name not in _REFUSED}
    arguments["messages" if column == "messages" else "prompts"] = [row[column] for row in padded]
    return list(generator(**arguments))[: len(rows)]
