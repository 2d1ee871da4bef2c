"""The application: its routes, its key and its errors, around a started engine."""

import dataclasses
import hmac
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

try:
    import uvicorn  # noqa: F401  ``server`` needs it
    from fastapi import APIRouter, Depends, FastAPI, Request
    from fastapi.responses import FileResponse, JSONResponse, Response
    from prometheus_client import CONTENT_TYPE_LATEST
    from starlette.exceptions import HTTPException
except ImportError as error:
    raise ImportError(
        f"specjax.serve needs its packages ({error}); install them with pip install 'specjax[serve]'"
    ) from None

from .. import __version__
from ..engine import Engine
from ..errors import SpecjaxError
from .bodies import check_model, key_of
from .chat_schema import ChatRequest
from .endpoints import chat, complete, count_tokens, longest, respond, write_message
from .errors import ServeError, error_of
from .gate import Gate
from .logprobs import Spelling
from .messages import MessagesRequest, error_body
from .metrics import Metrics
from .options import ServerOptions
from .request_schema import CompletionRequest
from .responses import ResponsesRequest
from .tokens import DetokenizeRequest, TokenizeRequest, describe_tokenizer, detokenize, tokenize

_BODIES = CompletionRequest, ChatRequest, ResponsesRequest, MessagesRequest, TokenizeRequest, DetokenizeRequest
PAGE = Path(__file__).with_name("page.html")

_PLACE = "#/components/schemas/{model}"


def make_app(
    engine: Engine, options: ServerOptions | None = None, *, compiling: Callable[[], int] = lambda: 0, **keywords
) -> FastAPI:
    """The application of a started engine.

    Its ``state`` has ``engine``, ``gate``, ``name``, ``sampling``, ``largest_body``, ``metrics``
    and ``traces``.

    Args:
      compiling: the number of programs that are still compiled, see ``engine.WarmStart``.
      keywords: fields of ``ServerOptions``, which replace those of ``options``.
    """
    options = dataclasses.replace(options or ServerOptions(), **keywords)
    name = options.name or engine.target.name
    app = FastAPI(title="specjax", redoc_url=None)
    describe(app, _BODIES, __version__)
    app.state.engine = engine
    app.state.name = name
    app.state.sampling = engine.target.sampling if options.generation_config == "auto" else {}
    app.state.largest_body = options.largest_body
    app.state.gate = Gate(engine.slots + options.queue)
    app.state.compilers = ThreadPoolExecutor(1, "specjax constraints")  # so that other requests do not wait
    app.state.began = int(time.time())
    app.state.spelling = Spelling(engine.target)
    app.state.compiling = compiling
    app.state.metrics = Metrics(engine, name, compiling)
    app.state.traces = _traces(options.traces, name)
    app.include_router(_routes(options.api_key))
    app.add_api_route("/", show_page, methods=["GET"])
    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/version", show_version, methods=["GET"])
    app.add_api_route("/metrics", show_metrics, methods=["GET"])
    app.add_exception_handler(Exception, _answer_error)
    for kind in (ServeError, SpecjaxError):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    return app


def _traces(address: str | None, name: str):
    """The ``Traces`` that go to an address, or None without one."""
    if address is None:
        return None
    from .traces import Traces  # an extra of its own

    return Traces.to_collector(address, name)


def _routes(api_key: str | None) -> APIRouter:
    """The routes that need the key."""
    router = APIRouter(dependencies=[Depends(partial(_check_key, api_key))])
    router.add_api_route("/v1/models", list_models, methods=["GET"])
    router.add_api_route("/v1/models/{name:path}", show_model, methods=["GET"])
    router.add_api_route("/v1/completions", complete, **with_body(CompletionRequest))
    router.add_api_route("/v1/chat/completions", chat, **with_body(ChatRequest))
    router.add_api_route("/v1/responses", respond, **with_body(ResponsesRequest))
    router.add_api_route(
        "/v1/responses/{name:path}", find_response, methods=["GET", "POST", "DELETE"], include_in_schema=False
    )
    router.add_api_route("/v1/messages", write_message, **with_body(MessagesRequest))
    router.add_api_route("/v1/messages/count_tokens", count_tokens, **with_body(MessagesRequest))
    router.add_api_route("/tokenize", tokenize, **with_body(TokenizeRequest))
    router.add_api_route("/detokenize", detokenize, **with_body(DetokenizeRequest))
    router.add_api_route("/tokenizer_info", describe_tokenizer, methods=["GET"])
    return router


async def _check_key(api_key: str | None, request: Request) -> None:
    if api_key is not None and not hmac.compare_digest(key_of(request).encode(), api_key.encode()):
        message = "the API key is missing or wrong; send the header Authorization: Bearer KEY"
        raise ServeError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


async def _answer_error(request: Request, error: Exception) -> Response:
    problem = error_of(error)
    body = error_body(problem) if request.url.path.startswith("/v1/messages") else problem.as_dict()
    return JSONResponse(body, problem.status, problem.headers)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    routes = "/v1/chat/completions, /v1/completions, /v1/models, the other routes at /docs, or the page at /"
    messages = {
        404: f"there is no {request.url.path}; use {routes}",
        405: f"{request.url.path} does not take {request.method}; use another method",
    }
    problem = ServeError(error.status_code, messages.get(error.status_code, str(error.detail)))
    return JSONResponse(problem.as_dict(), problem.status, error.headers)


async def find_response(name: str) -> Response:
    """Refuses to find an answer of the past."""
    raise ServeError(404, "the server keeps no responses; send the conversation to /v1/responses", param="response_id")


async def health(request: Request) -> Response:
    """200 while the server takes requests, else 503.

    It is 503 while the server stops, and when the engine's thread has ended. While faster programs
    are compiled, "compiling" has their number.
    """
    state = request.app.state
    if state.gate.is_draining or not state.engine.is_started:
        problem = ServeError(503, "the server stops and takes no new requests; send them to another server")
        status = "draining" if state.gate.is_draining else "stopped"
        return JSONResponse({"status": status} | problem.as_dict(), problem.status)
    compiling = state.compiling()
    return JSONResponse({"status": "ok"} | ({"compiling": compiling} if compiling else {}))


async def show_version() -> Response:
    """The version of specjax."""
    return JSONResponse({"version": __version__})


async def show_page() -> Response:
    """A page that shows a text as it arrives, with drafted tokens marked."""
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
    return {
        "id": state.name,
        "object": "model",
        "created": state.began,
        "owned_by": "specjax",
        "root": state.engine.target.name,
        "parent": None,
        "max_model_len": longest(state.engine),
    }


def with_body(kind: type[BaseModel]) -> dict[str, Any]:
    """The arguments of a route whose body is ``kind``."""
    content = {"application/json": {"schema": {"$ref": _PLACE.format(model=kind.__name__)}}}
    return {"methods": ["POST"], "openapi_extra": {"requestBody": {"required": True, "content": content}}}


def describe(app: FastAPI, kinds: tuple[type[BaseModel], ...], version: str) -> None:
    """Gives the application a description that has the fields of ``kinds``."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title="specjax", version=version, routes=app.routes)
            _, schemas = models_json_schema([(kind, "validation") for kind in kinds], ref_template=_PLACE)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi
