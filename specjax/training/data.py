"""Text files to batches of token windows, each a function of (seed, step) alone: training resumes exactly where it stopped."""

import sysconfig
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import RequestError

_LEFT_OUT = {"site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"}


def standard_library(root: str | Path | None = None, held_out: bool = False) -> list[Path]:
    """The modules of the running Python's standard library, in a fixed order, tests and generated tables left out.

    A module is held out of training when the checksum of its path within the library is divisible by twenty, on every machine
    and Python version alike.
    """
    root = Path(root or sysconfig.get_path("stdlib"))
    paths = sorted(p for p in root.rglob("*.py") if not _LEFT_OUT & set(p.relative_to(root).parts))
    return [p for p in paths if (zlib.crc32(p.relative_to(root).as_posix().encode()) % 20 == 0) == held_out]


def text_files(paths: Sequence[str | Path]) -> list[Path]:
    """The files among ``paths`` and those within its directories, in a fixed order, hidden ones left out. Raises RequestError for a path
    that does not exist, or where no file is found."""
    found = []
    for path in map(Path, paths):
        if not path.exists():
            raise RequestError(f"--data {path}: no such file or directory; name text files, or directories of them")
        inside = sorted(p for p in path.rglob("*") if p.is_file() and not any(part.startswith(".") for part in p.relative_to(path).parts))
        found += inside if path.is_dir() else [path]
    if not found:
        raise RequestError(f"--data {', '.join(map(str, paths))}: no file there; name text files, or directories of them")
    return found


def read_texts(paths: list[Path]) -> list[str]:
    return [p.read_text(encoding="utf-8", errors="ignore") for p in paths]


def token_stream(texts: list[str], tokenizer, separator: int) -> np.ndarray:
    """All texts as one int32 array, a separator before each."""
    pieces = [np.asarray([separator, *ids], np.int32) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    return np.concatenate(pieces)


def streams(paths: Sequence[str | Path], tokenizer, separator: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens to train on and those held out: of files the last twentieth, of the standard library, where no path is given, the modules
    that are. Raises RequestError where there is no text."""
    if not paths:
        return tuple(token_stream(read_texts(standard_library(held_out=h)), tokenizer, separator) for h in (False, True))
    texts = [text for text in read_texts(text_files(paths)) if text.strip() and "\0" not in text]  # no binary files
    if not texts:
        raise RequestError(f"--data {', '.join(map(str, paths))}: no text there; name files that have some")
    stream = token_stream(texts, tokenizer, separator)
    return np.split(stream, [stream.size - stream.size // 20])


def check_windows(stream: np.ndarray, length: int) -> None:
    """Raises RequestError where a stream is too short for two windows, the least that random offsets need."""
    if stream.size < 2 * length + 1:
        raise RequestError(
            f"the data has {stream.size} tokens and windows of {length} need {2 * length + 1}; give more text or a smaller length"
        )


def starts_at(size: int, seed: int, step: int, batch: int, length: int) -> np.ndarray:
    """Int [batch]: where the windows of a step begin in a stream of ``size`` tokens. Every epoch covers it once in a new random order and
    at a new offset."""
    rows = (size - 1) // length - 1
    epochs, places = np.divmod(np.arange(step * batch, (step + 1) * batch), rows)
    order = {e: _epoch(np.random.default_rng((seed, e)), rows, length) for e in np.unique(epochs).tolist()}
    return np.array([order[e][place] for e, place in zip(epochs.tolist(), places)])


def batch_at(stream: np.ndarray, seed: int, step: int, batch: int, length: int) -> np.ndarray:
    """Int32 [batch, length + 1]: windows of the stream, see ``starts_at``."""
    return np.stack([stream[s : s + length + 1] for s in starts_at(stream.size, seed, step, batch, length)])


def rows_at(rows: np.ndarray, seed: int, step: int, batch: int) -> np.ndarray:
    """``batch`` of the ``rows`` [R, ...] for a step; every epoch covers them once in a new random order."""
    epochs, places = np.divmod(np.arange(step * batch, (step + 1) * batch), len(rows))
    order = {e: np.random.default_rng((seed, e)).permutation(len(rows)) for e in np.unique(epochs).tolist()}
    return np.stack([rows[order[e][place]] for e, place in zip(epochs.tolist(), places)])


def prompts_of(stream: np.ndarray, count: int, length: int) -> list[list[int]]:
    """``count`` pieces of a stream, evenly spread. Raises RequestError where it is shorter than one."""
    if stream.size < length:
        raise RequestError(f"{stream.size} tokens are held out and a prompt needs {length}; give more text, or prompts = 0 in the recipe")
    return [stream[s : s + length].tolist() for s in np.linspace(0, stream.size - length, count).astype(int)]


def _epoch(rng: np.random.Generator, rows: int, length: int) -> np.ndarray:
    return rng.integers(length) + length * rng.permutation(rows)
