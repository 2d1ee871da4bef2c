"""N-gram statistics of a corpus: the most frequent next tokens, in a file, and looked up on the
device.

specjax ngrams --data *.txt --output text.npz
specjax generate --method ngram --ngram-statistics text.npz --prompt ...
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from ...errors import RequestError

ORDERS = (1, 2)
"""Tokens of a context. With the next token these are bigrams and trigrams."""


@struct.dataclass
class Statistics:
    """For each length of context a table of R contexts and their most frequent next tokens.

    Attributes:
      contexts: for each of ``ORDERS``, here m, int32 [R, m] in lexicographic order.
      successors: for each int32 [R].
    """

    contexts: tuple
    successors: tuple

    def after(self, newest: jax.Array) -> jax.Array:
        """Int32, the most frequent token after the longest known context that ends ``newest``,
        int32 [max(ORDERS)]; else -1.
        """
        found = jnp.int32(-1)
        for m, contexts, successors in zip(
            ORDERS, self.contexts, self.successors
        ):  # a longer known context replaces a shorter one
            row = _find(contexts, newest[-m:])
            found = jnp.where(row < 0, found, successors[row])
        return found

    def chain(self, newest: jax.Array, count: int) -> jax.Array:
        """Int32 [count] tokens, one after another; -1 from the first unknown context on."""

        def extend(newest, _):
            token = jnp.where(newest[-1] < 0, -1, self.after(newest))
            return jnp.append(newest[1:], token), token

        return lax.scan(extend, newest, None, count)[1]


def count_ngrams(texts: Iterable[Sequence[int]], vocab_size: int, most: int) -> Statistics:
    """Tables of the ``most`` contexts of each length whose next token is most frequent; of equals
    the lowest tokens.

    Raises RequestError where no text has two tokens.
    """
    texts = [np.asarray(text, np.int64) for text in texts]
    tables = [_table(texts, m, vocab_size, most) for m in ORDERS]
    if not tables[0][1].size:
        raise RequestError("the data has no text of two tokens; name files with more text")
    return Statistics(*zip(*tables))


def save(statistics: Statistics, vocab_size: int, path: str | Path) -> None:
    """Writes a file for ``load``. Raises RequestError where it cannot be written."""
    tables = zip(ORDERS, statistics.contexts, statistics.successors)
    arrays = {f"{name}{m}": leaf for m, *leaves in tables for name, leaf in zip(("contexts", "successors"), leaves)}
    try:
        with open(path, "wb") as file:
            np.savez_compressed(file, vocab_size=vocab_size, **arrays)
    except OSError as error:
        raise RequestError(f"{path}: cannot be written ({error.strerror}); name another file") from None


def load(path: str | Path, vocab_size: int) -> Statistics:
    """The statistics in a file.

    Raises RequestError for a file that is unreadable, foreign, or of another vocabulary.
    """
    try:
        with np.load(path) as file:
            size = int(file["vocab_size"])
            tables = [tuple(file[f"{name}{m}"] for m in ORDERS) for name in ("contexts", "successors")]
    except OSError as error:
        raise RequestError(
            f"n-gram statistics {path}: cannot be read ({error.strerror or 'damaged'}); write them with specjax ngrams"
        ) from None
    except Exception:  # numpy raises many kinds for files that are not its own
        raise RequestError(f"{path} holds no n-gram statistics; write them with specjax ngrams") from None
    if size != vocab_size:
        raise RequestError(
            f"n-gram statistics {path} are of {size} tokens and the target has {vocab_size}; count with the target's tokenizer"
        )
    return jax.tree.map(jnp.asarray, Statistics(*tables))


def _table(texts: list[np.ndarray], m: int, vocab_size: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Contexts int32 [R, m] and successors int32 [R]."""
    base = vocab_size ** np.arange(m, -1, -1, dtype=np.int64)  # an n-gram as one number, which orders as the tokens do
    windows = [np.lib.stride_tricks.sliding_window_view(text, m + 1) @ base for text in texts if text.size > m]
    grams, counts = np.unique(np.concatenate([np.zeros(0, np.int64), *windows]), return_counts=True)
    context = grams // vocab_size
    best = np.lexsort((grams, -counts, context))  # by context, and of each the most frequent first
    best = best[np.unique(context[best], return_index=True)[1]]
    best = np.sort(best[np.argsort(-counts[best], kind="stable")[:most]])
    digits = grams[best, None] // base % vocab_size
    return digits[:, :m].astype(np.int32), digits[:, m].astype(np.int32)


def _find(contexts: jax.Array, wanted: jax.Array) -> jax.Array:
    """Int32, the row of ``contexts`` [R, m] that equals ``wanted`` [m], or -1: binary search."""
    R, m = contexts.shape
    if R == 0:
        return jnp.int32(-1)

    def before(row):
        less = jnp.bool(False)
        for i in reversed(range(m)):
            less = (row[i] < wanted[i]) | ((row[i] == wanted[i]) & less)
        return less

    def halve(_, bounds):  # the first row that is not before ``wanted`` lies in low .. high
        low, high = bounds
        middle = (low + high) // 2
        further = before(contexts[jnp.minimum(middle, R - 1)]) & (middle < high)
        return jnp.where(further, middle + 1, low), jnp.where(further, high, middle)

    row, _ = lax.fori_loop(0, math.ceil(math.log2(R + 1)) + 1, halve, (jnp.int32(0), jnp.int32(R)))
    row = jnp.minimum(row, R - 1)
    return jnp.where((contexts[row] == wanted).all(), row, -1)
