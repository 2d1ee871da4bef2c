"""The state of an engine's slots, and the compiled programs that fill and empty a slot."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..core.cache import without_keys
from ..core.recurrence import State
from ..core.state import DecodeState, Requests
from ..loop.drafter import Drafter
from ..loop.prefill import Filled
from ..parallel import use_mesh
from ..text.session import Session, shardings
from . import slots
from .batch_widths import Copies
from .memory import check_memory
from .pools import blank_pools, copy_block, held_in_blocks, hollow_axes
from .prompt_programs import LEAST_CHUNK, PromptPrograms
from .prompt_scores import Scoring


class SlotPrograms(PromptPrograms):
    """The base of ``Programs``: a batch on the device whose rows are slots.

    Args:
      session: keeps the programs, and gives models, drafter and rule.
      blank: the request of an empty slot, of one token, which has ended.
      count: the number of slots.
      widths: numbers of rows below ``count``, for which rounds have programs of their own; in
        order.
      chunk: the most tokens of a prompt that one forward reads.
      logprobs: see ``prefill``.
      beside: bytes that the device needs beside the rows; None for those of a row's keys and
        values.
      block, prompts: see ``prompt_programs``.

    Attributes:
      block: the positions of a block, or None.
      blocks: the number of blocks, see ``make_pools``.
      row_bytes: the bytes of a row's keys, values and taps.
      tables: int32 [count, T / S], the blocks of each slot's row.
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
        logprobs: int | None,
        beside: int | None,
        block: int | None,
        prompts: int,
    ):
        super().__init__(session, blank, chunk, block, prompts)
        self.count = count
        self.block = block
        self.blocks = 0
        # Other methods have nothing left to read when a row gets its slot.
        self._reads_at_once = not self.draft_reads and type(session.drafter).init is not Drafter.init
        self.tables = self.table_of([()] * count)
        self.widths = *widths, count
        self._static: dict[str, Any] = dict(drafter=session.drafter, dtype=self._dtype, logprobs=logprobs)
        self._whole = None if session.mesh is None else NamedSharding(session.mesh, PartitionSpec())
        with use_mesh(session.mesh):
            self._axes = slots.find_row_axes(*self._models, blank, chunk=LEAST_CHUNK, **self._static)
        filled = self.begin_reading()
        if block is not None:
            self._axes = self._axes_beside_blocks(filled)
        layouts = self._filled_layout, self._whole
        self.scores = Scoring(self, filled, layouts, chunk=chunk, taps=self._taps, top=logprobs or 0)
        self.row_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(filled))
        row = self._begin_row(blank, filled)
        beside = (self.row_bytes if beside is None else beside) + (prompts - 1) * self.row_bytes
        check_memory(row, count, sum(widths), beside, session.mesh)
        self._spread(row)

    @property
    def block_bytes(self) -> int:
        """The bytes of a block of target and draft together."""
        return sum(math.prod(block.shape) * block.dtype.itemsize for block in jax.tree.leaves(self.block_shapes))

    @property
    def has_states(self) -> bool:
        """Whether the target has recurrent states."""
        return any(isinstance(layer, State) for layer in self._state.cache.layers)

    def make_pools(self, blocks: int) -> None:
        """Makes the pools of so many blocks, and of block 0."""
        self.blocks = blocks
        self._target_pools, self._draft_pools = blank_pools(self.block_shapes, blocks + 1)

    def _axes_beside_blocks(self, filled: Filled) -> DecodeState:
        """The axes of rows of a state whose keys and values are in blocks."""
        drafted = self.begin_reading_draft(self._blank, filled)
        begin = partial(slots.begin_row, *self._models, self._blank, chunk=LEAST_CHUNK, **self._static)
        return hollow_axes(begin, (filled, drafted), self.block_shapes, self.table_of([()]), self._axes)

    @property
    def _state_layout(self) -> DecodeState | None:
        """The shardings of the state, which every program keeps; None without a mesh."""
        return None if self.session.mesh is None else shardings(self._state)

    def empty(self) -> None:
        """Empties all slots."""
        if self._in_blocks:
            self.make_pools(self.blocks)
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

    def admit(self, request: Requests, length: int, filled: Filled, drafted: Filled | None, slot: int) -> None:
        """Begins to decode a row in ``slot``.

        Target and draft have read its prompt of ``length`` tokens.
        """
        chunk = self.chunk_for(length - 1, self.chunk) if self._reads_at_once else LEAST_CHUNK
        self._state = self._call(**self._admitting(request, filled, drafted, slot, chunk))
        self._copies.forget(slot)

    def _admitting(self, request: Requests, filled: Filled, drafted: Filled | None, slot: int, chunk: int) -> dict:
        function = partial(slots.admit, axes=self._axes, chunk=chunk, **self._static)
        args = self._state, request, filled, drafted, np.int32(slot)
        options: dict[str, Any] = dict(donate_argnums=2, out_shardings=self._state_layout)
        return dict(function=function, args=args, modules=self._modules, key=(chunk,), **options)

    def compile_chunk(self, size: int, prompts: int = 1) -> None:
        super().compile_chunk(size, prompts)
        if self._reads_at_once:
            self._compile_ahead(**self._admitting(self._blank, self.begin_reading(), None, 0, size))

    def release(self, slot: int) -> DecodeState:
        """Empties ``slot``.

        Returns its text and its records, as a state of one row, see ``fetch``.
        """
        options: dict[str, Any] = dict(donate_argnums=0, out_shardings=(self._state_layout, self._whole))
        args = self._state, self._empty_row, np.int32(slot)
        self._state, text = self._call(partial(slots.release, axes=self._axes), args, **options)
        return text

    def suspend(self, slot: int) -> DecodeState:
        """Empties ``slot``. Returns its row as a state of one row, for ``resume``."""
        self._state, row = self._call(**self._suspending(slot))
        return row

    def _suspending(self, slot: int) -> dict[str, Any]:
        args = self._state, self._empty_row, np.int32(slot)
        return dict(function=partial(slots.suspend, axes=self._axes), args=args, donate_argnums=0)

    def resume(self, row: DecodeState, slot: int) -> None:
        """Goes on with a row in ``slot``, whose text target and draft have read again."""
        self._state = self._call(**self._resuming(row, slot))
        self._copies.forget(slot)

    def _resuming(self, row: DecodeState, slot: int) -> dict[str, Any]:
        args = self._state, row, np.int32(slot)
        return dict(function=partial(slots.place, axes=self._axes), args=args, donate_argnums=0)

    def compile_waits(self) -> None:
        """Compiles what rows need that wait for memory, if it is not. Any thread may call this."""
        suspending = self._suspending(0)
        self._compile_ahead(**suspending)
        _, row = jax.eval_shape(suspending["function"], *suspending["args"])
        self._compile_ahead(**self._resuming(row, 0))

    def copy_block(self, source: int, to: int) -> None:
        """Copies the keys and values of block ``source`` to block ``to``."""
        self._pools = self._call(**self._copying(source, to))

    def _copying(self, source: int, to: int) -> dict[str, Any]:
        return dict(function=partial(copy_block), args=(self._pools, np.int32(source), np.int32(to)), donate_argnums=0)

    def compile_beginnings(self, sizes: Sequence[int]) -> None:
        if self._in_blocks:
            self._compile_ahead(**self._copying(0, 0))
        else:
            super().compile_beginnings(sizes)

    def held(self, slot: int) -> int:
        """The number of tokens of the row in ``slot`` whose keys are in blocks."""
        return held_in_blocks(self._state, slot)

    @property
    def _pools(self) -> tuple[list, list]:
        """The pools of target and draft, in the order in which a state has them."""
        return self._target_pools, self._draft_pools

    @_pools.setter
    def _pools(self, pools: tuple[list, list]) -> None:
        self._target_pools, self._draft_pools = pools
