"""Reads the questions of a suite from its published files, or from the Hugging Face hub."""

import csv
import gzip
import importlib
import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ...checks import parse_json
from ...errors import RequestError
from .suite import Question, Row, Suite

_FORMATS = ("*.jsonl", "*.jsonl.gz", "*.json", "*.parquet", "*.csv")
"""The files that are looked for where none has a name of the suite's own."""

_SMALL = Path(__file__).with_name("small.jsonl")

_INSTALL = "install it with pip install 'specjax[eval]'"


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
    questions, seen, counts = [], {}, dict[str, int]()
    for number, (place, row) in enumerate(named):
        question = _ask(suite, row, number, place)
        if question.id in seen:
            raise RequestError(f"{place}: question {question.id!r} stands at {seen[question.id]} too; remove one")
        seen[question.id] = place
        counts[question.task] = counts.get(question.task, 0) + 1
        if limit is None or counts[question.task] <= limit:
            questions.append(question)
    if not questions:
        raise RequestError(f"--data {data}: the files have no question; name the files of suite {suite.name}")
    return questions


def find_files(suite: Suite, data: Path) -> list[Path]:
    """The file ``data``, or the suite's files in the directory ``data`` and its folders."""
    if data.is_file():
        return [data]
    if not data.is_dir():
        raise RequestError(f"--data {data}: no such file or directory; name the files of suite {suite.name}")
    for pattern in (*suite.files, *_FORMATS):
        if found := sorted(path for path in data.rglob(pattern) if path.is_file()):
            return found
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
    """The rows of all files, each with its place for errors, and with its file's name as ``file``."""
    for path in paths:
        try:
            for place, value in _reader(path)(path, suite):
                if not isinstance(value, dict):
                    raise RequestError(f"{place}: no object; suite {suite.name} needs {', '.join(suite.columns)}")
                for row in _expand(suite, value, place):
                    yield place, {"file": path.stem, **row}
        except (OSError, EOFError) as error:  # gzip raises EOFError
            reason = getattr(error, "strerror", None) or error
            raise RequestError(f"{path}: cannot be read ({reason}); name another file") from None
        except UnicodeDecodeError:
            raise RequestError(f"{path}: not UTF-8; name a file of JSON lines, JSON, CSV or Parquet") from None


def _expand(suite: Suite, value: dict, place: str) -> list[Row]:
    try:
        return suite.rows(value)
    except RequestError as error:
        raise RequestError(f"{place}: {error}") from None


def _reader(path: Path) -> Callable:
    """The function that reads a file of this name."""
    for ending, reader in _READERS.items():
        if path.name.endswith(ending):
            return reader
    raise RequestError(f"{path}: of an unknown format; use a file that ends in {', '.join(_READERS)}")


def _read_lines(path: Path, suite: Suite) -> Iterator[tuple[str, dict]]:
    opened = gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")
    with opened as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                place = f"{path}, line {number}"
                yield place, parse_json(f"{place}: the line", line.decode("utf-8-sig"))


def _read_json(path: Path, suite: Suite) -> Iterator[tuple[str, dict]]:
    """The objects of a list, or of the list under "data" (SQuAD)."""
    value = parse_json(f"{path}: the file", path.read_text(encoding="utf-8-sig"))
    rows = value.get("data") if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise RequestError(f"{path}: no list of objects; suite {suite.name} needs {', '.join(suite.columns)}")
    yield from ((f"{path}, entry {number}", row) for number, row in enumerate(rows, 1))


def _read_csv(path: Path, suite: Suite) -> Iterator[tuple[str, dict]]:
    """The rows of a CSV file. Its first line has the names of columns, unless the suite has them."""
    reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig")), suite.header or None)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise RequestError(
                    f"{path}, line {reader.line_num}: {len(row)} columns; suite {suite.name} needs "
                    f"{', '.join(suite.header or suite.columns)}"
                )
            yield f"{path}, line {reader.line_num}", row
    except csv.Error as error:
        raise RequestError(f"{path}, line {reader.line_num}: not CSV ({error}); mend it") from None


def _read_parquet(path: Path, suite: Suite) -> Iterator[tuple[str, dict]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise RequestError(f"{path}: Parquet needs the package pyarrow; {_INSTALL}") from None
    try:
        rows = itertools.chain.from_iterable(batch.to_pylist() for batch in parquet.ParquetFile(path).iter_batches())
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))
    except pyarrow.ArrowInvalid as error:
        raise RequestError(f"{path}: not Parquet ({' '.join(str(error).split())[:80]}); name another file") from None


def _read_hub(suite: Suite) -> Iterator[tuple[str, Row]]:
    if suite.hub is None:
        raise RequestError(f"suite {suite.name} is published as a file; give it with --data ({suite.source})")
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise RequestError(
            f"suite {suite.name} is read from --data, or from the hub by the package datasets; {_INSTALL}"
        ) from None
    path, configuration, split = suite.hub
    try:
        rows = datasets.load_dataset(path, configuration, split=split)
    except Exception as error:  # the package raises errors of many libraries
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise RequestError(f"dataset {path} cannot be read ({reason}); give its files with --data") from None
    for number, value in enumerate(rows, 1):
        yield from ((f"{path}, row {number}", {"file": path, **row}) for row in suite.rows(value))


_READERS = {
    ".jsonl": _read_lines,
    ".jsonl.gz": _read_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
