"""The two endpoints that make texts: a request is read, submitted to the engine, and answered."""

import asyncio
import time
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from ..engine import Engine, Handle
from ..requests.prompts import encode_prompts
from .answers import Answer
from .bodies import read
from .chat_schema import ChatRequest
from .conversations import read_conversation
from .errors import ServeError, error_of
from .schema import Common, CompletionRequest
from .streams import Stream, events, while_connected
from .turns import TurnForm


async def complete(request: Request) -> Response:
    """Continues prompts, and scores their own tokens where ``echo`` and ``logprobs`` ask for it."""
    body = await read(request, CompletionRequest)
    engine: Engine = request.app.state.engine
    tokenizer = engine.target.tokenizer
    options = body.options(request.app.state.sampling)
    prompts = await asyncio.to_thread(encode_prompts, body.prompts, tokenizer, engine.target.config)
    for prompt in prompts:
        _check_length(body, len(prompt), longest(engine))
    text_of = lambda given, ids: given if isinstance(given, str) else str(tokenizer.decode(ids))
    echoes = [text_of(*pair) if body.echo else "" for pair in zip(body.prompts, prompts)]
    return await _answer(request, body, [{"prompt": prompt} for prompt in prompts], options, echoes, None)


async def chat(request: Request) -> Response:
    """Answers a conversation, by the tokenizer's chat template."""
    body = await read(request, ChatRequest)
    engine: Engine = request.app.state.engine
    sampling = request.app.state.sampling
    options = body.options(sampling)
    asked = await asyncio.to_thread(read_conversation, engine.target.tokenizer, body, options)
    room = longest(engine)
    _check_length(body, asked.length, room)
    if body.length is None:  # the protocol's default: what the context has room for
        options["max_new_tokens"] = min(max(room - asked.length, 1), sampling.get("max_new_tokens", room))
    prompts = [{"messages": asked.conversation}]
    return await _answer(request, body, prompts, options | asked.options, [""], asked.form)


def longest(engine: Engine) -> int:
    """The most tokens of a prompt and its text together."""
    return min(engine.capacity - engine.generator.drafter.depth - 1, engine.target.config.context)


def _check_length(body: Common, prompt: int, room: int) -> None:
    """Raises ServeError where a prompt of so many tokens leaves too little room."""
    if body.length is None or not isinstance(body.length[1], int):  # the engine refuses what is no number
        return
    name, wanted = body.length
    if prompt + wanted > room:
        mend = f"ask for {room - prompt} at most, or shorten the prompt" if prompt < room else "shorten the prompt"
        raise ServeError(
            400,
            f"{name} is {wanted} and too large: the maximum context length is {room} tokens here, of which the prompt "
            f"has {prompt}; {mend}",
            param=name,
            code="context_length_exceeded",
        )


async def _answer(
    request: Request,
    body: Common,
    prompts: list[dict],
    options: dict[str, Any],
    echoes: list[str],
    form: TurnForm | None,
) -> Response:
    """Submits ``n`` requests for each prompt, and answers them whole or as a stream."""
    state = request.app.state
    samples = body.n or 1
    began = time.perf_counter()
    if body.stream_options is not None and not body.stream:
        raise ServeError(400, "stream_options needs stream; set stream to true", param="stream_options")
    answer = Answer(state.spelling, state.name, form, options["seed"], echoes, samples)
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
