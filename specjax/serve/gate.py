"""How much work the server holds: a bounded number of texts, and its end."""

import asyncio
from collections.abc import Sequence

from ..engine import Handle
from .errors import ServeError

RETRY_AFTER = 1
"""The seconds after which a client that found the queue full may try again."""


class Job:
    """The texts of one request of HTTP, from its admission to the end of its answer.

    Attributes:
      count: the number of texts.
      handles: the requests of the engine, after they were submitted.
    """

    def __init__(self, count: int):
        self.count = count
        self.handles: Sequence[Handle] = ()

    def cancel(self) -> None:
        """Ends the requests of the engine. Those that are over keep their results."""
        for handle in self.handles:
            handle.cancel()


class Gate:
    """Admits requests while the server has room and does not stop. Only the event loop calls it.

    Args:
      room: the most texts that the server holds, running and waiting together.

    Attributes:
      is_stopping: whether new requests are refused.
    """

    def __init__(self, room: int):
        self.room = room
        self.is_stopping = False
        self._jobs: set[Job] = set()

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
            after = {"Retry-After": str(RETRY_AFTER)}
            message = f"the queue is full, with {self.count} of {self.room} texts; try again in {RETRY_AFTER} s"
            raise ServeError(429, message, code="queue_full", headers=after)
        job = Job(count)
        self._jobs.add(job)
        return job

    def leave(self, job: Job) -> None:
        """Ends a request, whether it was answered or its client has gone."""
        job.cancel()
        self._jobs.discard(job)

    async def drain(self, deadline: float) -> None:
        """Refuses new requests, and returns when all others were answered.

        After ``deadline`` seconds the requests that are left are cancelled.
        """
        self.is_stopping = True
        end = asyncio.get_running_loop().time() + deadline
        while self._jobs:
            if asyncio.get_running_loop().time() >= end:
                for job in self._jobs:
                    job.cancel()
            await asyncio.sleep(0.05)
