"""The two endpoints that make texts: a request is read, submitted to the engine, and answered."""

import asyncio
import time
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from ..core.read_files import parse_json
from ..engine import Engine, Handle
from ..requests.chat import render_chat
from .answers import Answer
from .errors import ServeError, error_of
from .schema import Body, ChatRequest, Common, CompletionRequest, read_body
from .streams import Stream, events, while_connected


async def complete(request: Request) -> Response:
    """``/v1/completions``."""
    body = await _read(request, CompletionRequest)
    prompts = body.prompts
    echoes = [_text(request.app.state.engine, prompt) if body.echo else "" for prompt in prompts]
    options = body.options(request.app.state.sampling)
    return await _answer(request, body, [{"prompt": prompt} for prompt in prompts], options, echoes)


async def chat(request: Request) -> Response:
    """``/v1/chat/completions``."""
    body = await _read(request, ChatRequest)
    engine: Engine = request.app.state.engine
    turns = body.turns
    sampling = request.app.state.sampling
    options = body.options(sampling)
    if not body.names_length:  # the protocol's default: what the context has room for
        length = len(await asyncio.to_thread(render_chat, engine.target.tokenizer, turns))
        room = min(engine.capacity - engine.generator.drafter.depth - 1, engine.target.config.context)
        options["max_new_tokens"] = min(max(room - length, 1), sampling.get("max_new_tokens", room))
    return await _answer(request, body, [{"messages": turns}], options, [""])


def _text(engine: Engine, prompt: str | list[int]) -> str:
    """A prompt as text. Tokens that the engine will refuse have none."""
    if isinstance(prompt, str):
        return prompt
    known = range(engine.target.config.vocab_size)
    return str(engine.target.tokenizer.decode([token for token in prompt if token in known]))


async def _read(request: Request, kind: type[Body]) -> Body:
    """The request, for the served model. Its body is read no further than its bound."""
    most = request.app.state.largest_body
    text = bytearray()
    try:
        async for piece in request.stream():
            text += piece
            if len(text) > most:
                raise ServeError(413, f"the body has more than {most} bytes; shorten it, or raise the server's limit")
    except ClientDisconnect:
        raise ServeError(400, "the client has gone before the end of its body") from None
    body = read_body(kind, parse_json("the body", bytes(text)))
    check_model(request, body.model)
    return body


async def _answer(
    request: Request, body: Common, prompts: list[dict], options: dict[str, Any], echoes: list[str]
) -> Response:
    """Submits ``n`` requests for each prompt, and answers them whole or as a stream."""
    state = request.app.state
    samples = body.n or 1
    began = time.perf_counter()
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
            return Stream(state.gate, job, events(answer, body, job))
        results = await while_connected(request.receive, asyncio.gather(*map(_finish, job.handles)))
        response = JSONResponse(answer.whole(job.handles, results))
    except Exception as error:
        raise error_of(error) from error
    finally:
        if not body.stream or not job.handles:
            state.gate.leave(job)
    return response


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


def check_model(request: Request, name: str) -> None:
    """Raises ServeError if a request names another model than the served one."""
    served = request.app.state.name
    if name != served:
        raise ServeError(
            404, f"there is no model {name!r}; this server has {served!r}", param="model", code="model_not_found"
        )
