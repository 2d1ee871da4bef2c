"""Stop strings as an automaton. Its state is the part of a stop string that ends the text."""

import dataclasses
from collections import deque
from collections.abc import Sequence

import jax
import numpy as np
from flax import struct

from ..core.checks import check_text
from ..errors import RequestError
from .limits import check_limit
from .token_table import TokenTable, add_class, stack_states, stack_tables, walk_tokens
from .vocabulary import token_bytes


class StopAutomaton(struct.PyTreeNode):
    """The stop strings of a batch. State 0 matches nothing and leads to itself.

    Attributes:
      next: int32 [S, C], the state after a token of each class.
      classes: int32 [V], the class of each token.
      accept: bool [S], whether a stop string is complete. Such a state leads to itself.
    """

    next: jax.Array
    classes: jax.Array
    accept: jax.Array

    def find(self, state: int, tokens: Sequence[int]) -> tuple[int, int | None]:
        """Follows ``tokens`` from a state, on the host.

        Returns the state after the tokens, and the number of tokens up to the end of the first stop
        string; None if no stop string ends there.
        """
        for i, token in enumerate(tokens):
            state = int(self.next[state, self.classes[token]])
            if self.accept[state]:
                return state, i + 1
        return state, None


@dataclasses.dataclass(frozen=True, eq=False)
class Stops:
    """The automaton of one row, on the host. It starts in state 0."""

    table: TokenTable
    accept: np.ndarray


def compile_stops(tokenizer, vocab_size: int, strings: Sequence[str]) -> Stops:
    """The automaton of the texts that contain one of ``strings``, across the bounds of tokens too.

    Special tokens have no text. Raises RequestError for an empty string, for half of a surrogate
    pair, and for more or longer strings than ``limits`` allows.
    """
    if not all(strings):
        raise RequestError("a stop string is empty; leave it out")
    encoded = [check_text(string, "stop").encode() for string in strings]
    check_limit(len(encoded), "MOST_STOP_STRINGS", f"stop: the number of {len(encoded):,} strings", "give fewer")
    total = sum(map(len, encoded))
    check_limit(
        total, "MOST_STOP_BYTES", f"stop: their length of {total:,} bytes together", "give fewer or shorter ones"
    )
    moves, accept = _aho_corasick(encoded)
    texts = token_bytes(tokenizer, vocab_size)
    table = walk_tokens(moves, texts, "stop")
    table = add_class(table, [token for token, text in enumerate(texts) if not text], np.arange(len(table.states)))
    return Stops(table, accept[table.states])


def combine_stops(rows: Sequence[Stops | None]) -> tuple[StopAutomaton | None, np.ndarray]:
    """The automaton of all rows, and the state in which each row starts, int32 [B].

    The automaton is None where no row has stop strings. A row without stop strings starts in
    state 0.
    """
    distinct = list(dict.fromkeys(row for row in rows if row is not None))
    if not distinct:
        return None, np.zeros(len(rows), np.int32)
    following, classes, offsets = stack_tables([row.table for row in distinct])
    accept = stack_states(False, [row.accept for row in distinct], len(following))
    start = dict(zip(distinct, offsets)) | {None: 0}
    automaton = StopAutomaton(*map(jax.device_put, (following, classes.astype(np.int32), accept)))
    return automaton, np.array([start[row] for row in rows], np.int32)


def _aho_corasick(strings: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """The moves [S, 256], and whether a state holds a complete string (Aho and Corasick 1975)."""
    children: list[dict[int, int]] = [{}]
    accept = [False]
    for string in strings:
        state = 0
        for byte in string:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
                accept.append(False)
            state = children[state][byte]
        accept[state] = True
    moves = np.zeros((len(children), 256), np.int32)
    queue = deque()
    fallback = [0] * len(children)
    for byte, child in children[0].items():
        moves[0, byte] = child
        queue.append(child)
    while queue:
        state = queue.popleft()
        moves[state] = moves[fallback[state]]
        accept[state] |= accept[fallback[state]]
        for byte, child in children[state].items():
            fallback[child] = moves[fallback[state], byte]
            moves[state, byte] = child
            queue.append(child)
    accept = np.array(accept)
    moves[accept] = np.flatnonzero(accept)[:, None]  # A complete string stays complete.
    return moves, accept
