"""The rounds of an engine: they are launched, and their tokens handed out to the requests."""

import dataclasses
import time
from typing import Any, NamedTuple

import numpy as np

from ..core.cache import KVCache
from ..errors import NumericsError
from ..parallel import fetch
from ..text.generator import Generator
from ..text.result import Result, results_of
from ..text.session import Decoding
from .constraints import Constraints
from .programs import Launch, Programs
from .prompt_reader import Row
from .scheduler import RowMemory, Scheduler
from .slots import RoundResults
from .step_size import StepSize


class Flight(NamedTuple):
    """Rounds that the device runs, and the rows that run."""

    rows: list[Row]
    launch: Launch


class Rounds:
    """Runs the rounds of the rows in slots.

    Args:
      generator, programs, scheduler, memory, constraints, pace: the parts of the engine.
    """

    def __init__(
        self,
        generator: Generator,
        programs: Programs,
        scheduler: Scheduler,
        memory: RowMemory,
        constraints: Constraints,
        pace: StepSize,
    ):
        self._generator = generator
        self._programs = programs
        self._scheduler = scheduler
        self._memory = memory
        self._constraints = constraints
        self._pace = pace
        self._flying: Flight | None = None

    def run(self, ahead: bool) -> None:
        """Launches the next rounds, and hands out the tokens of those before.

        ``ahead``: whether the device may run the next rounds meanwhile. Else their tokens are
        handed out too.
        """
        launched = self._launch()
        self.hand_out()
        self._flying = launched
        if not ahead or not self._scheduler.rows:
            self.hand_out()

    def forget(self) -> None:
        """Forgets the rounds that the device runs."""
        self._flying = None

    def _launch(self) -> Flight | None:
        """Launches the next rounds of the rows in slots, if there are any.

        A row begins with few rounds, so that its first tokens do not wait for more.
        """
        flying = self._flying
        begins = any(not row.rounds and (not flying or row not in flying.rows) for row in self._scheduler.rows)
        rounds = self._pace.least_rounds if begins else self._pace.rounds
        unread = rounds + (flying.launch.rounds if flying else 0)
        if not self._memory.has_room(self._scheduler.rows, unread):
            self.hand_out()  # a row that loses its memory must have all of its tokens
        self._memory.make_room(self._scheduler, unread)
        rows = self._scheduler.rows
        if not rows:
            return None
        constrained = any(row.handle.constraint is not None for row in rows)
        constraints = self._constraints.on_device if constrained else None
        seeded = any(row.is_seeded for row in rows)
        return Flight(rows, self._programs.launch(rounds, [row.slot for row in rows], constraints, seeded))

    def hand_out(self) -> None:
        """Waits for the rounds that the device runs, and hands out their tokens.

        Rows that have ended leave their slots.
        """
        flight, self._flying = self._flying, None
        if flight is None:
            return
        results, seconds = self._programs.finish(flight.launch)
        num_rounds = int((results.rounds[..., 2].max(0) > 0).sum())
        if seconds is not None and num_rounds:
            self._pace.add_rounds(num_rounds, seconds)
        for i, row in enumerate(flight.rows):
            if row in self._scheduler.rows:  # it had not ended before
                self._add(row, results.of_row(i))

    def _add(self, row: Row, results: RoundResults) -> None:
        """Hands out the tokens of one row, and its result after its last round."""
        tokens = results.tokens[: results.count].tolist()
        stop = row.find_stop(tokens)
        row.add_rounds(results.rounds.tolist(), len(tokens[:stop]))
        is_over = stop is not None or bool(results.done)
        if is_over and not results.failed:
            self._memory.keep(row, tokens)
        outcome = _take_result(row, self._programs, self._generator, stop is not None) if is_over else None
        row.handle.add(tokens[:stop], row.rounds, results.logprobs, outcome)
        if is_over:
            self._scheduler.free(row)


def _take_result(row: Row, programs: Programs, generator: Generator, stopped: bool) -> Result | NumericsError:
    """The end of a request after its last round.

    Its slot is then empty. ``stopped``: a stop string ended it.
    """
    batch = row.handle.batch
    text = fetch(programs.release(row.slot))
    if stopped:  # what the rounds emitted after the stop string is no part of the text
        drafted, accepted, emitted = np.array(row.rounds).T
        end: Any = np.array([len(batch.prompts[0]) + emitted.sum() - 1])
        reached: Any = (accepted[:, None] > np.arange(text.counters.accepted_at.shape[1])).sum(0)[None]
        calls = np.array([len(row.rounds)])
        drafts = np.array([drafted.sum()])
        counters = text.counters.replace(calls=calls, drafted=drafts, accepted_at=reached)
        text = text.replace(cache=KVCache((), end), failed=np.array([False]), counters=counters)
    compiling = programs.compile_seconds - row.compiled
    try:
        decoded = Decoding(
            text,
            batch,
            prefill_seconds=row.prefill_seconds,
            decode_seconds=time.perf_counter() - row.began,
            compile_seconds=compiling,
        )
        (result,) = results_of(decoded, generator.target, generator.rule_name, generator.session, programs.count)
    except NumericsError as error:
        return error
    generator.remember([result])
    stats = dataclasses.replace(result.stats, cached_tokens=row.handle.cached_tokens)
    return dataclasses.replace(result, stats=stats)
