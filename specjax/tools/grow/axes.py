"""The axes of a larger parameter: for each new entry the old entry that it takes.

The residual stream keeps its E old entries in front, and its new entries stay zero. Query and key
dimensions move to the rotary frequencies that mean the same. Everything else keeps its place in its
block: a head in its group, a value in its head.
"""

from typing import NamedTuple

import numpy as np

from ...models.config import ModelConfig
from ...models.feed_forwards import GatedMlpConfig
from .shape import head_copies

RANDOM = -1
"""The source of new entries that are random numbers."""

ZERO = -2
"""The source of new entries that are zero."""


class Axis(NamedTuple):
    """An axis of a grown parameter.

    Attributes:
      source: int [new size], for each entry the number of an old entry, or ``RANDOM``, or ``ZERO``.
      scale: the factor on the old entries, for all entries or float [new size].
    """

    source: np.ndarray
    scale: np.ndarray | float = 1.0


def widen(old: int, new: int, rest: int) -> np.ndarray:
    """The source of an axis that keeps its ``old`` entries in front."""
    return np.r_[np.arange(old), np.full(new - old, rest)]


def shift(source: np.ndarray, by: int) -> np.ndarray:
    """The source with the numbers of old entries moved by ``by``."""
    return np.where(source >= 0, source + by, source)


def join(parts: list[tuple[np.ndarray, int]]) -> np.ndarray:
    """Axes side by side, each a source with the number of its old entries."""
    starts = np.cumsum([0, *(size for _, size in parts)])
    return np.concatenate([shift(source, start) for (source, _), start in zip(parts, starts)])


def rotary(old: ModelConfig, new: ModelConfig) -> np.ndarray:
    """The dimensions of a query or a key.

    Frequency i of D / 2 is theta^(-2i / D). It is frequency i * D' / D of the D' / 2 new ones. Two
    dimensions i and i + D / 2 share a frequency.
    """
    source = np.full((2, new.head_dim // 2), ZERO)
    source[:, :: new.head_dim // old.head_dim] = np.arange(old.head_dim).reshape(2, -1)
    return source.reshape(-1)


def queries_keys_values(old: ModelConfig, new: ModelConfig) -> Axis:
    """The rows of ``Attention.qkv``: for each key head its G queries, its key, its value.

    If fewer query heads share a key head than before, several new key heads hold the same old one.
    Scores are divided by sqrt(D), so queries are multiplied by sqrt(D' / D).

    Norms of queries and keys undo any factor, but their eps is that of the stream's norms. The
    factor sqrt(E D' / (E' D)) makes this eps mean the same.
    """
    source = np.full((new.num_kv_heads, _group(new) + 2, new.head_dim), RANDOM)
    place = rotary(old, new)
    value = widen(old.head_dim, new.head_dim, RANDOM)
    for k, g, n, m in _query_heads(old, new):
        first = k * (_group(old) + 2)
        source[n, m] = shift(place, (first + g) * old.head_dim)
        source[n, -2] = shift(place, (first + _group(old)) * old.head_dim)
        source[n, -1] = shift(value, (first + _group(old) + 1) * old.head_dim)
    scale = np.ones(source.shape)
    larger = new.head_dim / old.head_dim
    if old.qk_norm:
        scale[:, :-1] = (larger * old.hidden_size / new.hidden_size) ** 0.5
    else:
        scale[:, :-2] = larger**0.5
    return Axis(source.reshape(-1), scale.reshape(-1))


def attended(old: ModelConfig, new: ModelConfig) -> np.ndarray:
    """The columns of ``Attention.out``: the values that the query heads attend to."""
    source = np.full((new.num_kv_heads, _group(new), new.head_dim), ZERO)
    for k, g, n, m in _query_heads(old, new):
        first = (k * _group(old) + g) * old.head_dim
        source[n, m] = shift(widen(old.head_dim, new.head_dim, ZERO), first)
    return source.reshape(-1)


def gate_up(old: ModelConfig, new: ModelConfig) -> np.ndarray:
    """The rows of ``GatedMlp.gate_up``: the gates and the up projections of each part."""
    source = np.full(2 * new.intermediate_size, RANDOM)
    source[gate_up_rows(new)[:, : old.intermediate_size]] = gate_up_rows(old)
    return source


def gate_up_rows(config: ModelConfig) -> np.ndarray:
    """The numbers [2, F] of the rows with gates and with up projections, unit by unit."""
    parts = GatedMlpConfig(config.intermediate_size).parts
    rows = np.arange(2 * config.intermediate_size).reshape(parts, 2, -1)
    return rows.swapaxes(0, 1).reshape(2, -1)


def _group(config: ModelConfig) -> int:
    return config.num_heads // config.num_kv_heads


def _query_heads(old: ModelConfig, new: ModelConfig):
    """For each old query head: its key head, its place there, its new key head, its new place."""
    copies = head_copies(old, new)
    size = _group(new)
    for k in range(old.num_kv_heads):
        for g in range(_group(old)):
            yield k, g, k * copies + g // size, g % size
