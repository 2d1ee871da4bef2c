"""Texts of earlier requests in a buffer of fixed size.

Binary search in the buffer's suffix array finds any run of tokens.
"""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

_APART = -1
"""Stands between texts. It is no token, so no run crosses from one text into another."""

_SORTED_BY = 64
"""The number of tokens by which suffixes are sorted. Suffixes that begin alike are in any order."""


class Store(struct.PyTreeNode):
    """Texts, the newest last, and their suffix array.

    Attributes:
      tokens: int32 [S]. Free places and the last place hold ``_APART``.
      order: int32 [S], the places of ``tokens``, sorted by the suffix that begins at each place.
    """

    tokens: jax.Array | np.ndarray
    order: jax.Array | np.ndarray


def empty(size: int) -> Store:
    """A store with room for ``size`` tokens, without texts."""
    return Store(np.full(size, _APART, np.int32), np.arange(size, dtype=np.int32))


def append(store: Store, texts: Iterable[Sequence[int]]) -> Store:
    """The store with more texts. Runs on the host, between calls.

    The size stays the same: the oldest tokens are dropped.
    """
    added = [np.append(np.asarray(text, np.int32), np.int32(_APART)) for text in texts]
    tokens = np.concatenate([store.tokens, *added])[-store.tokens.size :]
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    known = 1  # the number of tokens by which suffixes are ranked so far
    while known < _SORTED_BY:
        later = np.append(rank[known:], np.zeros(min(known, rank.size), np.int64))
        rank = np.unique(rank * tokens.size + later, return_inverse=True)[1]
        known *= 2
    return Store(tokens, np.argsort(rank, kind="stable").astype(np.int32))


def find(store: Store, runs: jax.Array, lengths: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For each run the range of ``order`` whose suffixes begin with it: from and to, int32 [L].

    Args:
      runs: int32 [L, M], padded runs of tokens.
      lengths: int32 [L], the number of tokens in each run.
    """
    size = store.tokens.size
    place = jnp.arange(runs.shape[1])
    counted = place < lengths[:, None]

    def compare(at):  # [L]: -1, 0 or 1 if the suffix at each place comes before the run, begins with it, or comes after
        window = store.tokens[jnp.minimum(at[:, None] + place, size - 1)]
        sign = jnp.where(counted, jnp.sign(window - runs), 0)
        first = jnp.argmax(sign != 0, 1)
        return jnp.take_along_axis(sign, first[:, None], 1)[:, 0]

    def halve(_, bounds):
        low, high = bounds  # [2, L]: bounds of the first suffix not before the run, and of the first after it
        middle = (low + high) // 2
        below = jnp.stack([compare(store.order[middle[0]]) < 0, compare(store.order[middle[1]]) <= 0])
        below &= low < high
        return jnp.where(below, middle + 1, low), jnp.where(below, high, middle)

    start = jnp.zeros((2, runs.shape[0]), jnp.int32), jnp.full((2, runs.shape[0]), size, jnp.int32)
    low, _ = lax.fori_loop(0, int(size).bit_length(), halve, start)
    return low[0], low[1]
