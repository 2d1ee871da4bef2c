"""The compiled programs of an engine, and the state of its slots."""

from functools import partial
from typing import Any

import jax
import numpy as np

from ..parallel import fetch
from ..prefill import Filled, Requests, begin_decoding
from ..session import Session, cache_dtype
from ..state import DecodeState
from . import slots
from .memory import check_memory

LEAST_CHUNK = 16
"""The fewest tokens of a prompt that one forward reads. Programs for fewer cost as much time."""


class Programs:
    """A batch on the device whose rows are slots.

    Each program is compiled at its first use. Programs that read prompts have one version for each
    size of a chunk, a power of two.

    Args:
      session: keeps the programs, and gives models, drafter and rule.
      blank: the request of an empty slot, of one token, which has ended.
      count: the number of slots.
      chunk: the most tokens of a prompt that one forward reads.
      rounds: rounds of one call of ``advance``.
      logprobs: see ``prefill``.

    Raises RequestError for a method whose rows share a state, and for slots that do not fit the memory.
    """

    def __init__(self, session: Session, blank: Requests, *, count: int, chunk: int, rounds: int, logprobs: int | None):
        self.session, self.count, self.chunk, self.rounds = session, count, chunk, rounds
        self.capacity, self.compile_seconds = blank.tokens.shape[1], 0.0
        self._static: dict[str, Any] = dict(
            drafter=session.drafter, dtype=cache_dtype(session.target), logprobs=logprobs
        )
        self._taps = session.drafter.taps
        self._axes = slots.find_row_axes(*self._modules, blank, chunk=LEAST_CHUNK, **self._static)
        self._blank = self._begin(blank, 1, self.begin_reading())
        check_memory(self._blank, count)
        self.empty()

    @property
    def _modules(self) -> tuple[Any, Any]:
        return self.session.target.model, self.session.parameters

    def empty(self) -> None:
        """Empties all slots."""
        self._state = self._call(partial(slots.spread, axes=self._axes, slots=self.count), (self._blank,))

    def begin_reading(self) -> Filled:
        """One row before the first chunk of its prompt."""
        sizes = dict(capacity=self.capacity, dtype=self._static["dtype"], taps=self._taps)
        return self._call(partial(slots.begin_reading, **sizes), (), self._modules[:1])

    def read(self, request: Requests, length: int, filled: Filled, start: int) -> tuple[Filled, int]:
        """Reads a chunk of the prompt from place ``start`` on.

        ``length`` is the prompt's. Returns the row, and the place of the next chunk.
        """
        size = self._chunk_for(length - 1 - start)
        function = partial(slots.read_chunk, chunk=size, taps=self._taps)
        args = request, filled, np.int32(start)
        return self._call(function, args, self._modules[:1], (size,), donate_argnums=2), start + size

    def admit(self, request: Requests, length: int, filled: Filled, slot: int) -> None:
        """Begins to decode a row in ``slot``. The chunks of its prompt are ``filled``."""
        self._place(self._begin(request, length, filled), slot)

    def free(self, slot: int) -> None:
        """Empties ``slot``."""
        self._place(self._blank, slot)

    def advance(self) -> slots.News:
        """Runs the next rounds of all slots. Returns the news on the host."""
        options = dict(drafter=self.session.drafter, rule=self.session.rule, rounds=self.rounds)
        function = partial(slots.advance, **options)
        self._state, news = self._call(function, (self._state,), self._modules, donate_argnums=2)
        return fetch(news)

    def take_text(self, slot: int) -> DecodeState:
        """The text of ``slot`` and its records on the host, as a state of one row."""
        return fetch(self._call(partial(slots.take_text), (self._state, np.int32(slot))))

    def _begin(self, request: Requests, length: int, filled: Filled) -> DecodeState:
        chunk = self._chunk_for(length - 1)
        function = partial(begin_decoding, chunk=chunk, **self._static)
        return self._call(function, (request, filled), self._modules, (chunk,))

    def _place(self, row: DecodeState, slot: int) -> None:
        function = partial(slots.place, axes=self._axes)
        self._state = self._call(function, (self._state, row, np.int32(slot)), donate_argnums=0)

    def _chunk_for(self, unread: int) -> int:
        """The smallest power of two that suffices for ``unread`` tokens, at most ``chunk``."""
        return min(1 << (max(unread, LEAST_CHUNK) - 1).bit_length(), self.chunk)

    def _call(self, function: partial, args: tuple, modules: tuple = (), key: tuple = (), **options) -> Any:
        """``function(*modules, *args)``. ``key`` tells apart the programs of one function."""
        key = "engine", function.func.__name__, *key
        with jax.disable_jit(False):
            compiled, seconds = self.session.compile(key, function, modules, args, None, lambda: options)
            self.compile_seconds += seconds
            return jax.block_until_ready(compiled(*modules, *args))
