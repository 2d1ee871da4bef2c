"""Which requests of an engine wait, which one is read, and which have a slot."""

import threading
import time
from collections.abc import Sequence
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


class RowMemory:
    """The memory of rows. In fixed slots each row has its own, and nothing is to do.

    Attributes:
      shares: whether rows that begin alike share memory.
    """

    shares = False

    @property
    def usage(self) -> float | None:
        """The share of the memory that rows use; None where it is that of their positions."""
        return None

    def begin(self, row: Row, reading: Sequence[Row]) -> bool:
        """Whether there is memory to read the row's text. Then the row has it.

        It also waits for memory that it will share with rows that are being read.
        """
        return True

    def release(self, row: Row) -> None:
        """Takes the memory of a row back."""

    def keep(self, row: Row, new: Sequence[int]) -> None:
        """Keeps what a row in a slot holds for later rows that begin alike.

        ``new``: tokens that its text lacks yet.
        """

    def clear(self) -> None:
        """Forgets all rows, and the texts that it keeps for others."""

    def has_room(self, rows: Sequence[Row], rounds: int) -> bool:
        """Whether there is memory for so many rounds of running rows."""
        return True

    def make_room(self, scheduler: "Scheduler", rounds: int) -> None:
        """Gives running rows memory for the next rounds. The youngest rows may have to wait."""


class Scheduler:
    """Gives free slots to requests, in the order of a ``FairQueue``.

    ``add``, ``has_work``, ``num_running`` and ``num_waiting`` are for any thread, and all other
    functions for the thread that makes the engine's steps.

    Args:
      slots: the number of slots.
      constraints: where a request's constraint needs room.
      memory: where a row needs room.
      changed: the lock of the engine, see ``StepThread``.
      most: the most prompts that are read together.

    Attributes:
      reading: the rows whose prompts are read, in the order in which they began.
      is_paused: while it is true, no request begins. A thread that holds ``changed`` may set it.
    """

    def __init__(
        self, slots: int, constraints: Constraints, memory: RowMemory, changed: threading.Condition, most: int = 1
    ):
        self.reading: list[Row] = []
        self.is_paused = False
        self._slots: list[Row | None] = [None] * slots
        self._suspended: list[Row] = []
        self._begun = 0
        self._constraints = constraints
        self._memory = memory
        self._changed = changed
        self._most = most
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
        return bool(self._arrivals or self._waiting or self.running)

    @property
    def num_running(self) -> int:
        """The number of requests that are read or decoded."""
        return len(self.running)

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
    def running(self) -> list[Row]:
        """The requests that are read or decoded, or will be again, see ``suspend``."""
        return [*self.reading, *self.rows, *self._suspended]

    @property
    def num_unread(self) -> int:
        """The number of requests that are read, or will be without waiting for a row's end."""
        return len(self.reading) + min(len(self._free), len(self._waiting) + len(self._suspended))

    @property
    def unread_tokens(self) -> int | None:
        """The tokens that are left of the prompts that are read.

        It is None if the next chunk may read another prompt.
        """
        may_grow = len(self.reading) < min(self.num_unread, self._most)
        return None if may_grow else sum(row.unread for row in self.reading)

    @property
    def _free(self) -> list[int]:
        """The slots that no row has or will have after its prompt is read."""
        taken = [row.slot for row in self.reading]
        return [i for i, row in enumerate(self._slots) if row is None and i not in taken]

    @property
    def handles(self) -> list[Handle]:
        """The requests that all processes have, in the same order."""
        return [*(row.handle for row in self.running), *self._waiting]

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
            for row in [row for row in self._suspended if row.handle in cancelled]:
                self._suspended.remove(row)
                self._constraints.release(row.handle.constraint)
            for handle, _ in arrivals:
                self._waiting.add(handle, handle.standing, handle.cost)
        return Changes([arguments for _, arguments in arrivals], over, cancelled)

    def take_next(self, compile_seconds: float) -> None:
        """Begins to read the next requests of the queue. Suspended ones come first.

        A request needs a free slot, and room for its constraint and for its text.

        ``compile_seconds``: the engine's seconds of compilation so far.
        """
        with self._changed:
            while len(self.reading) < self._most and self._free:
                begins = self._read_again() if self._suspended else self._read_first(compile_seconds)
                if not begins:
                    return

    def _read_first(self, compile_seconds: float) -> bool:
        """Whether the first request of the queue begins to be read."""
        if self.is_paused or not self._waiting:
            return False
        handle = self._waiting.first
        state = self._constraints.hold(handle.constraint)
        if state is None:
            return False
        row = Row(handle, self._free[0], state, compile_seconds, self._begun)
        if not self._memory.begin(row, self.reading):
            self._constraints.release(handle.constraint)
            return False
        self.reading.append(row)  # before it leaves the queue, see ``has_work``
        self._begun += 1
        self._waiting.pop()
        handle.begins["read"] = time.perf_counter()
        return True

    def _read_again(self) -> bool:
        """Whether the oldest suspended row begins to be read again."""
        row = min(self._suspended, key=lambda row: row.age)
        if not self._memory.begin(row, self.reading):
            return False
        row.slot = self._free[0]
        self.reading.append(row)
        self._suspended.remove(row)
        return True

    def suspend(self, row: Row) -> None:
        """Takes a row out of its place. It is read again before other requests begin."""
        self._suspended.append(row)
        row.filled = row.drafted = None
        if row in self.reading:
            row.handle.drop_scores()
            self.reading.remove(row)
        else:
            self._slots[row.slot] = None

    def begin_decoding(self, row: Row) -> None:
        """Puts a row that is read into its slot."""
        self._slots[row.slot] = row  # before the next line, see ``num_running``
        self.reading.remove(row)

    def free(self, row: Row) -> None:
        """Gives the slot of a row, which is empty, to the next request."""
        self._constraints.release(row.handle.constraint)
        self._memory.release(row)
        self._slots[row.slot] = None

    def drop_reading(self, row: Row) -> None:
        """Ends the reading of a prompt."""
        self._constraints.release(row.handle.constraint)
        self._memory.release(row)
        self.reading.remove(row)

    def clear(self) -> list[Handle]:
        """Forgets all requests. Returns their handles."""
        with self._changed:
            handles = [*self.handles, *(handle for handle, _ in self._arrivals)]
            self._waiting.clear()
            self._arrivals.clear()
        self.reading = []
        self._slots = [None] * len(self._slots)
        self._suspended = []
        self._constraints.release_all()
        return handles
