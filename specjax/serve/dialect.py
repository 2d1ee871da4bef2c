"""The form in which an answer leaves the server, whole or as the events of a stream."""

import json
from collections.abc import Iterator
from typing import Any

from .errors import ServeError


class Dialect:
    """Writes one answer in the form of ``/v1/chat/completions`` and ``/v1/completions``.

    A subclass translates these answers and chunks into the form of another protocol.
    """

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The body of an answer. ``answer``: that of ``Answer.whole``."""
        return answer

    def write(self, chunk: dict[str, Any]) -> Iterator[bytes]:
        """The events of a chunk of ``Answer``."""
        yield event(chunk)

    def end(self) -> Iterator[bytes]:
        """The events after the last chunk."""
        yield event("[DONE]")

    def fail(self, problem: ServeError) -> bytes:
        """The last event of a stream that ends with an error."""
        return event(problem.as_dict())


def event(value: dict | str, name: str | None = None) -> bytes:
    """A server-sent event, with a name where the protocol gives it one."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()
