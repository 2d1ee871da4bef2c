"""Reads the questions of a suite from its published files, or from the Hugging Face hub."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ....errors import RequestError
from ....text.table_files import read_dataset, read_rows
from .suite import Question, Row, Suite

_FORMATS = ("*.jsonl", "*.jsonl.gz", "*.json", "*.parquet", "*.csv")
"""The files that are looked for where none has a name of the suite's own."""

_SMALL = Path(__file__).with_name("small.jsonl")


def read_questions(suite: Suite, data: str | Path | None, limit: int | None = None) -> list[Question]:
    """The questions of a suite, in the order of its files.

    Args:
      data: a file, or a directory that has the suite's files. Without it the suite "small" comes
        from the package, and the others from the Hugging Face hub by the package ``datasets``.
      limit: the most questions of each task.

    Raises RequestError for files of another format, for a missing column or a wrong value, which it
    names with file and line, and for two questions of one id.
    """
    data = _SMALL if data is None and suite.name == "small" else data
    named = _read_hub(suite) if data is None else _read_files(suite, find_files(suite, Path(data)))
    questions = []
    places = {}
    counts: dict[str, int] = {}
    for number, (place, row) in enumerate(named):
        question = _ask(suite, row, number, place)
        if question.id in places:
            raise RequestError(f"{place}: question {question.id!r} stands at {places[question.id]} too; remove one")
        places[question.id] = place
        counts[question.task] = counts.get(question.task, 0) + 1
        if limit is None or counts[question.task] <= limit:
            questions.append(question)
    if not questions:
        raise RequestError(f"--data {data}: the files have no question; name the files of suite {suite.name}")
    return questions


def find_files(suite: Suite, data: Path) -> list[Path]:
    """The file ``data``, or the suite's files in the directory ``data`` and its folders."""
    if os.path.isfile(data):
        return [data]
    if not os.path.isdir(data):
        raise RequestError(f"--data {data}: no such file or directory; name the files of suite {suite.name}")
    for pattern in (*suite.files, *_FORMATS):
        if files := sorted(path for path in data.rglob(pattern) if path.is_file()):
            return files
    expected = ", ".join(dict.fromkeys((*suite.files, *_FORMATS)))
    raise RequestError(f"--data {data}: no file of suite {suite.name} there; it expects one of {expected}")


def _ask(suite: Suite, row: Row, number: int, place: str) -> Question:
    """The question of a row. Errors begin with its place."""
    missing = [column for column in suite.columns if column not in row]
    try:
        if not missing:
            return suite.ask(row, number)
    except KeyError as error:
        missing = [error.args[0]]
    except RequestError as error:
        raise RequestError(f"{place}: {error}") from None
    raise RequestError(
        f"{place}: no column {', '.join(map(repr, missing))}; suite {suite.name} needs {', '.join(suite.columns)}"
    )


def _read_files(suite: Suite, paths: Iterable[Path]) -> Iterator[tuple[str, Row]]:
    """The rows of all files, each with its place, and with its file's name as ``file``."""
    needs = f"suite {suite.name} needs {', '.join(suite.columns)}"
    for path in paths:
        for place, value in read_rows(path, needs, suite.header):
            for row in _expand(suite, value, place):
                yield place, {"file": path.stem, **row}


def _expand(suite: Suite, value: dict, place: str) -> list[Row]:
    try:
        return suite.rows(value)
    except RequestError as error:
        raise RequestError(f"{place}: {error}") from None


def _read_hub(suite: Suite) -> Iterator[tuple[str, Row]]:
    if suite.hub is None:
        raise RequestError(f"suite {suite.name} is published as a file; give it with --data ({suite.source})")
    for place, value in read_dataset(*suite.hub):
        yield from ((place, {"file": suite.hub[0], **row}) for row in suite.rows(value))
