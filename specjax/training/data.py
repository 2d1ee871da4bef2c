"""Batches of token windows from text files.

A batch depends only on the seed and the step, so a resumed training reads the same batches.
"""

import sysconfig
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import RequestError

_LEFT_OUT = {"site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"}


def standard_library(root: str | Path | None = None, held_out: bool = False) -> list[Path]:
    """The modules of the running Python's standard library, in a fixed order.

    Tests and generated tables are left out. A module is held out of training if the checksum of its
    path within the library is divisible by twenty. This choice is the same on every machine and in
    every Python version.

    Args:
      root: the directory of the library; by default that of the running Python.
      held_out: whether to return the held-out modules instead of the others.
    """
    root = Path(root or sysconfig.get_path("stdlib"))
    paths = sorted(p for p in root.rglob("*.py") if not _LEFT_OUT & set(p.relative_to(root).parts))
    return [p for p in paths if (zlib.crc32(p.relative_to(root).as_posix().encode()) % 20 == 0) == held_out]


def text_files(paths: Sequence[str | Path]) -> list[Path]:
    """The files among ``paths`` and in its directories, in a fixed order, without hidden files.

    Raises RequestError for a path that does not exist, and where there is no file.
    """
    found = []
    for path in map(Path, paths):
        if not path.exists():
            raise RequestError(f"--data {path}: no such file or directory; name text files, or directories of them")
        found += sorted(p for p in path.rglob("*") if _is_visible_file(p, path)) if path.is_dir() else [path]
    if not found:
        raise RequestError(f"--data {_join(paths)}: no file there; name text files, or directories of them")
    return found


def _is_visible_file(path: Path, directory: Path) -> bool:
    return path.is_file() and not any(part.startswith(".") for part in path.relative_to(directory).parts)


def _join(paths: Sequence[str | Path]) -> str:
    return ", ".join(map(str, paths))


def read_texts(paths: list[Path]) -> list[str]:
    """The contents of files. Bytes that are not UTF-8 are dropped."""
    return [p.read_text(encoding="utf-8", errors="ignore") for p in paths]


def token_stream(texts: list[str], tokenizer, separator: int) -> np.ndarray:
    """All texts as one int32 array of tokens, with the token ``separator`` before each text."""
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return np.concatenate([np.asarray([separator, *ids], np.int32) for ids in encoded])


def read_streams(paths: Sequence[str | Path], tokenizer, separator: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens to train on, and the held-out tokens.

    Without ``paths`` they are the standard library and its held-out modules. Of given files, the
    last twentieth of the tokens is held out. Raises RequestError where there is no text.
    """
    if not paths:
        library, held_out = (read_texts(standard_library(held_out=h)) for h in (False, True))
        return token_stream(library, tokenizer, separator), token_stream(held_out, tokenizer, separator)
    texts = [text for text in read_texts(text_files(paths)) if text.strip() and "\0" not in text]  # no binary files
    if not texts:
        raise RequestError(f"--data {_join(paths)}: no text there; name files with text")
    stream = token_stream(texts, tokenizer, separator)
    train, held_out = np.split(stream, [stream.size - stream.size // 20])
    return train, held_out


def check_windows(stream: np.ndarray, length: int) -> None:
    """Raises RequestError for a stream of less than two windows, which random offsets need."""
    if stream.size < 2 * length + 1:
        raise RequestError(
            f"the data has {stream.size} tokens and windows of {length} need {2 * length + 1}; "
            "give more text or a smaller length"
        )


def choose_starts(size: int, seed: int, step: int, batch: int, length: int) -> np.ndarray:
    """The positions, int [batch], at which the windows of a step start in a stream.

    Every epoch covers the stream, which has ``size`` tokens, once: in a new random order and from a
    new random offset.
    """
    rows = (size - 1) // length - 1

    def shuffle(rng: np.random.Generator) -> np.ndarray:
        return rng.integers(length) + length * rng.permutation(rows)

    return _choose(shuffle, rows, seed, step, batch)


def cut_windows(stream: np.ndarray, seed: int, step: int, batch: int, length: int) -> np.ndarray:
    """The windows of a step, int32 [batch, length + 1]; see ``choose_starts``."""
    return np.stack([stream[s : s + length + 1] for s in choose_starts(stream.size, seed, step, batch, length)])


def choose_rows(rows: np.ndarray, seed: int, step: int, batch: int) -> np.ndarray:
    """The rows of a step: ``batch`` of the ``rows`` [R, ...].

    Every epoch covers the rows once, in a new random order.
    """
    return rows[_choose(lambda rng: rng.permutation(len(rows)), len(rows), seed, step, batch)]


def _choose(shuffle, size: int, seed: int, step: int, batch: int) -> np.ndarray:
    """The entries of a step. ``shuffle`` draws the ``size`` entries of each epoch in order."""
    epochs, places = np.divmod(np.arange(step * batch, (step + 1) * batch), size)
    order = {e: shuffle(np.random.default_rng((seed, e))) for e in np.unique(epochs).tolist()}
    return np.array([order[e][place] for e, place in zip(epochs.tolist(), places)])


def cut_prompts(stream: np.ndarray, count: int, length: int) -> list[list[int]]:
    """``count`` pieces of a stream, of ``length`` tokens each, spread evenly over it.

    Raises RequestError for a stream that is shorter than one piece.
    """
    if stream.size < length:
        raise RequestError(
            f"{stream.size} tokens are held out and a prompt needs {length}; "
            "give more text, or prompts = 0 in the recipe"
        )
    return [stream[s : s + length].tolist() for s in np.linspace(0, stream.size - length, count).astype(int)]
