"""The compiled programs of an engine."""

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from ..core.logit_adjustments import RowConstraints
from ..loop.resting import Resting, resting_rule
from ..parallel import fetch
from ..rules.rule import as_rule
from . import row_subset, slots
from .prompt_programs import Program
from .slot_programs import SlotPrograms


class Launch(NamedTuple):
    """Rounds that the device runs.

    Attributes:
      rounds: their number.
      results: on the device.
      places: the rows of ``results`` of the running slots.
      began: the time of the launch, without its compilation.
      compiled: the engine's seconds of compilation so far.
    """

    rounds: int
    results: slots.RoundResults
    places: Sequence[int]
    began: float
    compiled: float


class Programs(SlotPrograms):
    """The slots of an engine, and the rounds that decode them.

    Each program is compiled at its first use, or ahead, see ``engine.warm_start``. Programs that
    read prompts have one version for each size of a chunk, a power of two. Rounds have one for each
    width, and until it is ready a plain one, in which the method rests.

    Args:
      given: the arguments of ``SlotPrograms``.
      most_rounds: the most rounds of one launch.
    """

    def __init__(self, *given, most_rounds: int, **sizes):
        super().__init__(*given, **sizes)
        self.most_rounds = most_rounds
        self._ended = 0.0  # the time of the newest results
        self._widening = threading.Lock()
        self._constrained: dict[Any, frozenset[int]] = {}  # the widths of compiled rounds, by the kind of constraints

    def launch(
        self, rounds: int, running: Sequence[int], constraints: RowConstraints | None = None, seeded: bool = False
    ) -> Launch:
        """Begins the next ``rounds`` rounds. The device may still run earlier ones.

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
            places = running
        else:
            some = self._copies.choose(running, width, self.count)
            results = self._advance_some(kind, rounds, some, constraints)
            places = [some.index(slot) for slot in running]
        began += self.compile_seconds - compiled
        return Launch(rounds, results, places, began, self.compile_seconds)

    def finish(self, launch: Launch) -> tuple[slots.RoundResults, float | None]:
        """The results of the running slots, on the host, and the seconds of the rounds.

        Waits for the device. Launches finish in their order. The seconds are None if a later launch
        has compiled a program meanwhile.
        """
        results = fetch(launch.results)
        began, self._ended = max(launch.began, self._ended), time.perf_counter()
        seconds = self._ended - began if launch.compiled == self.compile_seconds else None
        if (choices := results.choices) is not None and seconds is not None:
            all_rounds = int((results.rounds[..., 2] > 0).any(0).sum())
            self.session.learn(choices.rounds, all_rounds, int(choices.context), seconds, bool(choices.sampled))
        return results.of_rows(launch.places), seconds

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
        (self._state, results), self._pools = self._call(waits=False, **self._all_rounds(kind, rounds, constraints))
        self._copies.forget_all()
        return results

    def _all_rounds(self, kind: str, rounds: int, constraints: RowConstraints | None) -> dict[str, Any]:
        args = self._state, np.int32(rounds), *([] if constraints is None else [constraints])
        function = partial(slots.advance, **self._rounds_static(kind))
        layouts = (self._state_layout, self._whole), self._whole
        options: dict[str, Any] = dict(donated=(2,), key=(kind,), out_shardings=layouts)
        return self._lend(function, args, self._modules, self._pools, self.tables.copy(), **options)

    def _advance_some(
        self, kind: str, rounds: int, some: list[int], constraints: RowConstraints | None
    ) -> slots.RoundResults:
        """Runs rounds of the slots ``some``, in a state of so many rows.

        The results have their rows.
        """
        call = self._some_rounds(kind, rounds, some, constraints)
        ((self._state, self._narrow[len(some)]), results), self._pools = self._call(waits=False, **call)
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
