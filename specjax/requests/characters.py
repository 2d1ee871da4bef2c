"""Sets of characters, and how UTF-8 spells them."""

import re
from functools import lru_cache

import numpy as np

CODES = 0x110000
SURROGATES = (0xD800, 0xDFFF)
"""Code points that no text has: UTF-8 does not spell them."""

Ranges = tuple[tuple[int, int], ...]
"""A set of characters: ranges of code points, both ends included, in order."""


@lru_cache(1)
def _every_character() -> str:
    return "".join(map(chr, range(CODES)))


@lru_cache(1024)
def find_members(text: str, flags: int) -> Ranges:
    """The characters that ``text``, a regular expression of one character, matches in ``re``."""
    runs = re.finditer(f"(?:{text})+", _every_character(), flags)
    return tuple((run.start(), run.end() - 1) for run in runs)


def complement(ranges: Ranges) -> Ranges:
    """All characters outside ``ranges``."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), CODES - 1]
    return tuple((low, high) for low, high in zip(starts, ends) if low <= high)


def intersect(one: Ranges, other: Ranges) -> Ranges:
    """The characters of both."""
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple(sorted((low, high) for low, high in pairs if low <= high))


def partition(sets: list[Ranges]) -> tuple[np.ndarray, np.ndarray]:
    """Groups characters that belong to the same of ``sets``.

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
    """UTF-8 of characters in groups, as tables of what each byte leads to.

    ``lead`` [256] says what the first byte leads to, and each row of ``levels[k]`` [., 64] what the
    continuation byte leads to when k + 1 bytes are still missing. A row of ``levels[0]`` leads to
    groups of characters, a row of ``levels[k]`` to rows of ``levels[k - 1]``; -1 where no character
    goes on so. ``lead`` leads to a group (bytes below 128) or to a row of ``levels[missing - 1]``.
    ``long`` lists the groups of characters of more than one byte.
    """

    def __init__(self, label: np.ndarray):
        last, block = distinct_rows(label.reshape(-1, 64))  # 64 code points share all bytes but the last
        middle, group = distinct_rows(np.where(np.arange(len(block)) < 0x800 >> 6, -1, block).reshape(-1, 64))
        four = np.full(5 * 64, -1)
        four[0x10000 >> 12 : len(group)] = group[0x10000 >> 12 :]
        first, plane = distinct_rows(four.reshape(-1, 64))
        self.levels = last, middle, first
        self.lead, self.missing = np.full(256, -1), np.zeros(256, np.int64)
        self.lead[:128] = label[:128]
        self.lead[0xC2:0xE0], self.missing[0xC2:0xE0] = block[2:32], 1
        self.lead[0xE0:0xF0], self.missing[0xE0:0xF0] = group[:16], 2
        self.lead[0xF0:0xF5], self.missing[0xF0:0xF5] = plane, 3
        self.long = np.setdiff1d(label[128:], [-1])


def distinct_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows of a table, and the number of each row among them.

    Random sums modulo 2^64 tell rows apart.
    """
    weights = np.random.default_rng(0).integers(1, 2**63, table.shape[1], np.uint64)
    _, first, number = np.unique((table + 1).astype(np.uint64) @ weights, return_index=True, return_inverse=True)
    return table[first], number.reshape(-1)
