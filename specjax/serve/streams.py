"""Answers that are sent while their texts arrive, and clients that go away."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from ..engine import Handle
from ..errors import CancelledError
from .answers import Answer
from .dialect import Dialect
from .errors import error_of
from .gate import Gate, Job
from .request_schema import Common
from .turns import TurnForm

_PATIENCE, _LONGEST_PATIENCE = 1.0, 60.0
"""The seconds that a client may leave a full buffer unread: while others wait, and while not."""


async def while_connected(receive: Receive, work: Awaitable, *ends: Awaitable) -> Any:
    """What ``work`` gives.

    If the client goes away first, or one of ``ends`` comes, cancels it and raises CancelledError.
    """

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    watching = [asyncio.ensure_future(each) for each in (watch(), *ends)]
    try:
        await asyncio.wait((working, *watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise CancelledError("the client has gone")
        return working.result()
    finally:
        for task in (working, *watching):
            task.cancel()
        # asyncio logs errors that nobody has read
        await asyncio.gather(working, *watching, return_exceptions=True)


class Stream(StreamingResponse):
    """A stream of events. However it ends, its job leaves the gate.

    It ends when its client reads nothing for a while, so that the texts of others get its slots.

    Args:
      others_wait: whether a request waits for a slot.
    """

    def __init__(self, gate: Gate, job: Job, events: AsyncIterator[bytes], others_wait: Callable[[], bool]):
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._gate = gate
        self._job = job
        self._others_wait = others_wait
        self._blocked_since: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_timed(message: Message) -> None:
            self._blocked_since = time.monotonic()
            await send(message)
            self._blocked_since = None

        try:
            await while_connected(receive, self.stream_response(send_timed), self._no_reader())
        except CancelledError:  # nobody reads an error
            pass
        finally:
            self._gate.leave(self._job)

    async def _no_reader(self) -> None:
        """Returns when the client has read too little for too long."""
        while True:
            await asyncio.sleep(_PATIENCE / 4)
            seconds = 0 if self._blocked_since is None else time.monotonic() - self._blocked_since
            if seconds > _LONGEST_PATIENCE or (seconds > _PATIENCE and self._others_wait()):
                return


async def events(answer: Answer, body: Common, job: Job, dialect: Dialect) -> AsyncIterator[bytes]:
    """The events of a stream in a dialect, up to the mark of its end."""
    try:
        async for chunk in _all_chunks(answer, body, job):
            for one in dialect.write(chunk):
                yield one
        for one in dialect.end():
            yield one
    except Exception as error:
        yield dialect.fail(error_of(error))


async def _all_chunks(answer: Answer, body: Common, job: Job) -> AsyncIterator[dict]:
    """The chunks of a stream: its openings, its texts, and its usage if the request wants it."""
    wanted = body.stream_options
    with_usage = wanted is not None and bool(wanted.include_usage)
    always = wanted is not None and bool(wanted.continuous_usage_stats)
    extra = lambda: {"usage": answer.usage(job.handles) if always else None} if with_usage else {}
    for i in range(len(job.handles)):
        if answer.chat or answer.echoes[i // answer.samples]:
            yield answer.opening(i) | extra()
    async for chunk in _chunks(answer, job.handles, bool(body.specjax_rounds)):
        yield chunk | extra()
    if with_usage:
        yield answer.closing(job.handles)


async def _chunks(answer: Answer, handles: Sequence[Handle], figures: bool) -> AsyncIterator[dict]:
    """The chunks of all texts, as they arrive. Raises the first error of a text.

    A chunk is made when there is room for it. So a text whose chunks nobody takes keeps only its
    tokens, and its next chunk has all that is new.
    """
    arrived: asyncio.Queue[dict | BaseException | None] = asyncio.Queue(len(handles))

    async def follow(number: int, handle: Handle) -> None:
        reader = (answer.chat or TurnForm()).reader()
        told = 0

        async def put(delta: dict, **end) -> None:
            nonlocal told
            new = slice(told, len(handle.rounds))
            told = new.stop
            await arrived.put(answer.chunk(number, delta, handle, new, figures=figures, **end))

        try:
            async for piece in handle:
                for delta in reader.feed(piece) or ([{}] if figures else []):
                    await put(delta)
            result = await handle
            for delta in reader.end():
                await put(delta)
            await put({}, result=result, has_calls=reader.has_calls)
            await arrived.put(None)
        except Exception as error:
            await arrived.put(error)

    tasks = [asyncio.ensure_future(follow(i, handle)) for i, handle in enumerate(handles)]
    try:
        left = len(tasks)
        while left:
            item = await arrived.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
