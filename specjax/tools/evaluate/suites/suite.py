"""The record of a suite: its files, its prompts, and the score of an answer."""

import dataclasses
from collections.abc import Callable, Mapping

from ....core.checks import shorten
from ....errors import RequestError

Row = Mapping
"""A row of a file: values by the names of the columns."""


@dataclasses.dataclass(frozen=True)
class Question:
    """One question of a suite, in the words that the model reads.

    Attributes:
      id: the question's name in the answer files, unique in its suite.
      category: the category that the answer files name.
      task: the group of questions that shares a row of the report.
      turns: the user's turns. The model answers each one before it reads the next.
      references: answers to compare with; empty where the suite has none.
      options: the options of a multiple choice, as they continue the prompt.
      right: the number of the right option, from 0.
    """

    id: int | str
    category: str
    task: str
    turns: tuple[str, ...]
    references: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    right: int | None = None


@dataclasses.dataclass(frozen=True)
class Suite:
    """A public set of questions, and the usual way to ask them.

    Attributes:
      name: the name on the command line.
      source: the place where its maker publishes it.
      licence: the licence that its maker names.
      form: the form of the prompt, in words.
      columns: the columns that each row must have.
      ask: turns a row and its number, from 0, into a question.
      files: names of the published files, as patterns. The first pattern that some file matches
        selects the files.
      chat: True if a model with a chat template reads the prompt as the user's turn.
      header: the columns of a CSV file without a line of names.
      rows: turns an object of a file into its rows.
      hub: the arguments of ``datasets.load_dataset``: the dataset, its configuration, its split.
      scores: for each task whose answers have a score, a key of ``benchmark.scores.SCORES``.
    """

    name: str
    source: str
    licence: str
    form: str
    columns: tuple[str, ...]
    ask: Callable[[Row, int], Question]
    files: tuple[str, ...]
    chat: bool = True
    header: tuple[str, ...] = ()
    rows: Callable[[Row], list[Row]] = lambda row: [row]
    hub: tuple[str, str | None, str] | None = None
    scores: Mapping[str, str] = dataclasses.field(default_factory=dict)


def text_of(row: Row, column: str) -> str:
    """The text in a column. Raises RequestError for another value, and for an empty text."""
    value = row[column]
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"{column} must be some text, not {shorten(value)}")
    return value


def texts_of(row: Row, column: str) -> tuple[str, ...]:
    """The texts in a column. Raises RequestError unless it is a list with at least one text."""
    values = row[column]
    if not isinstance(values, list) or not values or not all(isinstance(v, str) and v.strip() for v in values):
        raise RequestError(f"{column} must be a list of texts, not {shorten(values)}")
    return tuple(values)


def number_of(row: Row, column: str, below: int) -> int:
    """The number in a column, from 0 to ``below`` - 1. It may be written as text."""
    try:
        number = int(row[column])
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < below:
        raise RequestError(f"{column} must be a whole number from 0 to {below - 1}, not {shorten(row[column])}")
    return number
