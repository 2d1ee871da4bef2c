"""Texts and conversations to train on, from text files, tables and datasets."""

import dataclasses
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..core.checks import check_extra, shorten
from ..core.read_files import read_text
from ..errors import RequestError
from ..requests.chat import render_answers
from ..text.table_files import is_table, read_dataset, read_rows

HUB = "hf://datasets/"
"""The beginning of the name of a dataset on the Hugging Face hub."""

_TEXT = ("text", "content")
"""The usual columns of texts."""

_CONVERSATION = ("messages", "conversations")
"""The usual columns of conversations."""

_NEEDS = (
    f"a row needs {', '.join(_TEXT)}, {', '.join(_CONVERSATION)}, or instruction with output; "
    "another column of texts is named by column, or --column"
)
_ROLES = {"human": "user", "gpt": "assistant"}
"""The names of ShareGPT's speakers that differ from the usual roles."""

_TABLES = (".jsonl", ".jsonl.gz", ".parquet")
"""The tables in a directory. Other files there are texts, JSON and CSV too."""

_SAVED = ("state.json", "dataset_dict.json")
"""The files that mark a directory of the package ``datasets``."""


class Document(NamedTuple):
    """A text, and the parts of it from which a drafter learns.

    Attributes:
      text: the text.
      spans: the begin and the end in characters of each part; None for the whole text.
    """

    text: str
    spans: list[tuple[int, int]] | None = None


@dataclasses.dataclass(frozen=True)
class Source:
    """A source of texts. Its fields are the keys of [[data]].

    Attributes:
      path: a file, a directory, or a dataset of the Hugging Face hub such as
        "hf://datasets/OWNER/NAME".
      weight: the share of the windows that come from this source, relative to the other weights.
        Sources without weights count by their sizes.
      column: the column of a table with the text or the conversation; by default a usual name.
      configuration, split: the parts of a dataset, see ``text.table_files.read_dataset``.
    """

    path: str = ""
    weight: float | None = None
    column: str = ""
    configuration: str = ""
    split: str = "train"

    def __post_init__(self):
        if not self.path.strip():
            raise RequestError("path is empty; name a file, a directory or a dataset")
        if self.weight is not None and not 0 < self.weight < math.inf:
            raise RequestError(f"weight {self.weight} of {self.path} must be above 0; leave the source out instead")

    @classmethod
    def parse(cls, text: str, column: str = "") -> "Source":
        """The source in "PATH" or "PATH=WEIGHT". Raises RequestError for a bad weight."""
        path, equals, weight = text.rpartition("=")
        if not equals or os.path.exists(text):
            return cls(text, column=column)
        try:
            share = float(weight)
        except ValueError:
            raise RequestError(
                f"--data {text}: weight {weight!r} is no number; use PATH=WEIGHT, such as a.txt=0.7"
            ) from None
        return cls(path, share, column)

    @property
    def is_dataset(self) -> bool:
        """True if the package ``datasets`` reads the source."""
        return self.path.startswith(HUB) or any(os.path.isfile(Path(self.path) / name) for name in _SAVED)

    def list_files(self) -> list[Path]:
        """The files of the source in a fixed order, without hidden files; none of a dataset.

        Raises RequestError for a path that does not exist, for a directory without a file, and
        where a package is missing that reads the source.
        """
        path = Path(self.path)
        if self.is_dataset:
            check_extra("eval", ("datasets",), f"--data {self.path}")
            return []
        if not os.path.exists(path):
            raise RequestError(f"--data {self.path}: no such file or directory; name files, or directories of them")
        files = sorted(p for p in path.rglob("*") if _is_visible_file(p, path)) if path.is_dir() else [path]
        if not files:
            raise RequestError(f"--data {path}: no file there; name files, or directories of them")
        if parquet := next((file for file in files if file.suffix == ".parquet"), None):
            check_extra("eval", ("pyarrow",), f"Parquet file {parquet}")
        return files


def _is_visible_file(path: Path, directory: Path) -> bool:
    return path.is_file() and not any(part.startswith(".") for part in path.relative_to(directory).parts)


def make_sources(paths: Sequence["str | Path | Source"]) -> tuple[Source, ...]:
    """The sources of paths. Raises RequestError where some sources have weights and others not."""
    sources = tuple(each if isinstance(each, Source) else Source(str(each)) for each in paths)
    without = [source.path for source in sources if source.weight is None]
    if without and len(without) < len(sources):
        raise RequestError(f"--data {without[0]} has no weight and others have; give each source a weight, or none")
    return sources


def read_documents(source: Source, tokenizer) -> list[Document]:
    """The documents of a source that are not blank.

    ``tokenizer`` has the chat template of conversations. Raises RequestError for bad files and
    rows, which it names.
    """
    rows = []
    texts = []
    if source.is_dataset:
        rows.append(read_dataset(source.path.removeprefix(HUB), source.configuration or None, source.split))
    for file in source.list_files():
        if is_table(file, _TABLES if Path(source.path).is_dir() else None):
            rows.append(read_rows(file, _NEEDS))
        else:
            texts.append(Document(read_text(file, f"--data {file}", errors="ignore")))
    documents = [*texts, *_documents(itertools.chain.from_iterable(rows), source.column, tokenizer)]
    return [
        document for document in documents if document.text.strip() and "\0" not in document.text
    ]  # no binary files


def _documents(rows: Iterator[tuple[str, dict]], column: str, tokenizer) -> Iterator[Document]:
    """The documents of rows. Errors begin with the row's place."""
    for place, row in rows:
        try:
            value = _find_value(row, column)
            if isinstance(value, str):
                yield Document(value)
            else:
                yield from itertools.starmap(Document, render_answers(tokenizer, _read_turns(value)))
        except RequestError as error:
            raise RequestError(f"{place}: {error}") from None


def _find_value(row: Mapping[str, Any], column: str) -> str | list:
    """The text or the conversation of a row."""
    if column and column not in row:
        raise RequestError(f"no column {column!r}; the row has {shorten(', '.join(map(str, row)), 100)}")
    if not column and row.get("instruction") is not None and row.get("output") is not None:
        parts = [row["instruction"], row.get("input")]
        return [
            {"role": "user", "content": "\n\n".join(str(part) for part in parts if part)},
            {"role": "assistant", "content": row["output"]},
        ]
    names = [column] if column else [*_CONVERSATION, *_TEXT]
    name = next((name for name in names if row.get(name) is not None), None)
    if name is None:
        raise RequestError(f"column {column} is empty; leave the row out" if column else f"no text; {_NEEDS}")
    if not isinstance(row[name], str | list):
        raise RequestError(f"{name} must be a text or a conversation, not {shorten(row[name])}")
    return row[name]


def _read_turns(conversation: list) -> list:
    """The turns with role and content. ShareGPT's turns have "from" and "value" instead."""

    def read(turn):
        if not isinstance(turn, Mapping):
            return turn
        if "from" in turn:
            return {"role": _ROLES.get(turn["from"], turn["from"]), "content": turn.get("value")}
        return {key: value for key, value in turn.items() if value is not None}  # tables fill missing keys with None

    return [read(turn) for turn in conversation]
