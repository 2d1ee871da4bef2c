"""Turns automata over bytes into tables over tokens. The device moves one token at a time."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from .characters import distinct_rows
from .limits import MOST_CELLS, check_limit

_SMALLEST = (1024, 256)
_STEP = 4
"""The smallest numbers of states and of classes, and the ratio of one size to the next.

Each size of a table needs a program of its own.
"""

_PIECE = 2**21
"""The number of pairs of a state and a token that ``_walk`` handles at once."""


@dataclasses.dataclass(frozen=True)
class TokenTable:
    """An automaton over tokens. It starts in state 0.

    Attributes:
      states: int [S], for each state the state of the automaton over bytes.
      next: int32 [S, C], the state after a token of each class; -1 where no match continues so.
      classes: int [V], the class of each token. Tokens of one class behave alike in every state.
    """

    states: np.ndarray
    next: np.ndarray
    classes: np.ndarray


def walk_tokens(moves: np.ndarray, texts: Sequence[bytes | None], name: str) -> TokenTable:
    """The table of the automaton over bytes ``moves`` [S, 256], for tokens with these ``texts``.

    A token without text is refused in every state. The table holds only states that whole tokens
    reach from state 0. Raises RequestError, which begins with ``name``, where a limit of ``limits``
    is exceeded.
    """
    kinds, kind_of = _group(moves, texts)
    lengths = np.array([len(kind) for kind in kinds], np.int64)
    letters = np.zeros((len(kinds), max(lengths, default=1)), np.uint8)
    for row, kind in zip(letters, kinds):
        row[: len(kind)] = np.frombuffer(kind, np.uint8)

    weights = np.random.default_rng(0).integers(1, 2**63, len(moves), np.uint64)
    sums = np.zeros(len(kinds), np.uint64)  # The sums of different classes are equal with probability 2^-64.
    order = [0]
    number = np.full(len(moves), -1)
    number[0] = 0
    done = 0
    while done < len(order):
        states = np.array(order[done : done + max(_PIECE // max(len(kinds), 1), 1)])
        steps = (done + len(states)) * len(kinds)
        check_limit(steps, "MOST_TOKEN_STEPS", f"{name}: its states times the vocabulary", "simplify it")
        after = _walk(moves, states, letters, lengths)
        sums += weights[states] @ (after + 1).astype(np.uint64)
        reached = np.zeros(len(moves) + 1, bool)  # The last place stands for -1.
        reached[after] = True
        new = np.flatnonzero(reached[:-1] & (number < 0))
        number[new] = np.arange(len(order), len(order) + len(new))
        order.extend(new.tolist())
        done += len(states)

    _, examples, classes = np.unique(sums, return_index=True, return_inverse=True)
    states = np.array(order)
    width = len(examples) + 1
    check_limit(len(states) * width, "MOST_CELLS", f"{name}: its states times classes of tokens", "simplify it")
    after = _walk(moves, states, letters[examples], lengths[examples])
    table = np.where(after < 0, -1, number[after]).astype(np.int32)
    table = np.column_stack([table, np.full(len(table), -1, np.int32)])  # The last class: tokens without text.
    return TokenTable(states, table, np.append(classes.reshape(-1), width - 1)[kind_of])


def _group(moves: np.ndarray, texts: Sequence[bytes | None]) -> tuple[list[bytes], np.ndarray]:
    """Groups tokens whose bytes behave alike in every state.

    Returns one text of each group, and the group of each token: -1 for tokens without text.
    """
    first, alike = distinct_rows(moves.T)
    example = np.array([np.flatnonzero(alike == column)[0] for column in range(len(first))], np.uint8)
    same = bytes(example[alike])
    kinds = {}
    kind_of = [kinds.setdefault(text.translate(same), len(kinds)) if text else -1 for text in texts]
    return list(kinds), np.array(kind_of)


def _walk(moves: np.ndarray, states: np.ndarray, letters: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Int32 [S, T]: the state after each token in each of ``states``; -1 without a match.

    ``letters`` [T, L] holds the bytes of the tokens, ``lengths`` [T] their number.
    """
    after = np.ascontiguousarray(moves[states][:, letters[:, 0]])
    flat = after.reshape(-1)
    jump = moves.reshape(-1)
    place = np.flatnonzero((after >= 0) & (lengths > 1))  # pairs of a state and a token with bytes left
    token = (place % len(lengths)).astype(np.int32)
    state = flat[place]
    for k in range(1, letters.shape[1]):
        state = jump[state * 256 + letters[token, k]]
        on = (state >= 0) & (lengths[token] > k + 1)
        flat[place[~on]] = state[~on]
        place = place[on]
        token = token[on]
        state = state[on]
    return after


def add_class(table: TokenTable, tokens: Sequence[int], after: np.ndarray) -> TokenTable:
    """The table with a new class for ``tokens``, which leads from each state to ``after`` [S]."""
    classes = table.classes.copy()
    classes[list(tokens)] = table.next.shape[1]
    return TokenTable(table.states, np.column_stack([table.next, after]).astype(np.int32), classes)


def stack_tables(tables: Sequence[TokenTable]) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Joins tables into one table, whose state 0 leads to itself for every token.

    Returns the table [S, C], the classes [V] and the first state of each of ``tables``. Sizes are
    rounded up, so that few programs are compiled. Raises RequestError for more tables or cells than
    ``limits`` allows.
    """
    check_limit(len(tables), "MOST_CONSTRAINTS", "the number of the batch's different constraints", "split the batch")
    columns, classes = join_classes(tables)
    ends = 1 + np.cumsum([len(table.next) for table in tables])
    shape = int(ends[-1]), columns.shape[1]
    rounded = [_round_up(n, least) for n, least in zip(shape, _SMALLEST)]
    if rounded[0] * rounded[1] > MOST_CELLS:  # Then the exact size may still fit.
        rounded = shape
    cells = rounded[0] * rounded[1]
    check_limit(cells, "MOST_CELLS", "the batch's constraints: states times classes of tokens", "split the batch")
    numbers = np.split(np.arange(1, ends[-1]), ends[:-1] - 1)
    return place_tables(tables, columns, numbers, tuple(rounded)), classes, [int(own[0]) for own in numbers]


def join_classes(tables: Sequence[TokenTable]) -> tuple[np.ndarray, np.ndarray]:
    """The classes of tokens that behave alike in all tables.

    Returns int [K, C], for each of K tables its class of each joint class, and int [V], the joint
    class of each token.
    """
    joint, classes = distinct_rows(np.stack([table.classes for table in tables], 1))
    return joint.T, classes


def place_tables(
    tables: Sequence[TokenTable], columns: np.ndarray, numbers: Sequence[np.ndarray], shape: tuple[int, ...]
) -> np.ndarray:
    """Int32 [S, C] = ``shape``, the tables in one table. A state without a number leads to state 0.

    Args:
      columns: the first result of ``join_classes``.
      numbers: for each table the numbers of its states in the result.
    """
    placed = np.zeros(shape, np.int32)
    for table, own, number in zip(tables, columns, numbers):
        wide = table.next[:, own]
        placed[number, : len(own)] = np.where(wide < 0, -1, number[wide])
    return placed


def stack_states(first, values: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Joins values of states as ``stack_tables`` joins tables: first, values, zeros up to ``size``.

    ``first`` is the value of state 0.
    """
    joined = np.concatenate([[first], *values])
    return np.pad(joined, (0, size - len(joined)))


def _round_up(n: int, size: int) -> int:
    while size < n:
        size *= _STEP
    return size
