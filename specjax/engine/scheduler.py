"""Which requests of an engine wait, which one is read, and which have a slot."""

import threading
import time
from typing import NamedTuple

from .constraints import Constraints
from .fair_queue import FairQueue
from .handle import Handle
from .prompt_reader import Row


class Changes(NamedTuple):
    """The changes between two steps.

    Attributes:
      arrivals: the arguments of each new request, see ``request.read_request``.
      over: the numbers of the cancelled requests in ``Scheduler.handles``, without new ones.
      cancelled: the handles of these requests.
    """

    arrivals: list[dict]
    over: list[int]
    cancelled: set[Handle]


class Scheduler:
    """Gives free slots to requests, in the order of a ``FairQueue``.

    ``add``, ``has_work``, ``num_running`` and ``num_waiting`` are for any thread, and all other
    functions for the thread that makes the engine's steps.

    Args:
      slots: the number of slots.
      constraints: where a request's constraint needs room.
      changed: the lock of the engine, see ``StepThread``.

    Attributes:
      reading: the row whose prompt is read, or None.
      is_paused: while it is true, no request begins. A thread that holds ``changed`` may set it.
    """

    def __init__(self, slots: int, constraints: Constraints, changed: threading.Condition):
        self.reading: Row | None = None
        self.is_paused = False
        self._slots: list[Row | None] = [None] * slots
        self._constraints = constraints
        self._changed = changed
        self._arrivals: list[tuple[Handle, dict]] = []
        self._waiting: FairQueue[Handle] = FairQueue()

    def add(self, handle: Handle, arguments: dict) -> None:
        """Adds a request to the queue; ``arguments``: see ``Changes.arrivals``."""
        with self._changed:
            self._arrivals.append((handle, arguments))
            self._changed.notify_all()

    @property
    def has_work(self) -> bool:
        """Whether a request waits, is being read or is being decoded."""
        return bool(self._arrivals or self._waiting or self.reading or any(self._slots))

    @property
    def num_running(self) -> int:
        """The number of requests that are read or decoded."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for a slot."""
        with self._changed:
            waiting = [*self._waiting, *(handle for handle, _ in self._arrivals)]
        return len([handle for handle in waiting if not handle.is_over])

    @property
    def rows(self) -> list[Row]:
        """The rows that are decoded, in the order of their slots."""
        return [row for row in self._slots if row is not None]

    @property
    def _running(self) -> list[Row]:
        """The requests that are read or decoded."""
        return [row for row in [self.reading, *self._slots] if row is not None]

    @property
    def handles(self) -> list[Handle]:
        """The requests that all processes have, in the same order."""
        return [*(row.handle for row in self._running), *self._waiting]

    def take_changes(self) -> Changes:
        """Puts new requests into the queue, and takes out those cancelled since the last step.

        Cancelled requests that are read or decoded keep their place until ``free`` or
        ``drop_reading``.
        """
        with self._changed:
            arrivals = [pair for pair in self._arrivals if not pair[0].is_over]
            self._arrivals = []
            handles = self.handles
            over = [i for i, handle in enumerate(handles) if handle.is_over]
            cancelled = {handles[i] for i in over}
            self._waiting.remove(cancelled)
            for handle, _ in arrivals:
                self._waiting.add(handle, handle.standing, handle.cost)
        return Changes([arguments for _, arguments in arrivals], over, cancelled)

    def take_next(self, compile_seconds: float) -> None:
        """Begins to read the next request of the queue.

        It needs a free slot, and room for its constraint.

        ``compile_seconds``: the engine's seconds of compilation so far.
        """
        with self._changed:
            if self.is_paused or self.reading is not None or not self._waiting or None not in self._slots:
                return
            handle = self._waiting.first
            state = self._constraints.hold(handle.constraint)
            if state is not None:
                self.reading = Row(handle, self._slots.index(None), state, compile_seconds)
                self._waiting.pop()
                handle.begins["read"] = time.perf_counter()

    def begin_decoding(self) -> None:
        """Puts the row that is read into its slot."""
        assert self.reading is not None
        self._slots[self.reading.slot] = self.reading  # before the next line, see ``num_running``
        self.reading = None

    def free(self, row: Row) -> None:
        """Gives the slot of a row, which is empty, to the next request."""
        self._constraints.release(row.handle.constraint)
        self._slots[row.slot] = None

    def drop_reading(self) -> None:
        """Ends the reading of a prompt."""
        assert self.reading is not None
        self._constraints.release(self.reading.handle.constraint)
        self.reading = None

    def clear(self) -> list[Handle]:
        """Forgets all requests. Returns their handles."""
        with self._changed:
            handles = [*self.handles, *(handle for handle, _ in self._arrivals)]
            self._waiting.clear()
            self._arrivals.clear()
        self.reading = None
        self._slots = [None] * len(self._slots)
        self._constraints.release_all()
        return handles
