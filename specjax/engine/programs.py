"""The compiled programs of an engine, and the state of its slots."""

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..core.cache import without_keys
from ..core.logit_adjustments import RowConstraints
from ..core.state import DecodeState, Requests
from ..loop.prefill import Filled
from ..parallel import fetch, use_mesh
from ..text.session import Session, cache_dtype, shardings
from . import prefix_blocks, row_subset, slots
from .batch_widths import Copies
from .compiled_calls import CompiledCalls
from .memory import check_memory
from .prefix_blocks import BLOCK, Block
from .prompt_scores import Scoring

LEAST_CHUNK = BLOCK
"""The fewest tokens of a prompt that one forward reads. Programs for fewer cost as much time."""

_TOGETHER = 8
"""Blocks that one program writes. Another program writes one block."""


class Programs(CompiledCalls):
    """A batch on the device whose rows are slots.

    Each program is compiled at its first use. Programs that read prompts have one version for each
    size of a chunk, a power of two.

    Args:
      session: keeps the programs, and gives models, drafter and rule.
      blank: the request of an empty slot, of one token, which has ended.
      count: the number of slots.
      widths: numbers of rows below ``count``, for which rounds have programs of their own; in
        order.
      chunk: the most tokens of a prompt that one forward reads.
      most_rounds: the most rounds of one call of ``advance``.
      logprobs: see ``prefill``.
      beside: bytes that the device needs beside the rows; None for those of a row's keys and
        values.

    Attributes:
      row_bytes: the bytes of a row's keys, values and taps.
      scores: reads prompts whose tokens are scored.

    Raises RequestError for a method whose rows share a state, and for slots that do not fit the
    memory.
    """

    def __init__(
        self,
        session: Session,
        blank: Requests,
        *,
        count: int,
        widths: Sequence[int],
        chunk: int,
        most_rounds: int,
        logprobs: int | None,
        beside: int | None,
    ):
        super().__init__(session)
        self.count = count
        self.chunk = chunk
        self.most_rounds = most_rounds
        self.widths = *widths, count
        self.capacity = blank.tokens.shape[1]
        self._static: dict[str, Any] = dict(
            drafter=session.drafter, dtype=cache_dtype(session.target), logprobs=logprobs
        )
        self._taps = session.drafter.taps
        self._compiling = threading.Lock()
        self._whole = None if session.mesh is None else NamedSharding(session.mesh, PartitionSpec())
        self._filled_layout = self._choose_filled_layout(blank)
        with use_mesh(session.mesh):
            self._axes = slots.find_row_axes(*self._models, blank, chunk=LEAST_CHUNK, **self._static)
        filled = self.begin_reading()
        layouts = self._filled_layout, self._whole
        self.scores = Scoring(self, filled, layouts, chunk=chunk, taps=self._taps, top=logprobs or 0)
        static = dict(drafter=session.drafter, dtype=self._static["dtype"])
        self._begin_draft = partial(slots.begin_reading_draft, **static)
        self._draft_reads = jax.eval_shape(self._begin_draft, *self._models, blank, filled) is not None
        self.row_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(filled))
        self._blank = blank
        row = self._begin_row(blank, filled)
        check_memory(row, count, sum(widths), self.row_bytes if beside is None else beside, session.mesh)
        self._spread(row)

    @property
    def _row_sizes(self) -> dict[str, Any]:
        return dict(capacity=self.capacity, dtype=self._static["dtype"], taps=self._taps)

    @property
    def _state_layout(self) -> DecodeState | None:
        """The shardings of the state, which every program keeps; None without a mesh."""
        return None if self.session.mesh is None else shardings(self._state)

    def _choose_filled_layout(self, request: Requests) -> Filled | None:
        """The shardings in which the program of a first chunk makes a row; None without a mesh."""
        if self.session.mesh is None:
            return None
        function = partial(slots.read_first_chunk, chunk=LEAST_CHUNK, **self._row_sizes)
        compiled, _ = self._compile(function, (request,), self._modules[:1], (), {})
        return compiled.output_shardings

    def empty(self) -> None:
        """Empties all slots."""
        self._spread(self._begin_row(self._blank, self.begin_reading()))

    def _begin_row(self, request: Requests, filled: Filled) -> DecodeState:
        """The state of one row for a request of one token, of which nothing is read."""
        function = partial(slots.begin_row, chunk=LEAST_CHUNK, **self._static)
        return self._call(function, (request, filled, self.begin_reading_draft(request, filled)), self._modules)

    def _spread(self, row: DecodeState) -> None:
        """Sets all slots to ``row``, a state of one row that has ended."""
        self._empty_row = without_keys(row)
        self._state = self._repeat(row, self.count)
        self._narrow: dict[int, DecodeState] = {}  # by the number of rows
        self._copies = Copies()

    def _repeat(self, row: DecodeState, count: int) -> DecodeState:
        return self._call(partial(slots.spread, axes=self._axes, slots=count), (row,), key=(count,))

    def begin_reading(self) -> Filled:
        """One row before the first chunk of its prompt."""
        options: dict[str, Any] = dict(out_shardings=self._filled_layout)
        return self._call(partial(slots.begin_reading, **self._row_sizes), (), self._modules[:1], **options)

    def read(self, request: Requests, filled: Filled, start: int, size: int) -> Filled:
        """Reads the chunk of ``size`` tokens of the prompt from place ``start`` on."""
        function = partial(slots.read_chunk, chunk=size, taps=self._taps)
        return self._call(function, (request, filled, np.int32(start)), self._modules[:1], (size,), donate_argnums=2)

    def chunk_for(self, unread: int, most: int, start: int = 0) -> int:
        """The smallest power of two that suffices for ``unread`` tokens from place ``start`` on.

        It is at most ``most``, and the chunk does not reach beyond the capacity.
        """
        size = min(1 << (max(unread, LEAST_CHUNK) - 1).bit_length(), most)
        while start + size > self.capacity:
            size //= 2
        return size

    def begin_reading_draft(self, request: Requests, filled: Filled) -> Filled | None:
        """One row before the draft's first chunk of its prompt.

        It is None for a method that reads none in chunks.
        """
        return self._call(self._begin_draft, (request, filled), self._modules) if self._draft_reads else None

    def read_draft(self, request: Requests, filled: Filled, drafted: Filled, start: int, size: int) -> Filled:
        """The draft reads the chunk of ``size`` tokens from place ``start`` on.

        The target's row is ``filled``.
        """
        function = partial(slots.read_draft_chunk, drafter=self.session.drafter, chunk=size)
        args = request, filled.taps, drafted, np.int32(start)
        return self._call(function, args, self._modules, (size,), donate_argnums=4)

    def take_blocks(self, filled: Filled, start: int, size: int) -> tuple[Block, ...]:
        """The blocks of ``size`` tokens from place ``start`` on."""
        count = size // BLOCK
        return self._call(partial(prefix_blocks.take_blocks, count=count), (filled, np.int32(start)), key=(count,))

    def put_blocks(self, filled: Filled, blocks: Sequence[Block]) -> Filled:
        """The row ``filled``, which has read nothing, with the blocks of its beginning."""
        done = 0
        while done < len(blocks):
            count = _TOGETHER if len(blocks) - done >= _TOGETHER else 1
            args = filled, tuple(blocks[done : done + count]), np.int32(done * BLOCK)
            filled = self._call(partial(prefix_blocks.put_blocks), args, donate_argnums=0)
            done += count
        return filled

    def admit(self, request: Requests, length: int, filled: Filled, drafted: Filled | None, slot: int) -> None:
        """Begins to decode a row in ``slot``.

        Target and draft have read its prompt of ``length`` tokens.
        """
        chunk = self.chunk_for(length - 1, self.chunk) if drafted is None else LEAST_CHUNK  # for the unread rest
        function = partial(slots.admit, axes=self._axes, chunk=chunk, **self._static)
        options: dict[str, Any] = dict(donate_argnums=2, out_shardings=self._state_layout)
        args = self._state, request, filled, drafted, np.int32(slot)
        self._state = self._call(function, args, self._modules, (chunk,), **options)
        self._copies.forget(slot)

    def release(self, slot: int) -> DecodeState:
        """Empties ``slot``.

        Returns its text and its records, as a state of one row, see ``fetch``.
        """
        options: dict[str, Any] = dict(donate_argnums=0, out_shardings=(self._state_layout, self._whole))
        args = self._state, self._empty_row, np.int32(slot)
        self._state, text = self._call(partial(slots.release, axes=self._axes), args, **options)
        return text

    def advance(
        self, rounds: int, running: Sequence[int], constraints: RowConstraints | None = None
    ) -> slots.RoundResults:
        """Runs the next ``rounds`` rounds.

        Returns the results of the slots ``running``, on the host.

        The rounds compute all slots, or the smallest of ``widths`` that suffices for ``running``.

        Args:
          running: the slots whose rows have not ended.
          constraints: the rows' constraints; None if no row has one. All slots are computed with
            them.
        """
        width = self.count if constraints is not None else min(w for w in self.widths if w >= len(running))
        compiled = self.compile_seconds
        began = time.perf_counter()
        if width == self.count:
            results = self._advance_all(rounds, constraints)
            rows = running
        else:
            some = self._copies.choose(running, width, self.count)
            results = self._advance_some(rounds, some)
            rows = [some.index(slot) for slot in running]
        seconds = time.perf_counter() - began - (self.compile_seconds - compiled)
        results = fetch(results)
        if self.session.drafter.chooser:
            all_rounds = int((results.rounds[..., 2] > 0).any(0).sum())
            self.session.learn(results.chosen, all_rounds, int(results.context), seconds, bool(results.sampled))
        return results.of_rows(rows)

    def _advance_all(self, rounds: int, constraints: RowConstraints | None) -> slots.RoundResults:
        """Runs rounds of all slots."""
        args = self._state, np.int32(rounds), *([] if constraints is None else [constraints])
        self._state, results = self._call(self._rounds, args, self._modules, **self._rounds_options)
        self._copies.forget_all()
        return results

    def _advance_some(self, rounds: int, some: list[int]) -> slots.RoundResults:
        """Runs rounds of the slots ``some``, in a state of so many rows.

        The results have their rows.
        """
        width = len(some)
        if width not in self._narrow:
            self._narrow[width] = self._repeat(self._begin_row(self._blank, self.begin_reading()), width)
        known = np.array(self._copies.are_known(some))
        args = self._state, self._narrow[width], np.array(some, np.int32), known, np.int32(rounds)
        function = partial(row_subset.advance, axes=self._axes, **self._rounds_static)
        (self._state, self._narrow[width]), results = self._call(
            function, args, self._modules, ("narrow",), donate_argnums=(2, 3)
        )
        self._copies.add(some)
        return results

    def compile_constrained_rounds(self, constraints: RowConstraints) -> None:
        """Compiles the program of rounds with constraints, if it is not.

        Any thread may call this.
        """
        shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
        args = jax.tree.map(shape, (self._state, self._on_devices(jnp.int32(0)), constraints))
        with self._compiling:
            self._compile(self._rounds, args, self._modules, (), self._rounds_options)

    @property
    def _rounds(self) -> partial:
        return partial(slots.advance, **self._rounds_static)

    @property
    def _rounds_static(self) -> dict[str, Any]:
        return dict(drafter=self.session.drafter, rule=self.session.rule, most_rounds=self.most_rounds)

    @property
    def _rounds_options(self) -> dict[str, Any]:
        return dict(donate_argnums=2, out_shardings=(self._state_layout, self._whole))
