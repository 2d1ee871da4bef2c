"""Requests of the OpenAI protocol, and their translation into options of specjax.

Both endpoints also take every option of ``requests.options.Options`` by its own name.
"""

import dataclasses
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..requests.limits import MOST_SAMPLES
from ..requests.options import MOST_LOGPROBS, Options
from .errors import ServeError

OPTIONS = {field.name for field in dataclasses.fields(Options)}
"""The options of specjax."""

HARMLESS = frozenset(
    "user store metadata service_tier safety_identifier prompt_cache_key prompt_cache_retention prediction "
    "parallel_tool_calls".split()
)
"""Fields of the protocol that change no text. The server accepts and ignores them."""

REFUSED = frozenset(
    "tools tool_choice functions function_call audio modalities reasoning_effort verbosity web_search_options suffix "
    "best_of".split()
)
"""Fields of the protocol that change the text, and that the server does not have."""

_NEUTRAL = ([], "none", ["text"], 1)
"""Values with which a field of ``REFUSED`` asks for nothing."""

_DEFAULTS = {"temperature": 1.0}
"""The protocol's defaults that differ from those of ``Options``."""

Body = TypeVar("Body", bound="Common")
Samples = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
Number = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class StreamOptions(BaseModel):
    """What a stream sends beside the text.

    Attributes:
      include_usage: whether a last chunk has the usage.
      include_obfuscation: accepted and ignored.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Common(BaseModel):
    """The fields that both endpoints have.

    Attributes:
      model: the name of the served model.
      n: the number of texts for each prompt.
      seed: the seed of the random numbers; by default a random one, which the answer names.
      stream: whether the answer is a stream of events.
      stream_options: see ``StreamOptions``.
      specjax_rounds: whether the chunks of a stream have the figures of each round.
      max_tokens: the most new tokens of each text.
      response_format: a JSON schema of the text, in OpenAI's form.
    """

    model_config = ConfigDict(strict=True, extra="allow")
    model: str
    n: Samples | None = None
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    specjax_rounds: bool | None = None
    max_tokens: Number | None = None
    response_format: dict[str, Any] | None = None

    def options(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The options for the engine, under the names that ``Options.of`` takes.

        ``defaults``: the options that the served model recommends.

        Raises ServeError for a field that changes the text and that the server does not have.
        """
        extras = {name: value for name, value in (self.model_extra or {}).items() if value is not None}
        for name in extras:
            if name in REFUSED and extras[name] not in _NEUTRAL:
                raise ServeError(400, f"{name} is not supported; leave it out", param=name, code="unsupported_field")
            if name not in OPTIONS | HARMLESS | REFUSED:
                raise ServeError(400, f"the field {name} is unknown; leave it out", param=name, code="unknown_field")
        defaults = {name: value for name, value in defaults.items() if name != "max_new_tokens"}
        options = _DEFAULTS | defaults | {name: value for name, value in extras.items() if name in OPTIONS}
        for name in ("max_tokens", "response_format", "seed"):
            if getattr(self, name) is not None:
                options[name] = getattr(self, name)
        return {"seed": secrets.randbits(32)} | options

    @property
    def names_length(self) -> bool:
        """Whether the request says how many new tokens it wants."""
        return self.max_tokens is not None or (self.model_extra or {}).get("max_new_tokens") is not None


class CompletionRequest(Common):
    """The body of ``/v1/completions``.

    Attributes:
      prompt: a text, token ids, or a list of these.
      echo: whether the texts begin with their prompts.
      logprobs: the number of likeliest tokens whose log-probabilities the answer has.
    """

    prompt: str | list[int] | list[str] | list[list[int]]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None

    @property
    def prompts(self) -> list:
        """The prompts, each a text or token ids."""
        if [] in (self.prompt, *self.prompt):
            message = "prompt holds an empty list; give a text, token ids or a list of these"
            raise ServeError(400, message, param="prompt")
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else list(self.prompt)

    def options(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        if self.echo and self.logprobs is not None:
            raise ServeError(
                400, "echo has no log-probabilities of the prompt; leave out echo or logprobs", param="echo"
            )
        options = super().options(defaults)
        if not self.names_length:
            options["max_new_tokens"] = defaults.get("max_new_tokens", 16)  # the protocol's default
        return options | ({} if self.logprobs is None else {"logprobs": self.logprobs})


class Message(BaseModel):
    """A turn of a conversation.

    Attributes:
      role: the speaker.
      content: the text, or its parts, objects such as {"type": "text", "text": "..."}.
    """

    model_config = ConfigDict(strict=True, extra="allow")
    role: str
    content: str | list[dict[str, Any]]

    def turn(self, number: int) -> dict[str, str]:
        """The turn with one text.

        Raises ServeError for parts that are no text, and for calls of tools.
        """
        name = f"messages[{number}]"
        extra = {key: value for key, value in (self.model_extra or {}).items() if value not in (None, [])}
        for key in extra.keys() - {"name"}:
            raise ServeError(400, f"{name} has {key}, which is not supported; leave it out", param="messages")
        parts = [{"type": "text", "text": self.content}] if isinstance(self.content, str) else self.content
        if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in parts):
            raise ServeError(400, f"{name} has a part that is no text; give texts only", param="messages")
        return {"role": self.role, "content": "".join(part["text"] for part in parts), **extra}


class ChatRequest(Common):
    """The body of ``/v1/chat/completions``.

    Attributes:
      messages: the conversation.
      max_completion_tokens: the most new tokens of each text, the newer name of ``max_tokens``.
      logprobs: whether the answer has log-probabilities.
      top_logprobs: with ``logprobs``, the number of likeliest tokens at each place.
    """

    messages: list[Message]
    max_completion_tokens: Number | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None

    @property
    def turns(self) -> list[dict[str, str]]:
        """The conversation."""
        return [message.turn(i) for i, message in enumerate(self.messages)]

    def options(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        if self.top_logprobs is not None and not self.logprobs:
            raise ServeError(400, "top_logprobs needs logprobs; set logprobs to true", param="top_logprobs")
        options = super().options(defaults)
        if self.max_completion_tokens is not None:
            if super().names_length:
                raise ServeError(
                    400, "max_completion_tokens and max_tokens are one option; give one", param="max_completion_tokens"
                )
            options["max_new_tokens"] = self.max_completion_tokens
        return options | ({"logprobs": self.top_logprobs or 0} if self.logprobs else {})

    @property
    def names_length(self) -> bool:
        return super().names_length or self.max_completion_tokens is not None


def read_body(kind: type[Body], body: Any) -> Body:
    """The request in a value of JSON.

    Raises ServeError, which names the field, where it is none.
    """
    if not isinstance(body, dict):
        raise ServeError(400, "the body must be a JSON object")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else None
        path = ".".join(str(part) for part in first["loc"]) or "the body"
        raise ServeError(400, f"{path}: {first['msg']}; mend this field", param=name) from None
