"""The application: routes of the OpenAI protocol around a started engine."""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..checks import parse_json
from ..engine import Engine, Handle
from ..errors import CancelledError, SpecjaxError
from ..requests.chat import render_chat
from .answers import Answer, Spelling, event
from .errors import ServeError, error_of
from .gate import Gate, Job
from .metrics import Metrics
from .schema import Body, ChatRequest, Common, CompletionRequest, read_body

try:
    from fastapi import APIRouter, Depends, FastAPI, Request
    from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
    from prometheus_client import CONTENT_TYPE_LATEST
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.types import Receive, Scope, Send
except ImportError as error:
    raise ImportError(
        f"specjax.serve needs its packages ({error}); install them with pip install 'specjax[serve]'"
    ) from None

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
    _check_model(request, name)
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


def _check_model(request: Request, name: str) -> None:
    served = request.app.state.name
    if name != served:
        raise ServeError(
            404, f"there is no model {name!r}; this server has {served!r}", param="model", code="model_not_found"
        )


async def complete(request: Request) -> Response:
    """``/v1/completions``."""
    body = await _read(request, CompletionRequest)
    prompts = body.prompts
    echoes = [_text(request.app.state.engine, prompt) if body.echo else "" for prompt in prompts]
    return await _answer(request, body, [{"prompt": prompt} for prompt in prompts], body.options(), echoes)


async def chat(request: Request) -> Response:
    """``/v1/chat/completions``."""
    body = await _read(request, ChatRequest)
    engine: Engine = request.app.state.engine
    turns, options = body.turns, body.options()
    if not body.names_length:  # the protocol's default: what the context has room for
        length = len(await asyncio.to_thread(render_chat, engine.target.tokenizer, turns))
        room = min(engine.capacity - engine.generator.drafter.depth - 1, engine.target.config.context)
        options["max_new_tokens"] = max(room - length, 1)
    return await _answer(request, body, [{"messages": turns}], options, [""])


def _text(engine: Engine, prompt: str | list[int]) -> str:
    """A prompt as text. Tokens that the engine will refuse have none."""
    if isinstance(prompt, str):
        return prompt
    known = range(engine.target.config.vocab_size)
    return str(engine.target.tokenizer.decode([token for token in prompt if token in known]))


async def _read(request: Request, kind: type[Body]) -> Body:
    """The request, for the served model. Its body is read no further than its bound."""
    most, text = request.app.state.largest_body, bytearray()
    try:
        async for piece in request.stream():
            text += piece
            if len(text) > most:
                raise ServeError(413, f"the body has more than {most} bytes; shorten it, or raise the server's limit")
    except ClientDisconnect:
        raise ServeError(400, "the client has gone before the end of its body") from None
    body = read_body(kind, parse_json("the body", bytes(text)))
    _check_model(request, body.model)
    return body


async def _answer(
    request: Request, body: Common, prompts: list[dict], options: dict[str, Any], echoes: list[str]
) -> Response:
    """Submits ``n`` requests for each prompt, and answers them whole or as a stream."""
    state, samples, began = request.app.state, body.n or 1, time.perf_counter()
    if body.stream_options is not None and not body.stream:
        raise ServeError(400, "stream_options needs stream; set stream to true", param="stream_options")
    chatting = isinstance(body, ChatRequest)
    answer = Answer(state.spelling, state.name, chatting, options["seed"], echoes, samples)
    job = state.gate.enter(len(prompts) * samples)
    try:
        job.handles = await asyncio.to_thread(_submit, state.engine, prompts, samples, options)
        for handle in job.handles:
            state.metrics.follow(handle, began)
        if body.stream:
            return _Stream(state.gate, job, _events(answer, body, job))
        results = await _while_connected(request.receive, asyncio.gather(*map(_finish, job.handles)))
        found = JSONResponse(answer.whole(job.handles, results))
    except Exception as error:
        raise error_of(error) from error
    finally:
        if not body.stream or not job.handles:
            state.gate.leave(job)
    return found


def _submit(engine: Engine, prompts: list[dict], samples: int, options: dict) -> list[Handle]:
    """The handles of all texts; none is left in the engine if one is refused."""
    handles: list[Handle] = []
    try:
        for prompt in prompts:
            for sample in range(samples):
                handles.append(engine.submit(**prompt, sample=sample, **options))
    except Exception:
        for handle in handles:
            handle.cancel()
        raise
    return handles


async def _finish(handle: Handle):
    return await handle


async def _while_connected(receive: Receive, work: Awaitable) -> Any:
    """What ``work`` gives. If the client goes away first, cancels it and raises CancelledError."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(watch())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise CancelledError("the client has gone")
        return working.result()
    finally:
        working.cancel()
        watching.cancel()


class _Stream(StreamingResponse):
    """A stream of events. However it ends, its job leaves the gate."""

    def __init__(self, gate: Gate, job: Job, events: AsyncIterator[bytes]):
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._gate, self._job = gate, job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _while_connected(receive, self.stream_response(send))
        except CancelledError:  # nobody reads an error
            pass
        finally:
            self._gate.leave(self._job)


async def _events(answer: Answer, body: Common, job: Job) -> AsyncIterator[bytes]:
    """The events of a stream, up to the mark of its end."""
    with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    extra = {"usage": None} if with_usage else {}
    try:
        for i in range(len(job.handles)):
            if answer.chat or answer.echoes[i // answer.samples]:
                yield event(answer.opening(i) | extra)
        async for chunk in _chunks(answer, job.handles, bool(body.specjax_rounds)):
            yield event(chunk | extra)
        if with_usage:
            yield event(answer.closing(job.handles))
    except Exception as error:
        yield event(error_of(error).as_dict())
        return
    yield event("[DONE]")


async def _chunks(answer: Answer, handles: Sequence[Handle], rounds: bool) -> AsyncIterator[dict]:
    """The chunks of all texts, as they arrive. Raises the first error of a text."""
    arrived: asyncio.Queue[dict | BaseException | None] = asyncio.Queue()

    async def follow(number: int, handle: Handle) -> None:
        told = 0
        try:
            async for piece in handle:
                steps = slice(told, len(handle.steps))
                arrived.put_nowait(answer.chunk(number, piece, handle, steps, rounds=rounds))
                told = steps.stop
            result = await handle
            steps = slice(told, len(handle.steps))
            arrived.put_nowait(answer.chunk(number, "", handle, steps, rounds=rounds, end=result.finish_reason))
            arrived.put_nowait(None)
        except Exception as error:
            arrived.put_nowait(error)

    tasks = [asyncio.ensure_future(follow(i, handle)) for i, handle in enumerate(handles)]
    try:
        left = len(tasks)
        while left:
            found = await arrived.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                left -= 1
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
