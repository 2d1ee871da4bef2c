"""Constrained decoding: regular expressions and choices as automata over tokens, or grammars.

The automata have no dead ends. Each state knows the distance in tokens to the nearest and to the
farthest full match, so a length limit never cuts a match short. JSON schemas, and expressions whose
automaton is too large, are grammars, see ``grammar``.
"""

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from flax import struct

from ..core.checks import check_text
from ..core.logit_adjustments import RowConstraints
from ..errors import RequestError
from .automaton import byte_automaton
from .characters import distinct_rows
from .grammar import Grammar, compile_grammar
from .grammar_masks import RowGrammar, follow_grammars
from .limits import MOST_CONSTRAINTS, TooLarge, check_limit
from .pattern import Either, Pattern, literal, name_regex, read_regex, spell
from .schema import schema_text
from .token_table import TokenTable, add_class, stack_states, stack_tables, walk_tokens
from .vocabulary import token_bytes

ENDLESS = 2**30
"""The value of ``longest`` in states where a match can grow without end."""


class Automaton(struct.PyTreeNode):
    """The automata over tokens of a batch, in one table.

    State 0 allows every token and leads to itself. Different automata have different states.

    Attributes:
      next: int32 [S, C], the state after a token of each class; -1 where a token is refused.
      classes: int32 [V], the class of each token. Tokens of one class behave alike in every state.
      shortest: int32 [S], the number of tokens on the shortest way to a full match; 0 in final
        states. The end token does not count.
      longest: int32 [S], the largest number of tokens that can still follow, or ``ENDLESS``.
    """

    next: jax.Array
    classes: jax.Array
    shortest: jax.Array
    longest: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Constraint:
    """The automaton of one constraint, on the host. It starts in state 0.

    Attributes:
      name: the name of the constraint in messages.
      table, shortest, longest: see ``Automaton``.
    """

    name: str
    table: TokenTable
    shortest: np.ndarray
    longest: np.ndarray


def compile_constraint(
    tokenizer,
    eos_ids: tuple[int, ...],
    vocab_size: int,
    *,
    regex: str | None = None,
    choices: Sequence[str] | None = None,
    json_schema: Mapping | str | None = None,
    grammar: str | None = None,
    banned: frozenset[int] = frozenset(),
) -> Constraint | Grammar:
    """The constraint of the texts that match one of the four options in full.

    It is an automaton for a ``regex`` and ``choices`` whose automaton is small, else a grammar. It
    allows the tokens ``eos_ids`` exactly after a full match. An automaton never allows a token in
    ``banned``.

    Raises RequestError for more than one of the four, for an expression that cannot be read or
    cannot match over this vocabulary, and where a limit of ``limits`` is exceeded.
    """
    given = dict(regex=regex, choices=choices, json_schema=json_schema, grammar=grammar)
    sources: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if len(sources) != 1:
        raise RequestError(
            f"give one of regex, choices, json_schema and grammar, not {' and '.join(sources) or 'none'}"
        )
    ((kind, value),) = sources.items()
    if kind == "choices":
        value = _check_choices(value)
    elif kind == "json_schema":
        value = schema_text(value)
    elif kind == "grammar":
        check_limit(len(value), "LONGEST_GRAMMAR", f"grammar: its length of {len(value):,} characters", "shorten it")
        value = check_text(value, "grammar")
    return _compile(tokenizer, eos_ids, vocab_size, kind, value, banned)


def _check_choices(choices) -> tuple[str, ...]:
    if isinstance(choices, str):
        raise RequestError(f"choices is one text; give a list, such as choices=[{choices[:20]!r}]")
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise RequestError("choices is empty or holds an empty string; give at least one text")
    check_limit(len(choices), "MOST_CHOICES", f"choices: their number of {len(choices):,}", "give fewer")
    length = sum(map(len, choices))
    check_limit(length, "LONGEST_PATTERN", f"choices: their length of {length:,} characters together", "give fewer")
    return tuple(check_text(choice, "choices") for choice in choices)


@lru_cache(MOST_CONSTRAINTS)
def _compile(
    tokenizer, eos_ids: tuple[int, ...], vocab_size: int, kind: str, value, banned: frozenset[int]
) -> Constraint | Grammar:
    if kind in ("regex", "choices"):
        name = name_regex(value) if kind == "regex" else kind
        pattern = read_regex(value, name) if kind == "regex" else Either(tuple(map(literal, value)))
        try:
            return _make_table(tokenizer, eos_ids, vocab_size, pattern, name, banned)
        except TooLarge:
            value = spell(pattern)
    return compile_grammar(tokenizer, eos_ids, vocab_size, kind, value)


def _make_table(
    tokenizer, eos_ids: tuple[int, ...], vocab_size: int, pattern: Pattern, name: str, banned: frozenset[int]
) -> Constraint:
    """The automaton over tokens of a pattern. Raises TooLarge where the host should follow it."""
    moves, final = byte_automaton(pattern, name)
    texts = [None if token in eos_ids else text for token, text in enumerate(token_bytes(tokenizer, vocab_size))]
    every = walk_tokens(moves, texts, name) if banned else None
    table = walk_tokens(moves, [None if token in banned else text for token, text in enumerate(texts)], name)
    shortest = _shortest(table.next, final[table.states])
    if shortest[0] < 0:
        if every is not None and _shortest(every.next, final[every.states])[0] >= 0:
            raise RequestError(
                f"{name} cannot match without the tokens that allowed_tokens, suppressed_tokens or logit_bias rule out"
            )
        raise RequestError(f"{name} cannot match over this vocabulary; use characters that its tokens spell")
    table, shortest = _drop_dead_ends(table, shortest)
    longest = _longest(table.next)
    ends = np.where(shortest == 0, np.arange(len(shortest)), -1)
    table = add_class(table, [token for token in eos_ids if token not in banned], ends)
    for limit, count in zip(("MOST_TABLE_STATES", "MOST_TABLE_CLASSES"), table.next.shape):
        check_limit(count, limit, f"{name}: the size of its table, {count:,},", "simplify it")
    return Constraint(name, table, shortest, longest)


def _drop_dead_ends(table: TokenTable, shortest: np.ndarray) -> tuple[TokenTable, np.ndarray]:
    """The table and ``shortest`` without the states from which no full match can be reached."""
    alive = shortest >= 0
    number = np.where(alive, np.cumsum(alive) - 1, -1)
    following = table.next[alive]
    following = np.where(following < 0, -1, number[following])
    columns, merged = distinct_rows(following.T)
    return TokenTable(table.states[alive], np.ascontiguousarray(columns.T), merged[table.classes]), shortest[alive]


def _edges(following: np.ndarray) -> tuple[list[set[int]], list[set[int]]]:
    """The states before each state, and the states after each state."""
    after = [set(row[row >= 0].tolist()) for row in map(np.unique, following)]
    before = [set() for _ in after]
    for state, states in enumerate(after):
        for later in states:
            before[later].add(state)
    return before, after


def _shortest(following: np.ndarray, final: np.ndarray) -> np.ndarray:
    """Int [S]: the number of tokens from each state to the nearest full match; -1 without one."""
    before, _ = _edges(following)
    distance = np.where(final, 0, -1)
    queue = deque(np.flatnonzero(final).tolist())
    while queue:
        state = queue.popleft()
        for earlier in before[state]:
            if distance[earlier] < 0:
                distance[earlier] = distance[state] + 1
                queue.append(earlier)
    return distance


def _longest(following: np.ndarray) -> np.ndarray:
    """Int [S]: the number of tokens on the longest way from each state, or ``ENDLESS``.

    It is ``ENDLESS`` in the states of a cycle and in all states that lead to a cycle.
    """
    before, after = _edges(following)
    left = [len(states) for states in after]
    longest = np.zeros(len(left), np.int64)
    known = np.array([n == 0 for n in left])
    queue = deque(np.flatnonzero(known).tolist())
    while queue:
        state = queue.popleft()
        for earlier in before[state]:
            longest[earlier] = max(longest[earlier], longest[state] + 1)
            left[earlier] -= 1
            if left[earlier] == 0:
                known[earlier] = True
                queue.append(earlier)
    return np.where(known, longest, ENDLESS)


def check_lengths(constraint: Constraint, least: int, most: int) -> None:
    """Raises RequestError where no match has between ``least`` and ``most`` tokens."""
    shortest = constraint.shortest[0]
    longest = constraint.longest[0]
    if longest < least:
        raise RequestError(
            f"min_new_tokens {least} conflicts with {constraint.name}, whose longest match has {longest} tokens; "
            "lower min_new_tokens"
        )
    if shortest > most:
        raise RequestError(
            f"{most} new tokens are too few for {constraint.name}, whose shortest match has {shortest}; "
            "raise max_new_tokens"
        )


def combine_constraints(
    rows: Sequence[Constraint | RowGrammar | None],
) -> tuple[RowConstraints | None, np.ndarray, np.ndarray]:
    """The constraints of all rows for the device, or None if no row has one.

    The second result is int32 [B], the state in which each row starts in the table: 0 without an
    automaton. The third is int32 [B], the number of each row's grammar: 0 without one.
    """
    automata = [c if isinstance(c, Constraint) else None for c in rows]
    numbers = np.array([c.number if isinstance(c, RowGrammar) else 0 for c in rows], np.int32)
    table, start = _join_tables(automata)
    if table is None and not numbers.any():
        return None, start, numbers
    constraints = RowConstraints(table)
    return follow_grammars(constraints) if numbers.any() else constraints, start, numbers


def _join_tables(constraints: Sequence[Constraint | None]) -> tuple[Automaton | None, np.ndarray]:
    """The automaton of all rows, or None, and the state in which each row starts."""
    distinct = list(dict.fromkeys(c for c in constraints if c is not None))
    if not distinct:
        return None, np.zeros(len(constraints), np.int32)
    following, classes, offsets = stack_tables([c.table for c in distinct])
    shortest = stack_states(0, [c.shortest for c in distinct], len(following))
    longest = stack_states(ENDLESS, [c.longest for c in distinct], len(following))
    start = dict(zip(distinct, offsets)) | {None: 0}
    arrays = (array.astype(np.int32) for array in (following, classes, shortest, longest))
    automaton = Automaton(*map(jax.device_put, arrays))
    return automaton, np.array([start[c] for c in constraints], np.int32)
