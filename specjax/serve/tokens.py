"""The endpoints about tokens, in the forms of vLLM."""

import asyncio
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from ..core.checks import check_text
from ..requests.chat import render_chat
from ..requests.options import read_tokens
from .bodies import read
from .chat_schema import ChatRequest
from .endpoints import longest
from .errors import ServeError
from .request_schema import read_body


class TokenizeRequest(BaseModel):
    """The body of ``/tokenize``: a prompt, or ``messages`` with the fields of a chat about them.

    Attributes:
      model: the name of the served model.
      prompt: a text.
      add_special_tokens: whether a prompt gets the special tokens of its begin.
      return_token_strs: whether the answer has the tokens as texts, too.
    """

    model_config = ConfigDict(strict=True, extra="allow")
    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = None


class DetokenizeRequest(BaseModel):
    """The body of ``/detokenize``: the ids of tokens."""

    model_config = ConfigDict(strict=True, extra="forbid")
    model: str | None = None
    tokens: list[int] = Field(max_length=2**20)


async def tokenize(request: Request) -> Response:
    """The token ids of a prompt or of a conversation."""
    body = await read(request, TokenizeRequest)
    state = request.app.state
    tokenizer = state.engine.target.tokenizer
    extra = body.model_extra or {}
    if (body.prompt is None) == ("messages" not in extra):
        raise ServeError(400, "give prompt or messages, one of the two", param="prompt")
    if body.prompt is None:
        conversation = read_body(ChatRequest, {"model": state.name, **extra}).conversation()
        ids = await asyncio.to_thread(render_chat, tokenizer, conversation)
    else:
        text = check_text(body.prompt, "prompt")
        ids = await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=body.add_special_tokens)
    texts = tokenizer.convert_ids_to_tokens(ids) if body.return_token_strs else None
    answer = {"count": len(ids), "max_model_len": longest(state.engine), "tokens": ids, "token_strs": texts}
    return JSONResponse(answer)


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    body = await read(request, DetokenizeRequest)
    target = request.app.state.engine.target
    ids = read_tokens("tokens", body.tokens, target.config.vocab_size).tolist()
    return JSONResponse({"prompt": await asyncio.to_thread(target.tokenizer.decode, ids)})


async def describe_tokenizer(request: Request) -> Response:
    """The tokenizer's special tokens and its chat template."""
    tokenizer = request.app.state.engine.target.tokenizer
    answer: dict[str, Any] = {name: getattr(tokenizer, name, None) for name in ("bos_token", "eos_token", "pad_token")}
    answer |= {"tokenizer_class": type(tokenizer).__name__, "chat_template": tokenizer.chat_template}
    return JSONResponse(answer)
