"""Text files to batches of token windows, each a function of (seed, step) alone: training resumes exactly where it stopped."""

import sysconfig
import zlib
from pathlib import Path

import numpy as np

_LEFT_OUT = {"site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"}


def standard_library(root: str | Path | None = None, held_out: bool = False) -> list[Path]:
    """The modules of the running Python's standard library, in a fixed order, tests and generated tables left out.

    A module is held out of training when the checksum of its path within the library is divisible by twenty, on every machine
    and Python version alike.
    """
    root = Path(root or sysconfig.get_path("stdlib"))
    paths = sorted(p for p in root.rglob("*.py") if not _LEFT_OUT & set(p.relative_to(root).parts))
    return [p for p in paths if (zlib.crc32(p.relative_to(root).as_posix().encode()) % 20 == 0) == held_out]


def read_texts(paths: list[Path]) -> list[str]:
    return [p.read_text(encoding="utf-8", errors="ignore") for p in paths]


def token_stream(texts: list[str], tokenizer, separator: int) -> np.ndarray:
    """All texts as one int32 array, a separator before each."""
    pieces = [np.asarray([separator, *ids], np.int32) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    return np.concatenate(pieces)


def batch_at(stream: np.ndarray, seed: int, step: int, batch: int, length: int) -> np.ndarray:
    """Int32 [batch, length + 1]: windows of the stream. Every epoch covers it once in a new random order and at a new offset."""
    rows = (stream.size - 1) // length - 1
    epoch, place = divmod(step * batch, rows)
    order = [np.random.default_rng((seed, e)) for e in (epoch, epoch + 1)]
    starts = np.concatenate([rng.integers(length) + length * rng.permutation(rows) for rng in order])
    return np.stack([stream[s : s + length + 1] for s in starts[place : place + batch]])
