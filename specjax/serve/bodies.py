"""Reads the bodies of requests up to their bound, and checks the model that they name."""

import hashlib
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from ..core.read_files import parse_json
from .errors import ServeError
from .request_schema import Body, read_body


async def read_json(request: Request) -> Any:
    """The body of a request, a value of JSON.

    Raises ServeError for a body that is too long or ends early, RequestError for one that is no
    JSON.
    """
    most = request.app.state.largest_body
    text = bytearray()
    try:
        async for piece in request.stream():
            text += piece
            if len(text) > most:
                raise ServeError(413, f"the body has more than {most} bytes; shorten it, or raise the server's limit")
    except ClientDisconnect:
        raise ServeError(400, "the client has gone before the end of its body") from None
    return parse_json("the body", bytes(text))


def key_of(request: Request) -> str:
    """The API key of a request, or an empty text."""
    headers = request.headers  # Anthropic's clients send the second one
    return headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")


def owner_of(request: Request, user: str | None) -> str:
    """A name for a user of an API key, which does not tell the key."""
    return hashlib.sha256(f"{key_of(request)}\0{user or ''}".encode(errors="replace")).hexdigest()


async def read(request: Request, kind: type[Body]) -> Body:
    """The request, for the served model."""
    body = read_body(kind, await read_json(request))
    name = getattr(body, "model", None)
    if name is not None:
        check_model(request, name)
    return body


def check_model(request: Request, name: str) -> None:
    """Raises ServeError if a request names another model than the served one."""
    served = request.app.state.name
    if name != served:
        raise ServeError(
            404, f"there is no model {name!r}; this server has {served!r}", param="model", code="model_not_found"
        )
