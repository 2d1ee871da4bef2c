"""Sets of characters and their spellings in UTF-8."""

import re
from functools import lru_cache

import numpy as np

CODES = 0x110000
SURROGATES = (0xD800, 0xDFFF)
"""The code points of surrogates. UTF-8 does not spell them, so no text has them."""

Ranges = tuple[tuple[int, int], ...]
"""A set of characters: ranges of code points in ascending order, both ends included."""


@lru_cache(1)
def _every_character() -> str:
    return "".join(map(chr, range(CODES)))


@lru_cache(1024)
def find_members(text: str, flags: int) -> Ranges:
    """The characters that the regular expression ``text``, for one character, matches in ``re``."""
    runs = re.finditer(f"(?:{text})+", _every_character(), flags)
    return tuple((run.start(), run.end() - 1) for run in runs)


def complement(ranges: Ranges) -> Ranges:
    """All characters outside ``ranges``."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), CODES - 1]
    return tuple((low, high) for low, high in zip(starts, ends) if low <= high)


def outside_surrogates(ranges: Ranges) -> Ranges:
    """The characters of a set that UTF-8 can spell."""
    pairs = ((max(a, c), min(b, d)) for a, b in ranges for c, d in complement((SURROGATES,)))
    return tuple(sorted((low, high) for low, high in pairs if low <= high))


def partition(sets: list[Ranges]) -> tuple[np.ndarray, np.ndarray]:
    """Groups characters: two characters of a group belong to the same of the ``sets``.

    Returns:
      label: int32 [CODES], the group of each code point; -1 for surrogates.
      holds: bool [K, M], whether set k holds group m.
    """
    ends = [bound for ranges in sets for low, high in ranges for bound in (low, high + 1)]
    starts = np.unique([0, *SURROGATES, SURROGATES[1] + 1, *(end for end in ends if end < CODES)])
    inside = np.zeros((len(sets), len(starts)), np.int8)
    for row, ranges in zip(inside, sets):
        for low, high in ranges:
            row[np.searchsorted(starts, low) : np.searchsorted(starts, high + 1)] = 1
    holds, group = np.unique(inside, axis=1, return_inverse=True)
    label = np.repeat(group.reshape(-1), np.diff(np.append(starts, CODES))).astype(np.int32)
    label[SURROGATES[0] : SURROGATES[1] + 1] = -1
    return label, holds.astype(bool)


class Spelling:
    """The UTF-8 of grouped characters, as tables that are read byte by byte.

    An entry of -1 means that no character continues with this byte.

    Attributes:
      lead: [256], the entry of the first byte. Below 128 it is a group of characters. From 128 on
        it is a row of ``levels[missing - 1]``.
      missing: [256], the number of bytes that follow the first byte.
      levels: three tables [rows, 64]. A row of ``levels[k]`` has an entry for each continuation
        byte, when k + 1 bytes are missing. An entry of ``levels[0]`` is a group of characters. An
        entry of ``levels[k]`` is a row of ``levels[k - 1]``.
      long: the groups that hold characters of more than one byte.
    """

    def __init__(self, label: np.ndarray):
        last, block = distinct_rows(label.reshape(-1, 64))  # 64 code points share all bytes but the last
        middle, group = distinct_rows(np.where(np.arange(len(block)) < 0x800 >> 6, -1, block).reshape(-1, 64))
        four = np.full(5 * 64, -1)
        four[0x10000 >> 12 : len(group)] = group[0x10000 >> 12 :]
        first, plane = distinct_rows(four.reshape(-1, 64))
        self.levels = last, middle, first
        self.lead = np.full(256, -1)
        self.missing = np.zeros(256, np.int64)
        self.lead[:128] = label[:128]
        self.lead[0xC2:0xE0] = block[2:32]
        self.missing[0xC2:0xE0] = 1
        self.lead[0xE0:0xF0] = group[:16]
        self.missing[0xE0:0xF0] = 2
        self.lead[0xF0:0xF5] = plane
        self.missing[0xF0:0xF5] = 3
        self.long = np.setdiff1d(label[128:], [-1])


def distinct_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows of a table, and for each row its number among them.

    Weighted sums modulo 2^64 with random weights tell rows apart.
    """
    weights = np.random.default_rng(0).integers(1, 2**63, table.shape[1], np.uint64)
    _, first, number = np.unique((table + 1).astype(np.uint64) @ weights, return_index=True, return_inverse=True)
    return table[first], number.reshape(-1)
