"""The compiled programs of an engine, and the state of its slots."""

import math
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..core.cache import without_keys
from ..core.logit_adjustments import RowConstraints
from ..core.recurrence import State
from ..core.state import DecodeState, Requests
from ..loop.prefill import Filled
from ..loop.resting import Resting, resting_rule
from ..parallel import fetch, use_mesh
from ..rules.rule import as_rule
from ..text.session import Session, shardings
from . import row_subset, slots
from .batch_widths import Copies
from .memory import check_memory
from .pools import blank_pools, held_in_blocks, hollow_axes
from .prompt_programs import LEAST_CHUNK, Program, PromptPrograms
from .prompt_scores import Scoring


class Programs(PromptPrograms):
    """A batch on the device whose rows are slots.

    Each program is compiled at its first use, or ahead, see ``engine.warm_start``. Programs that
    read prompts have one version for each size of a chunk, a power of two. Rounds have one for each
    width, and until it is ready a plain one, in which the method rests.

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
      block: the positions of a block, see ``prompt_programs``.

    Attributes:
      block: see above.
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
        most_rounds: int,
        logprobs: int | None,
        beside: int | None,
        block: int | None = None,
    ):
        super().__init__(session, blank, chunk, block)
        self.count = count
        self.block = block
        self.blocks = 0
        self.tables = np.zeros((count, self.reading_table.shape[1]), np.int32)
        self.most_rounds = most_rounds
        self.widths = *widths, count
        self._static: dict[str, Any] = dict(drafter=session.drafter, dtype=self._dtype, logprobs=logprobs)
        self._widening = threading.Lock()
        self._constrained: dict[Any, frozenset[int]] = {}  # the widths of compiled rounds, by the kind of constraints
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
        check_memory(row, count, sum(widths), self.row_bytes if beside is None else beside, session.mesh)
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
        return hollow_axes(begin, (filled, drafted), self.block_shapes, self.reading_table, self._axes)

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

    def suspend(self, slot: int) -> DecodeState:
        """Empties ``slot``. Returns its row as a state of one row, for ``resume``."""
        args = self._state, self._empty_row, np.int32(slot)
        self._state, row = self._call(partial(slots.suspend, axes=self._axes), args, donate_argnums=0)
        return row

    def resume(self, row: DecodeState, slot: int) -> None:
        """Goes on with a row in ``slot``, whose text target and draft have read again."""
        function = partial(slots.place, axes=self._axes)
        self._state = self._call(function, (self._state, row, np.int32(slot)), donate_argnums=0)
        self._copies.forget(slot)

    def held(self, slot: int) -> int:
        """The number of tokens of the row in ``slot`` whose keys are in blocks."""
        return held_in_blocks(self._state, slot)

    def advance(
        self, rounds: int, running: Sequence[int], constraints: RowConstraints | None = None, seeded: bool = False
    ) -> slots.RoundResults:
        """Runs the next ``rounds`` rounds.

        Returns the results of the slots ``running``, on the host.

        The rounds compute the smallest of ``widths`` that suffices for ``running`` and is ready, or
        all slots.

        Args:
          running: the slots whose rows have not ended.
          constraints: the rows' constraints; None if no row has one.
          seeded: whether a row samples with a seed, see ``resting.may_rest``.
        """
        kind, width = self._choose_rounds(len(running), seeded, constraints)
        compiled = self.compile_seconds
        began = time.perf_counter()
        if width == self.count:
            results = self._advance_all(kind, rounds, constraints)
            rows = running
        else:
            some = self._copies.choose(running, width, self.count)
            results = self._advance_some(kind, rounds, some, constraints)
            rows = [some.index(slot) for slot in running]
        seconds = time.perf_counter() - began - (self.compile_seconds - compiled)
        results = fetch(results)
        if self.session.drafter.chooser:
            all_rounds = int((results.rounds[..., 2] > 0).any(0).sum())
            self.session.learn(results.chosen, all_rounds, int(results.context), seconds, bool(results.sampled))
        return results.of_rows(rows)

    def _choose_rounds(self, running: int, seeded: bool, constraints: RowConstraints | None) -> Program:
        """The program of the next rounds: the narrowest that is ready, of two the method's own."""
        widths = [width for width in self.widths if width >= running]
        if constraints is not None:
            ready = self._constrained.get(jax.tree.structure(constraints), ())
            return "rounds", min(filter(widths.__contains__, ready), default=self.count)
        rests = self.ready is not None and (as_rule(self.session.rule).plain_if_seeded or not seeded)
        kinds = ("rounds", "plain") if rests else ("rounds",)
        programs = [(kind, width) for width in widths for kind in kinds]
        return next(filter(lambda program: self._is_ready(*program), programs), programs[-1])

    def _advance_all(self, kind: str, rounds: int, constraints: RowConstraints | None) -> slots.RoundResults:
        """Runs rounds of all slots."""
        (self._state, results), self._pools = self._call(**self._all_rounds(kind, rounds, constraints))
        self._copies.forget_all()
        return results

    def _all_rounds(self, kind: str, rounds: int, constraints: RowConstraints | None) -> dict[str, Any]:
        args = self._state, np.int32(rounds), *([] if constraints is None else [constraints])
        function = partial(slots.advance, **self._rounds_static(kind))
        layouts = (self._state_layout, self._whole), self._whole
        options: dict[str, Any] = dict(donated=(2,), key=(kind,), out_shardings=layouts)
        return self._lend(function, args, self._modules, self._pools, self.tables, **options)

    def _advance_some(
        self, kind: str, rounds: int, some: list[int], constraints: RowConstraints | None
    ) -> slots.RoundResults:
        """Runs rounds of the slots ``some``, in a state of so many rows.

        The results have their rows.
        """
        call = self._some_rounds(kind, rounds, some, constraints)
        ((self._state, self._narrow[len(some)]), results), self._pools = self._call(**call)
        self._copies.add(some)
        return results

    def _some_rounds(
        self, kind: str, rounds: int, some: Sequence[int], constraints: RowConstraints | None
    ) -> dict[str, Any]:
        width = len(some)
        self._widen(width)
        known = np.array(self._copies.are_known(some))
        args = self._state, self._narrow[width], np.array(some, np.int32), known, np.int32(rounds)
        args += () if constraints is None else (constraints,)
        function = partial(row_subset.advance, axes=self._axes, **self._rounds_static(kind))
        options: dict[str, Any] = dict(donated=(2, 3), key=("narrow", kind))
        return self._lend(function, args, self._modules, self._pools, self.tables[list(some)], **options)

    @property
    def _pools(self) -> tuple[list, list]:
        """The pools of target and draft, in the order in which a state has them."""
        return self._target_pools, self._draft_pools

    @_pools.setter
    def _pools(self, pools: tuple[list, list]) -> None:
        self._target_pools, self._draft_pools = pools

    def _widen(self, width: int) -> None:
        """Makes the narrow state of so many rows, if there is none. Any thread may call this."""
        with self._widening:
            if width not in self._narrow:
                self._narrow[width] = self._repeat(self._begin_row(self._blank, self.begin_reading()), width)

    def compile_rounds(self, kind: str, width: int, constraints: RowConstraints | None = None) -> None:
        """Compiles a program of rounds, if it is not. Any thread may call this."""
        if width < self.count:
            self._compile_ahead(**self._some_rounds(kind, 0, range(width), constraints))
        else:
            self._compile_ahead(**self._all_rounds(kind, 0, constraints))
        if constraints is not None:
            structure = jax.tree.structure(constraints)
            self._constrained[structure] = self._constrained.get(structure, frozenset()) | {width}

    def compile_constrained(self, constraints: RowConstraints) -> None:
        """Compiles rounds of all slots with such constraints, if they are not. For any thread."""
        if self.count not in self._constrained.get(jax.tree.structure(constraints), ()):
            self.compile_rounds("rounds", self.count, constraints)

    def _rounds_static(self, kind: str) -> dict[str, Any]:
        session = self.session
        rests = kind == "plain"
        return dict(
            drafter=Resting(session.drafter) if rests else session.drafter,
            rule=resting_rule(session.rule) if rests else session.rule,
            most_rounds=self.most_rounds,
        )
