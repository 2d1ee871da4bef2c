"""Reads the prompts of an engine, in chunks between its rounds."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax

from ..core.checks import LARGEST
from ..loop.prefill import Filled
from .handle import Handle
from .prefix_blocks import BLOCK, has_states, put_states, take_states
from .prefix_cache import PrefixCache, Stored
from .programs import Programs
from .prompt_programs import Part
from .request import slot_arrays
from .step_size import StepSize


@dataclasses.dataclass(eq=False)
class Row:
    """A request that is being read or decoded.

    Attributes:
      slot: its row of the batch.
      state: the state in which its constraint starts.
      compiled: the engine's seconds of compilation when reading began.
      age: the number of requests that began before it.
      blocks: the numbers of its blocks, see ``block_memory``.
      saved: the row as it was when its blocks were taken away; else None.
      held: the tokens that target and draft may find in shared blocks, of those that they have
        read.
      stop_state: the state of its stop strings after the newest token.
      is_seeded: whether the request samples with a seed of its own.
      arrays: prompt and options for the device.
      keys: the keys of the prompt's blocks in the store, or of the text's in the pool.
      filled, drafted: the prompt as far as target and draft have read it (``Filled``); None before
        the first chunk and after the last. A draft that reads no chunks has none.
      start, draft_start: the numbers of tokens that target and draft have read.
      rounds: drafted, accepted and emitted tokens of each of its rounds. A cancelled handle no
        longer counts them.
      prefill_seconds: seconds of its chunks.
      began: the time at which decoding began.
    """

    handle: Handle
    slot: int
    state: dataclasses.InitVar[int]
    compiled: float
    age: int = 0
    blocks: list[int] = dataclasses.field(default_factory=list)
    saved: Any = None
    held: int = LARGEST
    keys: Sequence[bytes] = ()
    filled: Any = None
    drafted: Any = None
    start: int = 0
    draft_start: int = 0
    rounds: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    prefill_seconds: float = 0.0
    began: float = 0.0

    def __post_init__(self, state: int):
        requests = self.handle.batch.requests
        self.arrays = slot_arrays(requests, state)
        self.stop_state = 0 if requests.stop_start is None else int(requests.stop_start[0])
        # Each round asks for it, and reading it from the device would cost milliseconds there.
        seeded = requests.seeded is not None and requests.seeded[0]
        self.is_seeded = bool(seeded and requests.sampling.temperature[0] > 0)

    @property
    def text(self) -> list[int]:
        """The tokens of the prompt, and those that are decoded so far."""
        return self.handle.prompt + self.handle.token_ids

    @property
    def length(self) -> int:
        """The number of tokens of ``text``."""
        return len(self.handle.prompt) + len(self.handle.token_ids)

    @property
    def unread(self) -> int:
        """The number of tokens that the target reads before the row is decoded."""
        return self.length - 1 - self.start

    @property
    def draft_unread(self) -> int:
        """The number of tokens that the draft reads before the row is decoded."""
        return self.length - 1 - self.draft_start

    @property
    def is_read(self) -> bool:
        """Whether target and draft have read the text."""
        return not self.unread and not self.draft_unread

    @property
    def part(self) -> Part:
        """The row, as the target's program reads it."""
        return Part(self.arrays, self.filled, self.drafted, self.start, self.blocks)

    @property
    def is_scored(self) -> bool:
        """Whether the tokens that are read are scored: the first time, where it is asked for."""
        return self.handle.prompt_top is not None and self.saved is None

    def find_stop(self, tokens: Sequence[int]) -> int | None:
        """The number of ``tokens``, the newest, up to the end of the first stop string, or None."""
        stops = self.handle.batch.requests.stops
        if stops is None:
            return None
        self.stop_state, count = stops.find(self.stop_state, tokens)
        return count

    def add_rounds(self, rounds: Sequence[Sequence[int]], emitted: int) -> None:
        """Appends rounds up to the one with the last of ``emitted`` tokens, and cuts it there."""
        for drafted, accepted, count in rounds:
            if count := min(count, emitted):
                self.rounds.append((drafted, min(accepted, count), count))
                emitted -= count


class Reader:
    """Reads prompts into slots. A beginning that an earlier prompt had is copied from the store."""

    def __init__(self, programs: Programs, prefixes: PrefixCache, pace: StepSize):
        self._programs = programs
        self.prefixes = prefixes
        self.pace = pace

    def read(self, rows: Sequence[Row], running: bool) -> list[Row]:
        """Reads the next chunks of the first of ``rows``, by the target and by the draft.

        Returns those of the rows that are read to their end, and are decoded from now on.
        ``running``: whether other rows wait for these chunks.
        """
        programs = self._programs
        began = time.perf_counter()
        compiled = programs.compile_seconds
        for row in rows:
            if row.filled is None:
                self._begin(row)
        reading = time.perf_counter()
        most = self.pace.size(running)
        group = self._choose([row for row in rows if not row.is_read], most)
        most //= len(group) or 1
        size = 0
        if unread := [row for row in group if row.unread]:
            size = self._read_chunk(unread, most)
        if unread := [row for row in group if row.draft_unread]:
            self._read_draft_chunk(unread, size or most)
        if compiled == programs.compile_seconds:
            self.pace.add_chunk(size * len(group), time.perf_counter() - reading)
        read = [row for row in rows if row.is_read]
        for row in read:
            self._admit(row)
            row.filled = row.drafted = None
        ended = time.perf_counter()
        for row in {*group, *read}:
            row.prefill_seconds += ended - began - (programs.compile_seconds - compiled)
        for row in read:
            row.began = ended
            row.handle.begins.setdefault("rounds", ended)
        return read

    def _choose(self, rows: list[Row], most: int) -> list[Row]:
        """The rows of which the next programs read ``most`` tokens. A scored row is read alone."""
        if rows and rows[0].is_scored:
            return rows[:1]
        rows = [row for row in rows if not row.is_scored]
        return rows[: self._programs.count_together([row.unread for row in rows], most)]

    def _begin(self, row: Row) -> None:
        """The row before its first chunk, with the blocks that the store has."""
        programs = self._programs
        prompt = row.handle.prompt
        filled = programs.begin_reading()
        row.keys = self.prefixes.keys(prompt)
        row.drafted = programs.begin_reading_draft(row.arrays, filled)
        row.draft_start = len(prompt) - 1 if row.drafted is None else 0
        # The store has no logits, so a prompt that is scored is read whole.
        blocks = [] if row.is_scored else self.prefixes.find(row.keys)
        filled = programs.put_blocks(filled, [stored.block for stored in blocks])
        row.filled = put_states(filled, blocks[-1].states or {}) if blocks else filled
        row.start = row.handle.cached_tokens = len(blocks) * BLOCK

    def _admit(self, row: Row) -> None:
        """Begins to decode a row, which is read to its end."""
        self._programs.admit(row.arrays, row.length, row.filled, row.drafted, row.slot)

    def _read_chunk(self, rows: Sequence[Row], most: int) -> int:
        """The target reads a chunk of at most ``most`` tokens of each row.

        Returns the size of the chunks.
        """
        programs = self._programs
        size = programs.chunk_for(max(row.unread for row in rows), most, max(row.start for row in rows))
        if not rows[0].is_scored:
            read = programs.read([row.part for row in rows], size)
        else:
            (row,) = rows
            filled, scores = programs.scores.read(row.part, size)
            row.handle.add_scores(scores, min(size, row.unread))
            read = [filled]
        for row, filled in zip(rows, read):
            row.filled = filled
            first = row.start // BLOCK
            row.start += min(size, row.unread)
            if self.prefixes.is_on and row.keys[first : row.start // BLOCK]:
                self._store(row, filled, first, size)
        return size

    def _read_draft_chunk(self, rows: Sequence[Row], most: int) -> None:
        """The draft reads a chunk of at most ``most`` tokens of each row.

        It reads no further than the target.
        """
        programs = self._programs
        size = programs.chunk_for(max(row.draft_unread for row in rows), most, max(row.draft_start for row in rows))
        while any(row.unread and row.draft_start + size > row.start for row in rows):
            size //= 2
        read = programs.read_draft([row.part._replace(start=row.draft_start) for row in rows], size)
        for row, drafted in zip(rows, read):
            row.drafted = drafted
            row.draft_start += min(size, row.draft_unread)

    def _store(self, row: Row, filled: Filled, first: int, size: int) -> None:
        """Stores the whole blocks of a chunk of ``size`` tokens.

        The chunk begins with block ``first``.
        """
        if not bool(jax.device_get(filled.finite).all()):
            return
        taken = self._programs.take_blocks(filled, first * BLOCK, size)[: row.start // BLOCK - first]
        stored = [Stored(block, None if has_states(filled) else {}) for block in taken]
        if has_states(filled) and row.start % BLOCK == 0:  # only here the states of a block's end are seen
            stored[-1] = Stored(taken[-1], take_states(filled))
        self.prefixes.add(row.keys, first, stored)
