"""A request on its way from the front to a replica. This module does not need Ray."""

import dataclasses
import json
from typing import Any

from starlette.requests import Request

_SCOPE = "type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers"
_PROMPT = "system", "instructions", "prompt", "messages", "input"


@dataclasses.dataclass(frozen=True)
class Routed:
    """A request of HTTP that Ray can send.

    Attributes:
      scope: the request without its body, as ASGI has it.
      body: its bytes.
      prompt: the text by which Ray's router compares requests; empty where there is none.
    """

    scope: dict[str, Any]
    body: bytes
    prompt: str


async def read_routed(request: Request, largest_body: int) -> Routed:
    """Reads a request. Of a body over ``largest_body`` it reads enough for its refusal."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > largest_body:
            break
    scope = {name: request.scope[name] for name in _SCOPE if name in request.scope}
    return Routed(scope, bytes(body), prompt_of(bytes(body)))


def prompt_of(body: bytes) -> str:
    """The texts of the prompt in a body; its numbers if it is of tokens; empty without a prompt."""
    try:
        fields = json.loads(body)
        return _text([fields.get(name) for name in _PROMPT]) if isinstance(fields, dict) else ""
    except (ValueError, RecursionError):  # the replica refuses the body
        return ""


def _text(value: Any) -> str:
    if isinstance(value, dict):  # a message, or a part of one
        return _text([value.get("content"), value.get("text")])
    if isinstance(value, list):
        return "".join(map(_text, value))
    return "" if value is None else str(value)
