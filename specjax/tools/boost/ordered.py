"""Requests of an engine whose results come in the order of the requests."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from ...engine.engine import Engine
from ...text.result import Result

_AHEAD = 2
"""The requests for each slot, those that run too, so that no slot is empty beside a long text."""


def write_in_order(engine: Engine, requests: Iterable[dict[str, Any]]) -> Iterator[Result]:
    """The results of requests, the arguments of ``Engine.submit``, in their order.

    Requests are taken as slots become free, so ``requests`` may be endless. A caller that stops
    early cancels the requests that are under way.
    """
    pending = deque()
    requests = iter(requests)
    try:
        while True:
            while len(pending) < _AHEAD * engine.slots and (request := next(requests, None)) is not None:
                pending.append(engine.submit(**request))
            if not pending:
                return
            while not pending[0].is_over:
                engine.step()
            yield pending.popleft().result()
    finally:
        for handle in pending:
            handle.cancel()
        if pending:
            engine.step()
