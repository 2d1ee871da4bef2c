"""Texts of earlier requests in a buffer of fixed size.

Its suffix array finds any run of tokens by binary search.
"""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

_APART = -1  # stands between texts and is no token: no run crosses from one text into another
_SORTED_BY = 64  # tokens by which suffixes are sorted; longer equal runs are in no order


@struct.dataclass
class Store:
    """Texts, the newest last, and the order of their suffixes.

    Attributes:
      tokens: int32 [S]. Free places and the last place hold ``_APART``.
      order: int32 [S], places of ``tokens``, sorted by the suffix that begins there.
    """

    tokens: jax.Array
    order: jax.Array


def empty(size: int) -> Store:
    """A store of ``size`` tokens without texts."""
    return Store(np.full(size, _APART, np.int32), np.arange(size, dtype=np.int32))


def append(store: Store, texts: Iterable[Sequence[int]]) -> Store:
    """The store with more texts.

    The oldest tokens are dropped, so that the size stays. On the host, between calls.
    """
    added = [np.append(np.asarray(text, np.int32), np.int32(_APART)) for text in texts]
    tokens = np.concatenate([store.tokens, *added])[-store.tokens.size :]
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    known = 1  # suffixes are ranked by so many tokens
    while known < _SORTED_BY:
        later = np.append(rank[known:], np.zeros(min(known, rank.size), np.int64))
        rank = np.unique(rank * tokens.size + later, return_inverse=True)[1]
        known *= 2
    return Store(tokens, np.argsort(rank, kind="stable").astype(np.int32))


def find(store: Store, runs: jax.Array, lengths: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The range of ``order`` whose suffixes begin with each run: int32 [L] each, from and to.

    Args:
      runs: int32 [L, M], of which the first ``lengths`` [L] count.
    """
    size, place = store.tokens.size, jnp.arange(runs.shape[1])
    counted = place < lengths[:, None]

    def compare(at):  # -1, 0 or 1 [L]: whether the suffixes at [L] come before the runs, agree, or come after
        found = store.tokens[jnp.minimum(at[:, None] + place, size - 1)]
        sign = jnp.where(counted, jnp.sign(found - runs), 0)
        first = jnp.argmax(sign != 0, 1)
        return jnp.take_along_axis(sign, first[:, None], 1)[:, 0]

    def halve(_, bounds):
        low, high = bounds  # [2, L]: bounds of the first suffix not below the run, and of the first above it
        middle = (low + high) // 2
        below = jnp.stack([compare(store.order[middle[0]]) < 0, compare(store.order[middle[1]]) <= 0])
        below &= low < high
        return jnp.where(below, middle + 1, low), jnp.where(below, high, middle)

    start = jnp.zeros((2, runs.shape[0]), jnp.int32), jnp.full((2, runs.shape[0]), size, jnp.int32)
    low, _ = lax.fori_loop(0, int(size).bit_length(), halve, start)
    return low[0], low[1]
