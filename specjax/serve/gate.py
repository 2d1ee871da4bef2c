"""How much work the server holds: a bounded number of texts, and its end."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable

from ..engine import Handle
from ..errors import CancelledError
from .errors import EndedError, ServeError

_WINDOW = 60.0
"""The seconds over which the pace of texts is measured."""

_LONGEST_WAIT = 600
"""The most seconds after which a client is told to try again."""


class Job:
    """The texts of one request of HTTP, from its admission to the end of its answer.

    Attributes:
      count: the number of texts.
      handles: the requests of the engine, as far as they were submitted.
      deadline: ends them in time, or None.
    """

    def __init__(self, count: int):
        self.count = count
        self.handles: list[Handle] = []
        self.deadline: asyncio.TimerHandle | None = None
        self._end: CancelledError | None = None

    def add(self, handle: Handle) -> None:
        """Adds a request of the engine. Any thread may call this, also after the job's end."""
        self.handles.append(handle)
        if self._end is not None:
            handle.cancel(self._end)

    def cancel(self, reason: CancelledError | None = None) -> None:
        """Ends the requests of the engine. Those that are over keep their results."""
        self._end = reason or CancelledError("the request was cancelled")
        for handle in self.handles:
            handle.cancel(reason)


class Gate:
    """Admits requests while the server has room and does not stop. Only the event loop calls it.

    Args:
      room: the most texts that the server holds, running and waiting together.
      clock: gives seconds.

    Attributes:
      is_draining: whether the server is about to stop, and says so.
      is_stopping: whether new requests are refused.
    """

    def __init__(self, room: int, clock: Callable[[], float] = time.monotonic):
        self.room = room
        self.is_draining = False
        self.is_stopping = False
        self._clock = clock
        self._jobs: set[Job] = set()
        self._ended: deque[tuple[float, int]] = deque()

    @property
    def count(self) -> int:
        """The number of texts that the server holds."""
        return sum(job.count for job in self._jobs)

    def enter(self, count: int) -> Job:
        """Admits a request for ``count`` texts.

        Raises ServeError with status 400 for more texts than the server ever holds, 429 while there
        is no room, and 503 while the server stops.
        """
        if self.is_stopping:
            raise ServeError(503, "the server stops and takes no new requests; send it to another server")
        if count > self.room:
            raise ServeError(
                400, f"the request asks for {count} texts and the server holds {self.room}; ask for fewer", param="n"
            )
        if self.count + count > self.room:
            seconds = self.wait_for(self.count + count - self.room)
            message = f"the queue is full, with {self.count} of {self.room} texts; try again in {seconds} s"
            raise ServeError(429, message, code="queue_full", headers={"Retry-After": str(seconds)})
        job = Job(count)
        self._jobs.add(job)
        return job

    def wait_for(self, count: int) -> int:
        """The seconds until ``count`` texts have ended, at the pace of the last minute."""
        now = self._clock()
        self._forget(now)
        ended = sum(texts for _, texts in self._ended)
        if not ended:
            return 1
        return min(max(math.ceil(count * (now - self._ended[0][0]) / ended), 1), _LONGEST_WAIT)

    def leave(self, job: Job) -> None:
        """Ends a request, whether it was answered or its client has gone."""
        if job.deadline is not None:
            job.deadline.cancel()
        job.cancel()
        if job in self._jobs:
            self._jobs.discard(job)
            self._ended.append((self._clock(), job.count))
            self._forget(self._clock())

    def _forget(self, now: float) -> None:
        while self._ended and self._ended[0][0] < now - _WINDOW:
            self._ended.popleft()

    async def drain(self, deadline: float, delay: float = 0) -> None:
        """Refuses new requests, and returns when all others were answered.

        For ``delay`` seconds before, ``is_draining`` is true and requests are still taken.
        ``deadline`` seconds after the refusal the requests that are left are cancelled.
        """
        self.is_draining = True
        await asyncio.sleep(delay)
        self.is_stopping = True
        end = asyncio.get_running_loop().time() + deadline
        stop = EndedError(503, "the server stops, and its deadline ended this request; send it to another server")
        while self._jobs:
            if asyncio.get_running_loop().time() >= end:
                for job in self._jobs:
                    job.cancel(stop)
            await asyncio.sleep(0.05)
