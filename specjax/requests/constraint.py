"""Constrained decoding: regular expressions, choices and JSON schemas as token-level automata, arrays that a tree is walked with.

The parsing and the walk over the vocabulary are outlines_core's. Here its automaton becomes two arrays, dead ends are removed,
and each state learns how far the next and the farthest full match are, so that length limits never cut a match short.
"""

import dataclasses
import re
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from ..errors import RequestError
from .schema import schema_regex
from .vocabulary import token_bytes

ENDLESS = 2**30
"""``longest`` where a match can go on for ever."""

_SMALLEST, _STEP = (1024, 256), 4
"""Sizes of tables, states and classes: the smallest, and from one to the next. Coarse, since each costs a compilation."""


@struct.dataclass
class Automaton:
    """Token-level automata of a batch. State 0 allows every token and stays; the states of different automata do not overlap.

    Attributes:
      next: int32 [S, C], the following state; -1 where a token of the class is refused.
      classes: int32 [V], the class of each token; tokens of one class behave alike in every state.
      shortest: int32 [S], tokens that the shortest way to a full match still needs; 0 in final states. The end token is not counted.
      longest: int32 [S], tokens that can still follow, at most.
    """

    next: jax.Array
    classes: jax.Array
    shortest: jax.Array
    longest: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """One automaton on the host: arrays as in ``Automaton``, but beginning in state 0; ``what`` names it in messages."""

    what: str
    next: np.ndarray
    classes: np.ndarray
    shortest: np.ndarray
    longest: np.ndarray


def compile_constraint(
    tokenizer,
    eos_ids: tuple[int, ...],
    vocab_size: int,
    *,
    regex: str | None = None,
    choices: Sequence[str] | None = None,
    json_schema: dict | str | None = None,
    banned: frozenset[int] = frozenset(),
) -> Compiled:
    """The automaton of the texts that match one of ``regex``, ``choices`` or ``json_schema`` in full, without ``banned`` tokens.

    End tokens are allowed exactly after a full match. Raises RequestError for more than one, an expression that cannot be read or
    cannot match over this vocabulary.
    """
    given = [name for name, value in dict(regex=regex, choices=choices, json_schema=json_schema).items() if value is not None]
    if len(given) != 1:
        raise RequestError(f"give one of regex, choices and json_schema, not {' and '.join(given) or 'none'}")
    if choices is not None:
        if not choices or not all(choices):
            raise RequestError("choices is empty or holds an empty string; give at least one text")
        regex, what = "(" + "|".join(re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", choice) for choice in choices) + ")", "choices"
    elif json_schema is not None:
        regex, what = schema_regex(json_schema), "json_schema"
    else:
        what = f"regex {regex!r}"
    return _compiled(tokenizer, eos_ids, vocab_size, regex, what, banned)


def check_lengths(compiled: Compiled, least: int, most: int) -> None:
    """Raises RequestError where no match has between ``least`` and ``most`` tokens."""
    if compiled.longest[0] < least:
        raise RequestError(
            f"min_new_tokens {least} conflicts with {compiled.what}, whose longest match has {compiled.longest[0]} tokens; lower min_new_tokens"
        )
    if compiled.shortest[0] > most:
        raise RequestError(
            f"{most} new tokens are too few for {compiled.what}, whose shortest match has {compiled.shortest[0]}; raise max_new_tokens"
        )


def combine(constraints: Sequence[Compiled | None], vocab_size: int) -> tuple[Automaton | None, np.ndarray]:
    """The automaton of all rows and the state each begins in, int32 [B]; 0 for a row without one. None where no row has one."""
    distinct = list(dict.fromkeys(c for c in constraints if c is not None))
    if not distinct:
        return None, np.zeros(len(constraints), np.int32)
    following, classes, offsets = stacked([c.next for c in distinct], [c.classes for c in distinct])
    sizes = lambda name, first: padded(np.concatenate([[first], *(getattr(c, name) for c in distinct)]), len(following))
    starts = [offsets[distinct.index(c)] if c is not None else 0 for c in constraints]
    arrays = following, classes, sizes("shortest", 0), sizes("longest", ENDLESS)
    return Automaton(*(jnp.asarray(a, jnp.int32) for a in arrays)), np.array(starts, np.int32)


def stacked(tables: list[np.ndarray], classes: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Tables [S, C] with their classes [V] as one, behind a state 0 that stays; and the offset of each table's states.

    Both sizes are rounded up, so that few programs are compiled.
    """
    joint, inverse = np.unique(np.stack(classes), axis=1, return_inverse=True)
    rows, offsets = [np.zeros((1, joint.shape[1]), np.int64)], []
    for table, columns in zip(tables, joint):
        offsets.append(sum(map(len, rows)))
        wide = table[:, columns]
        rows.append(np.where(wide < 0, -1, wide + offsets[-1]))
    whole = np.concatenate(rows)
    whole = np.pad(whole, [(0, _rounded(n, least) - n) for n, least in zip(whole.shape, _SMALLEST)])
    return whole, inverse.reshape(-1), offsets


def _rounded(n: int, size: int) -> int:
    while size < n:
        size *= _STEP
    return size


def padded(values: np.ndarray, size: int) -> np.ndarray:
    return np.pad(values, (0, size - len(values)))


def token_classes(states: np.ndarray, tokens: np.ndarray, following: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """A dense table [S, C] and the class of each token [V] from transitions ``states[i], tokens[i] -> following[i]``.

    Tokens with equal columns share a class. Columns are told apart by random sums of their entries, modulo 2^64.
    """
    count = int(max(states.max(), following.max())) + 1 if states.size else 1
    weights = np.random.default_rng(0).integers(1, 2**63, count, np.uint64)
    sums = np.zeros(vocab_size, np.uint64)
    np.add.at(sums, tokens, weights[states] * (following.astype(np.uint64) + np.uint64(1)))
    _, classes = np.unique(sums, return_inverse=True)
    table = np.full((count, classes.max() + 1), -1, np.int64)
    table[states, classes[tokens]] = following
    return table, classes


@lru_cache(32)
def _compiled(tokenizer, eos_ids: tuple[int, ...], vocab_size: int, regex: str, what: str, banned: frozenset[int]) -> Compiled:
    transitions, first, final = _index(tokenizer, vocab_size, regex, what)
    edges = [(a, t, b) for a, following in transitions.items() for t, b in following.items() if t < vocab_size and t not in banned]
    shortest = _shortest(edges, final)
    if first not in shortest:
        raise RequestError(f"{what} cannot match without the tokens that allowed_tokens, suppressed_tokens or logit_bias rule out")
    live = _reachable([edge for edge in edges if edge[0] in shortest and edge[2] in shortest], first)
    number = {first: 0} | {state: i for i, state in enumerate((s for s in live if s != first), 1)}
    edges = [(number[a], t, number[b]) for a, t, b in edges if a in number and b in number and b in shortest]
    ends = [(number[state], t, number[state]) for state in final if state in number for t in eos_ids if t not in banned]
    states, tokens, following = np.array(edges + ends, np.int64).reshape(-1, 3).T
    table, classes = token_classes(states, tokens, following, vocab_size)
    longest = _longest({(a, b) for a, _, b in edges}, len(number))
    return Compiled(what, table, classes, np.array([shortest[state] for state in number]), longest)


def _index(tokenizer, vocab_size: int, regex: str, what: str) -> tuple[dict, int, set]:
    """outlines_core's automaton over the tokens: {state: {token: state}} without end tokens, the first state, the final ones.

    The library loses ways that lead on from a full match, as in "a(bc)?". So the expression is closed with a byte that nothing else
    matches: full matches are then the states in which that byte would end it, and none of them is a match of the longer expression.
    """
    from outlines_core import Index, Vocabulary

    by_bytes = defaultdict(list)
    for token, text in enumerate(token_bytes(tokenizer, vocab_size)):
        if text and b"\0" not in text:
            by_bytes[text].append(token)
    close, end = vocab_size, vocab_size + 1  # ids of their own; end tokens are added afterwards
    alone = Vocabulary(end, {b"\0": [close]})
    closed_by = Vocabulary(end, {**by_bytes, b"\0": [close]})
    for expression, vocabulary in (
        (regex, alone),
        (f"({regex})\\x00", closed_by),
    ):  # alone first: our parentheses could mend one of its own
        try:
            index = Index(expression, vocabulary)
        except ValueError as error:
            if "incompatible" not in str(error):
                raise RequestError(f"{what} cannot be read; mend its syntax, and do without look-around and back references") from None
            if vocabulary is closed_by:
                raise RequestError(f"{what} cannot match over this vocabulary") from None
    closed, transitions = set(index.get_final_states()), index.get_transitions()
    final = {state for state, after in transitions.items() if after.get(close) in closed}
    ways = {state: {t: b for t, b in after.items() if t < close} for state, after in transitions.items()}
    return ways, index.get_initial_state(), final


def _shortest(edges: list, final: set) -> dict[int, int]:
    """For each state from which a full match can be reached, how many tokens it takes."""
    before = defaultdict(set)
    for a, _, b in edges:
        before[b].add(a)
    distance, queue = dict.fromkeys(final, 0), deque(final)
    while queue:
        state = queue.popleft()
        for earlier in before[state] - distance.keys():
            distance[earlier] = distance[state] + 1
            queue.append(earlier)
    return distance


def _reachable(edges: list, first: int) -> list[int]:
    """The states that can be reached from ``first``, itself included."""
    after = defaultdict(set)
    for a, _, b in edges:
        after[a].add(b)
    seen, queue = {first: None}, deque([first])
    while queue:
        for state in after[queue.popleft()] - seen.keys():
            seen[state] = None
            queue.append(state)
    return list(seen)


def _longest(pairs: set, count: int) -> np.ndarray:
    """For each state the length of the longest way on, ``ENDLESS`` where it can run in a circle."""
    before, open_ends = defaultdict(set), np.zeros(count, np.int64)
    for a, b in pairs:
        before[b].add(a)
        open_ends[a] += 1
    longest, known, queue = np.zeros(count, np.int64), open_ends == 0, deque(np.flatnonzero(open_ends == 0).tolist())
    while queue:
        state = queue.popleft()
        for earlier in before[state]:
            longest[earlier] = max(longest[earlier], longest[state] + 1)
            open_ends[earlier] -= 1
            if open_ends[earlier] == 0:
                known[earlier] = True
                queue.append(earlier)
    return np.where(known, longest, ENDLESS)
