"""Stop strings on the device: an automaton over bytes that knows how much of each string has been matched, walked token by token."""

import dataclasses
from collections import deque
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from ..errors import RequestError
from .constraint import padded, stacked, token_classes
from .vocabulary import token_bytes


@struct.dataclass
class StopAutomaton:
    """Stop strings of a batch. State 0 matches nothing and stays.

    Attributes:
      next: int32 [S, C], the state after a token of each class.
      classes: int32 [V], the class of each token.
      accept: bool [S], whether a stop string is complete; such a state stays.
    """

    next: jax.Array
    classes: jax.Array
    accept: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledStops:
    """The automaton of one row on the host, beginning in state 0."""

    next: np.ndarray
    classes: np.ndarray
    accept: np.ndarray


def compile_stops(tokenizer, vocab_size: int, strings: Sequence[str]) -> CompiledStops:
    """The automaton of texts in which one of ``strings`` occurs, wherever tokens begin and end. Special tokens have no text.

    Raises RequestError for an empty string.
    """
    if not all(strings):
        raise RequestError("a stop string is empty; leave it out")
    moves, accept = _aho_corasick([string.encode() for string in strings])
    texts = token_bytes(tokenizer, vocab_size)
    lengths = np.array([len(text or b"") for text in texts])
    letters = np.zeros((vocab_size, max(lengths.max(), 1)), np.uint8)
    for row, text in zip(letters, texts):
        row[: len(text or b"")] = np.frombuffer(text or b"", np.uint8)
    table = np.repeat(np.arange(len(moves))[:, None], vocab_size, 1)
    for k in range(letters.shape[1]):  # all states and tokens at once, one byte after another
        longer = lengths > k
        table[:, longer] = moves[table[:, longer], letters[longer, k]]
    states = np.repeat(np.arange(len(moves)), vocab_size)
    following, classes = token_classes(states, np.tile(np.arange(vocab_size), len(moves)), table.reshape(-1), vocab_size)
    return CompiledStops(following, classes, accept)


def combine_stops(rows: Sequence[CompiledStops | None], vocab_size: int) -> tuple[StopAutomaton | None, np.ndarray]:
    """The automaton of all rows and the state each begins in, int32 [B]; 0 for a row without. None where no row has any."""
    distinct = list(dict.fromkeys(row for row in rows if row is not None))
    if not distinct:
        return None, np.zeros(len(rows), np.int32)
    following, classes, offsets = stacked([row.next for row in distinct], [row.classes for row in distinct])
    accept = padded(np.concatenate([[False], *(row.accept for row in distinct)]), len(following))
    starts = [offsets[distinct.index(row)] if row is not None else 0 for row in rows]
    return StopAutomaton(jnp.asarray(following, jnp.int32), jnp.asarray(classes, jnp.int32), jnp.asarray(accept)), np.array(
        starts, np.int32
    )


def _aho_corasick(strings: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """The following state for each state and byte, [S, 256], and which states hold a complete string (Aho and Corasick 1975)."""
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
    moves, queue = np.zeros((len(children), 256), np.int64), deque()
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
    moves[accept] = np.flatnonzero(accept)[:, None]  # complete: nothing that follows undoes it
    return moves, accept
