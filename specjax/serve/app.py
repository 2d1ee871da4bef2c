"""The application: its routes, its key and its errors, around a started engine."""

import hmac
import time
from functools import partial
from pathlib import Path

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from ..engine import Engine
from ..errors import SpecjaxError
from .answers import Spelling
from .endpoints import chat, check_model, complete
from .errors import ServeError, error_of
from .gate import Gate
from .metrics import Metrics

QUEUE = 256
"""The default number of texts that wait beside the running ones."""

PAGE = Path(__file__).with_name("page.html")

LARGEST_BODY = 2**20
"""The default bound of a body in bytes."""


def make_app(
    engine: Engine,
    *,
    name: str,
    api_key: str | None = None,
    queue: int = QUEUE,
    largest_body: int = LARGEST_BODY,
) -> FastAPI:
    """The application of a started engine.

    Its ``state`` has ``engine``, ``gate``, ``name``, ``largest_body`` and ``metrics``.

    Args:
      name: the name of the model in the protocol.
      api_key: the key that requests to ``/v1`` need; by default none.
      queue: the most texts that wait beside those in the engine's slots. Further ones get 429.
      largest_body: the most bytes of a body. A larger one gets 413.
    """
    app = FastAPI(title="specjax", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.engine, app.state.name, app.state.largest_body = engine, name, largest_body
    app.state.gate, app.state.began = Gate(engine.slots + queue), int(time.time())
    app.state.spelling, app.state.metrics = Spelling(engine.target), Metrics(engine, name)
    app.include_router(_routes(api_key))
    app.add_api_route("/", show_page, methods=["GET"])
    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/metrics", show_metrics, methods=["GET"])
    app.add_exception_handler(Exception, _answer_error)
    for kind in (ServeError, SpecjaxError):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    return app


def _routes(api_key: str | None) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(partial(_check_key, api_key))])
    router.add_api_route("/models", list_models, methods=["GET"])
    router.add_api_route("/models/{name:path}", show_model, methods=["GET"])
    router.add_api_route("/completions", complete, methods=["POST"])
    router.add_api_route("/chat/completions", chat, methods=["POST"])
    return router


async def _check_key(api_key: str | None, request: Request) -> None:
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if api_key is not None and not hmac.compare_digest(given.encode(), api_key.encode()):
        message = "the API key is missing or wrong; send the header Authorization: Bearer KEY"
        raise ServeError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


async def _answer_error(request: Request, error: Exception) -> Response:
    found = error_of(error)
    return JSONResponse(found.as_dict(), found.status, found.headers)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    routes = "/v1/completions, /v1/chat/completions, /v1/models, /health, /metrics and the page at /"
    messages = {
        404: f"there is no {request.url.path}; use {routes}",
        405: f"{request.url.path} does not take {request.method}; use another method",
    }
    found = ServeError(error.status_code, messages.get(error.status_code, str(error.detail)))
    return JSONResponse(found.as_dict(), found.status, error.headers)


async def health(request: Request) -> Response:
    """200 while the server takes requests, 503 while it stops or when the engine's thread has ended."""
    state = request.app.state
    if state.gate.is_stopping or not state.engine.is_started:
        raise ServeError(503, "the server stops and takes no new requests; send them to another server")
    return JSONResponse({"status": "ok"})


async def show_page() -> Response:
    """A page on which a person types a prompt and watches its text arrive, with drafted tokens marked."""
    return FileResponse(PAGE)


async def show_metrics(request: Request) -> Response:
    """The figures of all requests in Prometheus' text format."""
    return Response(request.app.state.metrics.page(), media_type=CONTENT_TYPE_LATEST)


async def list_models(request: Request) -> Response:
    """The one model of the server."""
    return JSONResponse({"object": "list", "data": [_model(request)]})


async def show_model(request: Request, name: str) -> Response:
    """The model with this name."""
    check_model(request, name)
    return JSONResponse(_model(request))


def _model(request: Request) -> dict:
    state = request.app.state
    length = min(state.engine.capacity, state.engine.target.config.context)
    return {
        "id": state.name,
        "object": "model",
        "created": state.began,
        "owned_by": "specjax",
        "max_model_len": length,
    }
