"""Reads rows, values by the names of columns, from files of several formats and from datasets."""

import csv
import gzip
import importlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..core.checks import check_extra
from ..core.read_files import LARGEST_JSON, parse_json, read_json, read_text
from ..errors import RequestError


def is_table(path: Path, endings: Sequence[str] | None = None) -> bool:
    """Whether the name of a file has one of the ``endings``, by default those of ``read_rows``."""
    return path.name.endswith(tuple(_READERS if endings is None else endings))


def read_rows(path: Path, needs: str, header: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file, each with its place for error messages.

    Args:
      path: JSON lines, gzipped or not, a JSON list, CSV or Parquet, by the ending of its name.
      needs: names the columns that the reader of the rows needs; it ends some messages.
      header: the columns of a CSV file without a line of names.

    Raises RequestError for a file of another format, and for a broken one, with file and line.
    """
    reader = next((reader for ending, reader in _READERS.items() if path.name.endswith(ending)), None)
    if reader is None:
        raise RequestError(f"{path}: of an unknown format; use a file that ends in {', '.join(_READERS)}")
    try:
        for place, row in reader(path, needs, header):
            if not isinstance(row, dict):
                raise RequestError(f"{place}: no object; {needs}")
            yield place, row
    except (OSError, EOFError) as error:  # gzip raises EOFError
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"{path}: cannot be read ({reason}); name another file") from None
    except UnicodeDecodeError:
        raise RequestError(f"{path}: not UTF-8; name a file of JSON lines, JSON, CSV or Parquet") from None


def read_dataset(
    name: str, configuration: str | None = None, split: str = "train"
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a dataset by the package ``datasets``, each with its place for error messages.

    Args:
      name: a dataset of the Hugging Face hub, or a directory that ``save_to_disk`` wrote.
      configuration, split: the parts of the dataset, by the names that its maker gave them.

    Raises RequestError where the package is missing and where it cannot read the dataset.
    """
    check_extra("eval", ("datasets",), f"dataset {name}")
    datasets = importlib.import_module("datasets")
    try:
        if Path(name).is_dir():
            rows = datasets.load_from_disk(name)
            if isinstance(rows, dict) and split not in rows:
                raise RequestError(f"no split {split!r} among {', '.join(rows)}")
            rows = rows[split] if isinstance(rows, dict) else rows
        else:
            rows = datasets.load_dataset(name, configuration, split=split)
    except Exception as error:  # the package raises errors of many libraries
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise RequestError(f"dataset {name} cannot be read ({reason}); give its files with --data") from None
    yield from ((f"{name}, row {number}", row) for number, row in enumerate(rows, 1))


def _read_lines(path: Path, needs: str, header: Sequence[str]) -> Iterator[tuple[str, Any]]:
    opened = gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")
    with opened as file:
        for number, line in enumerate(iter(lambda: file.readline(LARGEST_JSON + 1), b""), 1):
            place = f"{path}, line {number}"
            if len(line) > LARGEST_JSON:
                raise RequestError(f"{place}: is above the limit of {LARGEST_JSON:,} bytes; name another file")
            if line.strip():
                yield place, parse_json(f"{place}: the line", line.decode("utf-8-sig"))


def _read_json(path: Path, needs: str, header: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The objects of a list, or of the list under "data" (SQuAD)."""
    value = read_json(path, f"{path}: the file")
    rows = value.get("data") if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise RequestError(f"{path}: no list of objects; {needs}")
    yield from ((f"{path}, entry {number}", row) for number, row in enumerate(rows, 1))


def _read_csv(path: Path, needs: str, header: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The rows of a CSV file.

    Its first line has the names of columns, unless ``header`` has them.
    """
    reader = csv.DictReader(io.StringIO(read_text(path, str(path))), header or None)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise RequestError(f"{path}, line {reader.line_num}: {len(row)} columns; {needs}")
            yield f"{path}, line {reader.line_num}", row
    except csv.Error as error:
        raise RequestError(f"{path}, line {reader.line_num}: not CSV ({error}); mend it") from None


def _read_parquet(path: Path, needs: str, header: Sequence[str]) -> Iterator[tuple[str, Any]]:
    check_extra("eval", ("pyarrow",), f"Parquet file {path}")
    import pyarrow
    from pyarrow import parquet

    try:
        rows = itertools.chain.from_iterable(batch.to_pylist() for batch in parquet.ParquetFile(path).iter_batches())
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))
    except pyarrow.ArrowInvalid as error:
        raise RequestError(f"{path}: not Parquet ({' '.join(str(error).split())[:80]}); name another file") from None


_READERS: dict[str, Callable[[Path, str, Sequence[str]], Iterator[tuple[str, Any]]]] = {
    ".jsonl": _read_lines,
    ".jsonl.gz": _read_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
