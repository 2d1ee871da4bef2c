"""Batches of token windows from sources of text.

A batch depends only on the seed and the step, so a resumed training reads the same batches.
"""

import dataclasses
import functools
import sysconfig
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.read_files import read_text
from ..errors import RequestError
from .sources import Document, Source, make_sources, read_documents

_EXCLUDED = {"site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"}


def standard_library(held_out: bool = False) -> list[Path]:
    """The modules of the running Python's standard library, in a fixed order.

    Tests and generated tables are left out. A module is held out of training if the checksum of its
    path within the library is divisible by twenty. This choice is the same on every machine and in
    every Python version.

    ``held_out``: True to return the held-out modules instead of the others.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(p for p in root.rglob("*.py") if not _EXCLUDED & set(p.relative_to(root).parts))
    return [p for p in paths if (zlib.crc32(p.relative_to(root).as_posix().encode()) % 20 == 0) == held_out]


def read_texts(paths: list[Path]) -> list[str]:
    """The contents of files. Bytes that are not UTF-8 are dropped.

    Raises RequestError for a file that cannot be read.
    """
    return [read_text(path, f"--data {path}", errors="ignore", mend="name text files") for path in paths]


_TOGETHER = 1000
"""The number of documents that are encoded together.

Their offsets take much more memory than their tokens.
"""


class Stream(NamedTuple):
    """The tokens of a source.

    Attributes:
      tokens: int32 [T].
      learnt: bool [T], the tokens that a drafter learns to predict.
    """

    tokens: np.ndarray
    learnt: np.ndarray

    def split(self) -> tuple["Stream", "Stream"]:
        """The stream without its last twentieth, and this twentieth."""
        at = self.tokens.size - self.tokens.size // 20
        return Stream(self.tokens[:at], self.learnt[:at]), Stream(self.tokens[at:], self.learnt[at:])


def token_stream(documents: Sequence[Document], tokenizer, separator: int) -> Stream:
    """All documents in order, with the token ``separator`` before each of them.

    A token of a conversation is learnt if all its characters are in one span. Raises RequestError
    where there are spans and the tokenizer does not know the characters of its tokens.
    """
    parts = [_encode(documents[i : i + _TOGETHER], tokenizer, separator) for i in range(0, len(documents), _TOGETHER)]
    return Stream(*map(np.concatenate, zip(*parts)))


def _encode(documents: Sequence[Document], tokenizer, separator: int) -> Stream:
    spans = any(document.spans is not None for document in documents)
    texts = [document.text for document in documents]
    try:
        encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=spans)
    except NotImplementedError:
        raise RequestError("conversations need a fast tokenizer; save the model with its tokenizer.json") from None
    tokens = [np.asarray([separator, *ids], np.int32) for ids in encoded["input_ids"]]
    learnt = [np.ones(part.size, bool) for part in tokens]
    for i, document in enumerate(documents):
        if document.spans is not None:
            learnt[i][:] = [False, *_within(encoded["offset_mapping"][i], document.spans)]
    return Stream(np.concatenate(tokens), np.concatenate(learnt))


def _within(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Bool [tokens], True where all characters of a token are in one of the spans.

    Some tokenizers leave the space before a word out of its offsets. A token therefore begins no
    later than the token before it ends.
    """
    begins, ends = np.asarray(offsets, np.int64).reshape(-1, 2).T
    begins = np.minimum(begins, np.concatenate([[0], np.maximum.accumulate(ends)[:-1]]))
    return np.any([(begins >= begin) & (ends <= end) for begin, end in spans], 0)


def read_streams(paths: Sequence[str | Path | Source], tokenizer, separator: int) -> tuple["Mixture", "Mixture"]:
    """The tokens to train on, and the held-out tokens.

    Without sources they are the standard library and its held-out modules. Of the sources in
    ``paths``, the last twentieth of the tokens is held out. Sources without weights are one stream.
    Raises RequestError where there is no text.
    """
    if not paths:
        library, held_out = (
            token_stream([Document(text) for text in read_texts(standard_library(held_out=h))], tokenizer, separator)
            for h in (False, True)
        )
        return Mixture.join([library]), Mixture.join([held_out])
    sources = make_sources(paths)
    weights = [source.weight for source in sources if source.weight is not None]
    groups = [[source] for source in sources] if weights else [sources]
    streams = []
    for group in groups:
        documents = [document for source in group for document in read_documents(source, tokenizer)]
        if not documents:
            raise RequestError(
                f"--data {', '.join(source.path for source in group)}: no text there; name text files, or files that "
                "end in .jsonl, .json, .csv or .parquet"
            )
        streams.append(token_stream(documents, tokenizer, separator).split())
    train, held_out = zip(*streams)
    return Mixture.join(train, weights or [1.0]), Mixture.join(held_out, weights or [1.0])


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Streams, and their shares of the windows of a training.

    Attributes:
      streams: K streams.
      shares: float64 [K], positive numbers of sum one.
    """

    streams: tuple[Stream, ...]
    shares: np.ndarray

    @classmethod
    def join(cls, streams: Sequence[Stream], weights: Sequence[float] = (1.0,)) -> "Mixture":
        """The mixture of streams whose shares are proportional to ``weights``."""
        return cls(tuple(streams), np.asarray(weights, np.float64) / np.sum(weights))

    @property
    def learnt(self) -> np.ndarray:
        """The learnt tokens of all streams, int32 [tokens]."""
        return np.concatenate([stream.tokens[stream.learnt] for stream in self.streams])

    def summarize(self) -> str:
        """The sizes, checksums and shares of the streams, to compare two trainings."""
        parts = []
        for stream, share in zip(self.streams, self.shares):
            checksum = zlib.crc32(stream.tokens.data)
            if not stream.learnt.all():
                checksum = zlib.crc32(stream.learnt.data, checksum)
            part = f"{stream.tokens.size} tokens of checksum {checksum}"
            parts.append(part if share == 1 else f"{share:.6g} of {part}")
        return ", ".join(parts)

    def check_windows(self, length: int) -> None:
        """Raises RequestError for a stream of less than two windows, which random offsets need."""
        size = min(stream.tokens.size for stream in self.streams)
        if size < 2 * length + 1:
            data = "the data has" if len(self.streams) == 1 else "the smallest source has"
            raise RequestError(
                f"{data} {size} tokens and windows of {length} need {2 * length + 1}; "
                "give more text or a smaller length"
            )

    def choose(self, seed: int, first: int, count: int, length: int) -> list[tuple[int, int]]:
        """The stream and the first position of the windows ``first`` to ``first + count - 1``.

        The shares hold for the windows so far at any time, see ``take_turns``. Every epoch of a
        stream covers it once: in a new random order and from a new random offset.
        """
        windows = []
        for k, place in take_turns(self.shares, first, count):
            rows = (self.streams[k].tokens.size - 1) // length - 1
            windows.append((k, int(_shuffle(seed, place // rows, rows, length)[place % rows])))
        return windows

    def cut(self, seed: int, first: int, count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Windows int32 [count, length + 1], and bool [count, length + 2] of the learnt tokens.

        The last value of a row belongs to the token after the window. See ``choose``.
        """
        starts = self.choose(seed, first, count, length)
        windows = [self.streams[k].tokens[s : s + length + 1] for k, s in starts]
        return np.stack(windows), np.stack([self.streams[k].learnt[s : s + length + 2] for k, s in starts])

    def describe(self, seed: int, first: int, count: int, length: int) -> str:
        """Names the windows that ``cut`` cuts, for error messages."""
        starts = self.choose(seed, first, count, length)
        return ", ".join(f"{s}" if len(self.streams) == 1 else f"{s} of source {k + 1}" for k, s in starts)

    def cut_prompts(self, count: int, length: int) -> list[list[int]]:
        """``count`` pieces of ``length`` tokens, spread evenly over the streams, by their shares.

        Raises RequestError for a stream that is shorter than one piece.
        """
        turns = [k for k, _ in take_turns(self.shares, 0, count)]
        return [
            piece
            for k, stream in enumerate(self.streams)
            for piece in _cut_pieces(stream.tokens, turns.count(k), length)
        ]


def take_turns(shares: np.ndarray, first: int, count: int) -> list[tuple[int, int]]:
    """The streams that have the turns ``first`` to ``first + count - 1``, each with its own count.

    The n-th turn of stream k comes at the time (n + 1/2) / ``shares[k]``. So each of the K streams
    has its share of the turns before any turn, up to a difference of (K + 1) / 2. Turns long before
    ``first`` are not computed.
    """
    skipped = np.maximum(np.ceil(shares * (first - shares.size) - 0.5), 0).astype(int)
    ends = np.ceil(shares * (first + count + shares.size) + 0.5).astype(int)
    times = [((n + 0.5) / shares[k], k, n) for k in range(shares.size) for n in range(skipped[k], ends[k])]
    begin = first - skipped.sum()
    return [(k, n) for _, k, n in sorted(times)[begin : begin + count]]


@functools.lru_cache(8)
def _shuffle(seed: int, epoch: int, rows: int, length: int) -> np.ndarray:
    """The positions of the windows of an epoch, in order."""
    rng = np.random.default_rng((seed, epoch))
    return rng.integers(length) + length * rng.permutation(rows)


def choose_rows(rows: int, seed: int, step: int, batch: int) -> np.ndarray:
    """The rows of a step: ``batch`` numbers below ``rows``.

    Every epoch covers the rows once, in a new random order.
    """
    epochs, places = np.divmod(np.arange(step * batch, (step + 1) * batch), rows)
    order = {e: np.random.default_rng((seed, e)).permutation(rows) for e in np.unique(epochs).tolist()}
    return np.array([order[e][place] for e, place in zip(epochs.tolist(), places)])


def _cut_pieces(tokens: np.ndarray, count: int, length: int) -> list[list[int]]:
    if count and tokens.size < length:
        raise RequestError(
            f"{tokens.size} tokens are held out and a prompt needs {length}; "
            "give more text, or prompts = 0 in the recipe"
        )
    return [tokens[s : s + length].tolist() for s in np.linspace(0, tokens.size - length, count).astype(int)]
