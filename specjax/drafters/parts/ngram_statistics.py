"""N-gram statistics of a corpus: the most frequent next token after each context.

A file holds them, and the device looks them up:

    specjax ngrams --data *.txt --output text.npz
    specjax generate --method ngram --ngram-statistics text.npz --prompt ...
"""

import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from ...core.read_files import LARGEST_TEXT, read_bytes
from ...errors import RequestError

ORDERS = (1, 2)
"""The numbers of tokens in a context. With the next token these are bigrams and trigrams."""


class Statistics(struct.PyTreeNode):
    """For each context length a table of R contexts and their most frequent next tokens.

    Attributes:
      contexts: for each context length m in ``ORDERS`` int32 [R, m], in lexicographic order.
      successors: for each context length int32 [R].
    """

    contexts: tuple
    successors: tuple

    def after(self, newest: jax.Array) -> jax.Array:
        """Int32, the most frequent token after the longest known context; -1 if none is known.

        The contexts are the last tokens of ``newest``, int32 [max(ORDERS)].
        """
        successor = jnp.int32(-1)
        # The lengths rise, so a longer known context replaces a shorter one.
        for m, contexts, successors in zip(ORDERS, self.contexts, self.successors):
            if not successors.size:
                continue
            row = _find(contexts, newest[-m:])
            successor = jnp.where(row < 0, successor, successors[row])
        return successor

    def chain(self, newest: jax.Array, count: int) -> jax.Array:
        """Int32 [count] tokens, one after another; -1 from the first unknown context on."""

        def extend(newest, _):
            token = jnp.where(newest[-1] < 0, -1, self.after(newest))
            return jnp.append(newest[1:], token), token

        return lax.scan(extend, newest, None, count)[1]


def count_ngrams(texts: Iterable[Sequence[int]], vocab_size: int, most: int) -> Statistics:
    """Tables of the ``most`` contexts of each length whose next token is most frequent.

    If contexts are equally frequent, the lowest token ids win. Raises RequestError if no text has
    two tokens.
    """
    arrays = [np.asarray(text, np.int64) for text in texts]
    tables = [_table(arrays, m, vocab_size, most) for m in ORDERS]
    if not tables[0][1].size:
        raise RequestError("the data has no text of two tokens; name files with more text")
    return Statistics(*zip(*tables))


def save(statistics: Statistics, vocab_size: int, path: str | Path) -> None:
    """Writes a file for ``load``. Raises RequestError if it cannot be written."""
    tables = zip(ORDERS, statistics.contexts, statistics.successors)
    arrays = {f"{name}{m}": leaf for m, *leaves in tables for name, leaf in zip(("contexts", "successors"), leaves)}
    try:
        with open(path, "wb") as file:
            np.savez_compressed(file, vocab_size=vocab_size, **arrays)
    except OSError as error:
        raise RequestError(f"{path}: cannot be written ({error.strerror}); name another file") from None


def load(path: str | Path, vocab_size: int) -> Statistics:
    """The statistics in a file.

    Raises the errors of ``read``, and RequestError if the file was made for another vocabulary.
    """
    statistics, size = read(path)
    if size != vocab_size:
        raise RequestError(
            f"n-gram statistics {path} are of {size} tokens and the target has {vocab_size}; "
            "count with the target's tokenizer"
        )
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.int32), statistics)


def read(path: str | Path) -> tuple[Statistics, int]:
    """The statistics in a file, as arrays of numpy, and the size of their vocabulary.

    Raises RequestError if the file cannot be read, is not of this kind, or is damaged.
    """
    mend = "write them with specjax ngrams"
    content = io.BytesIO(read_bytes(path, f"n-gram statistics {path}", mend=mend))
    try:
        with np.load(content) as file:
            if sum(part.file_size for part in file.zip.infolist()) > LARGEST_TEXT:
                raise ValueError("above the limit")
            size = int(file["vocab_size"])
            tables = [tuple(file[f"{name}{m}"] for m in ORDERS) for name in ("contexts", "successors")]
    except Exception:  # numpy raises many kinds of errors for files of other programs
        raise RequestError(f"{path} holds no n-gram statistics; {mend}") from None
    if fault := next(filter(None, map(_find_fault, ORDERS, *tables, [size] * len(ORDERS))), ""):
        raise RequestError(f"n-gram statistics {path}: damaged, {fault}; {mend}")
    return Statistics(*tables), size


def _find_fault(m: int, contexts: np.ndarray, successors: np.ndarray, vocab_size: int) -> str:
    """The first fault of the table of contexts of ``m`` tokens, or ""."""
    if any(leaf.dtype.kind not in "iu" for leaf in (contexts, successors)):
        return f"contexts{m} and successors{m} are not of whole numbers"
    if contexts.shape != (successors.size, m) or successors.ndim != 1:
        return f"contexts{m} and successors{m} have the shapes {contexts.shape} and {successors.shape}"
    if any(leaf.size and not 0 <= leaf.min() <= leaf.max() < vocab_size for leaf in (contexts, successors)):
        return f"contexts{m} or successors{m} has a token outside the vocabulary of {vocab_size}"
    order = np.lexsort(contexts.T[::-1])
    if not np.array_equal(order, np.arange(order.size)) or np.unique(contexts, axis=0).shape != contexts.shape:
        return f"contexts{m} is not in lexicographic order, or has a context twice"
    return ""


def _table(texts: list[np.ndarray], m: int, vocab_size: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Contexts int32 [R, m] and successors int32 [R]."""
    # An n-gram becomes one number. The numbers have the order of the tokens.
    base = vocab_size ** np.arange(m, -1, -1, dtype=np.int64)
    windows = [np.lib.stride_tricks.sliding_window_view(text, m + 1) @ base for text in texts if text.size > m]
    grams, counts = np.unique(np.concatenate([np.zeros(0, np.int64), *windows]), return_counts=True)
    context = grams // vocab_size
    best = np.lexsort((grams, -counts, context))  # sorted by context, the most frequent n-gram first
    best = best[np.unique(context[best], return_index=True)[1]]
    best = np.sort(best[np.argsort(-counts[best], kind="stable")[:most]])
    digits = grams[best, None] // base % vocab_size
    return digits[:, :m].astype(np.int32), digits[:, m].astype(np.int32)


def _find(contexts: jax.Array, wanted: jax.Array) -> jax.Array:
    """Int32, the row of ``contexts`` [R, m] that equals ``wanted`` [m], or -1, by binary search.

    R is at least 1.
    """
    R, m = contexts.shape

    def before(row):
        less = jnp.bool(False)
        for i in reversed(range(m)):
            less = (row[i] < wanted[i]) | ((row[i] == wanted[i]) & less)
        return less

    def halve(_, bounds):  # the first row that is not before ``wanted`` lies from low to high
        low, high = bounds
        middle = (low + high) // 2
        further = before(contexts[jnp.minimum(middle, R - 1)]) & (middle < high)
        return jnp.where(further, middle + 1, low), jnp.where(further, high, middle)

    row, _ = lax.fori_loop(0, math.ceil(math.log2(R + 1)) + 1, halve, (jnp.int32(0), jnp.int32(R)))
    row = jnp.minimum(row, R - 1)
    return jnp.where((contexts[row] == wanted).all(), row, -1)
