"""The endpoints that make texts: a request is read, submitted to the engine, and answered."""

import asyncio
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from ..engine import Engine, Handle, Standing
from ..requests.chat import Conversation, render_chat
from ..requests.options import CONSTRAINTS
from ..requests.prompts import encode_prompts
from .answers import Answer
from .bodies import owner_of, read
from .chat_schema import ChatRequest
from .dialect import Dialect
from .errors import ServeError, error_of, out_of_time
from .gate import Job
from .messages import MessageBlocks, MessagesRequest
from .request_schema import Common, CompletionRequest
from .response_items import ResponseItems
from .responses import ResponsesRequest
from .streams import Stream, events, while_connected
from .thoughts import BEGIN, END
from .tools.choice import enforced_grammar
from .tools.formats import format_of
from .turns import TurnForm


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A request, ready for the engine.

    Attributes:
      prompts: for each prompt the arguments of ``Engine.submit`` that name it.
      options: the options of all prompts.
      echoes: for each prompt, the text before its answers.
      form: how the texts of a chat are read; None for completions.
    """

    prompts: list[dict[str, Any]]
    options: dict[str, Any]
    echoes: list[str]
    form: TurnForm | None = None

    @property
    def is_constrained(self) -> bool:
        """Whether the texts have a constraint, which may take seconds to compile."""
        return any(self.options.get(name) is not None for name in (*CONSTRAINTS, "response_format"))


async def complete(request: Request) -> Response:
    """Continues prompts, and scores their own tokens where ``echo`` and ``logprobs`` ask for it."""
    body = await read(request, CompletionRequest)
    state = request.app.state
    return await _answer(request, body, len(body.prompts), lambda: _prepare_texts(state, body), Dialect())


def _prepare_texts(state, body: CompletionRequest) -> Prepared:
    target = state.engine.target
    options = body.options(state.sampling)
    prompts = encode_prompts(body.prompts, target.tokenizer, target.config)
    for prompt in prompts:
        _check_length(body, len(prompt), longest(state.engine))
    text_of = lambda given, ids: given if isinstance(given, str) else str(target.tokenizer.decode(ids))
    echoes = [text_of(*pair) if body.echo else "" for pair in zip(body.prompts, prompts)]
    return Prepared([{"prompt": prompt} for prompt in prompts], options, echoes)


async def chat(request: Request) -> Response:
    """Answers a conversation, by the tokenizer's chat template."""
    return await _answer_chat(request, await read(request, ChatRequest), Dialect())


async def respond(request: Request) -> Response:
    """Answers a conversation in the form of OpenAI's responses."""
    body = await read(request, ResponsesRequest)
    return await _answer_chat(request, body.chat(), ResponseItems(body))


async def write_message(request: Request) -> Response:
    """Answers a conversation in the form of Anthropic's messages."""
    body = await read(request, MessagesRequest)
    if body.max_tokens is None:
        raise ServeError(400, "max_tokens is missing; give the most new tokens", param="max_tokens")
    return await _answer_chat(request, body.chat(), MessageBlocks(body))


async def count_tokens(request: Request) -> Response:
    """The number of tokens of a message's prompt."""
    chat = (await read(request, MessagesRequest)).chat()
    tokenizer = request.app.state.engine.target.tokenizer
    count = await asyncio.to_thread(lambda: len(render_chat(tokenizer, chat.conversation())))
    return JSONResponse({"input_tokens": count})


async def _answer_chat(request: Request, body: ChatRequest, dialect: Dialect) -> Response:
    state = request.app.state
    return await _answer(request, body, 1, lambda: _prepare_chat(state, body), dialect)


def _prepare_chat(state, body: ChatRequest) -> Prepared:
    options = body.options(state.sampling)
    asked = read_conversation(state.engine.target.tokenizer, body, options)
    room = longest(state.engine)
    _check_length(body, asked.length, room)
    if body.length is None:  # the protocol's default: what the context has room for
        options["max_new_tokens"] = min(max(room - asked.length, 1), state.sampling.get("max_new_tokens", room))
    return Prepared([{"messages": asked.conversation}], options | asked.options, [""], asked.form)


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
    request: Request, body: Common, prompts: int, prepare: Callable[[], Prepared], dialect: Dialect
) -> Response:
    """Submits ``n`` requests for each prompt, and answers them whole or as a stream.

    ``prepare`` runs in a thread after the gate has admitted the request.
    """
    state = request.app.state
    samples = body.n or 1
    began = time.perf_counter()
    if body.stream_options is not None and not body.stream:
        raise ServeError(400, "stream_options needs stream; set stream to true", param="stream_options")
    job = state.gate.enter(prompts * samples)
    stream = None
    try:
        async with asyncio.timeout(body.timeout) as limit:
            asked = await asyncio.to_thread(prepare)
            answer = Answer(state.spelling, state.name, asked.form, asked.options["seed"], asked.echoes, samples)
            standing = Standing(body.priority or 0, owner_of(request, body.user))
            submit = partial(_submit, state.engine, asked, samples, standing, job)
            await asyncio.get_running_loop().run_in_executor(state.compilers if asked.is_constrained else None, submit)
        if (end := limit.when()) is not None:
            job.deadline = asyncio.get_running_loop().call_at(end, job.cancel, out_of_time(body.timeout))
        for handle in job.handles:
            state.metrics.follow(handle, began)
            if state.traces is not None:
                state.traces.follow(handle, request.headers)
        if body.stream:
            parts = events(answer, body, job, dialect)
            stream = Stream(state.gate, job, parts, lambda: state.engine.num_waiting > 0)
            return stream
        results = await while_connected(request.receive, asyncio.gather(*map(_finish, job.handles)))
        return JSONResponse(dialect.whole(answer.whole(job.handles, results)))
    except TimeoutError:
        raise out_of_time(body.timeout).problem from None
    except Exception as error:
        raise error_of(error) from error
    finally:
        if stream is None:  # else it leaves at its end
            state.gate.leave(job)


def _submit(engine: Engine, asked: Prepared, samples: int, standing: Standing, job: Job) -> None:
    """Gives the handles of all texts to the job."""
    for prompt in asked.prompts:
        for sample in range(samples):
            job.add(engine.submit(**prompt, sample=sample, standing=standing, **asked.options))


async def _finish(handle: Handle):
    return await handle


@dataclasses.dataclass(frozen=True)
class Asked:
    """A conversation that is to be answered.

    Attributes:
      conversation: its turns.
      length: the number of the prompt's tokens.
      form: how the answer is read.
      options: the options that its tools need.
    """

    conversation: Conversation
    length: int
    form: TurnForm
    options: dict[str, Any]


def read_conversation(tokenizer, body: ChatRequest, options: dict[str, Any]) -> Asked:
    """The conversation of a request with ``options``.

    Raises ServeError and RequestError for a conversation that the chat template cannot render, for
    tools that it does not know, and for a constraint beside calls that must be made.
    """
    conversation = body.conversation()
    length = len(render_chat(tokenizer, conversation))
    constrained = [name for name in (*CONSTRAINTS, "response_format") if options.get(name) is not None]
    own: dict[str, Any] = {}
    calls = None
    if "tools" in conversation.arguments:
        calls = format_of(tokenizer, conversation)
        parallel = body.parallel_tool_calls is not False
        grammar = enforced_grammar(body.tools or [], body.choice, parallel, calls, tokenizer)
        if grammar is not None:
            if constrained:
                message = f"tool_choice demands calls, and {constrained[0]} another text; leave one out"
                raise ServeError(400, message, param="tool_choice")
            own = {"grammar": grammar}
    thinks = END in str(tokenizer.chat_template)
    # A constraint begins with the text, so a text that has one has no reasoning.
    is_open = thinks and not constrained and not own and conversation.text(tokenizer).rstrip().endswith(BEGIN)
    form = TurnForm(thinks, is_open, calls, calls is not None and calls.is_bare(tokenizer))
    return Asked(conversation, length, form, own)
