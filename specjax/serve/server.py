"""Runs the application: the port, and a graceful end at a signal."""

import asyncio
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn

import uvicorn
from fastapi import FastAPI

from ..errors import RequestError

DEADLINE = 30.0
"""The default seconds that accepted requests have after the first signal to stop."""

_LAST_BYTES = 5
"""The seconds in which answers that are complete must reach their clients."""

_IDLE = 60
"""Seconds after which the server closes an idle connection.

Clients close theirs earlier, the official one after 5.

If both did so at once, a request on that connection would find it closed.
"""


_UNREAD = 2**16
"""The bytes that the kernel keeps for a client that does not read them.

By default it would keep megabytes, which are the texts of minutes.
"""


def bind(host: str, port: int) -> socket.socket:
    """A socket; port 0 is any free port. Raises RequestError if it cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # For sockets of another protocol asyncio keeps Nagle's algorithm on, and small pieces of text
    # wait up to 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD)  # of all its connections
        bound.bind((host, port))
        bound.listen()  # two sockets that only bind could share a port
    except (OSError, ValueError, TypeError) as error:  # the last two for a host that is no text, or has a zero byte
        bound.close()
        reason = getattr(error, "strerror", None) or str(error)
        mend = "another with --port, or another --host"
        raise RequestError(f"port {port} of {host} cannot be used ({reason}); name {mend}") from None
    return bound


def run(
    app: FastAPI,
    bound: socket.socket,
    *,
    deadline: float = DEADLINE,
    delay: float = 0,
    ready: Callable[[], None],
    end_at_once: Callable[[int], NoReturn],
) -> None:
    """Serves the application until SIGTERM or Ctrl-C, and then until its requests are answered.

    After the first signal ``/health`` says so, and ``delay`` seconds later new requests get 503.
    After ``deadline`` further seconds the accepted requests that are left end with 503. A second
    signal ends the process by ``end_at_once``.

    Args:
      ready: called when the server answers.
      end_at_once: ends the process with an exit code, without waiting for the engine's thread.
    """
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=_LAST_BYTES, timeout_keep_alive=_IDLE
    )
    wakeup = signal.set_wakeup_fd(-1)  # whoever watches Ctrl-C there would end the process before the deadline
    try:
        drain = partial(app.state.gate.drain, deadline, delay)
        asyncio.run(_Server(config, drain, end_at_once).serve_with(bound, ready))
    finally:
        signal.set_wakeup_fd(wakeup)


class _Server(uvicorn.Server):
    """A server that drains its gate before it closes its port."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Awaitable], end_at_once: Callable[[int], NoReturn]):
        super().__init__(config)
        self._drain_gate = drain
        self._end_at_once = end_at_once
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task | None = None

    async def serve_with(self, bound: socket.socket, ready: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        with self.capture_signals():
            serving = asyncio.ensure_future(self._serve([bound]))
            while not self.started and not serving.done():
                await asyncio.sleep(0.01)
            if self.started:
                ready()
            await serving

    def handle_exit(self, sig: int, frame) -> None:
        if self._draining is not None or self._loop is None:
            self._end_at_once(128 + sig)
        print("specjax: stopping; a second signal ends at once", file=sys.stderr, flush=True)
        self._draining = self._loop.create_task(self._drain())
        self._loop.call_soon_threadsafe(lambda: None)  # wakes the loop

    async def _drain(self) -> None:
        await self._drain_gate()
        self.should_exit = True
