"""Requests of the OpenAI protocol, and their translation into options of specjax.

Both endpoints also take every option of ``requests.options.Options`` by its own name. The body of
``/v1/chat/completions`` is in ``chat_schema``.
"""

import dataclasses
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..core.checks import LARGEST
from ..errors import RequestError
from ..requests.limits import MOST_SAMPLES
from ..requests.options import MOST_LOGPROBS, Options
from ..requests.other_libraries import rename_options
from .errors import ServeError

OPTIONS = {field.name for field in dataclasses.fields(Options)} | {"min_tokens"}
"""The options of specjax, and vLLM's name of one of them."""

HARMLESS = frozenset(
    "store metadata service_tier safety_identifier prompt_cache_key prompt_cache_retention prediction "
    "parallel_tool_calls request_id guided_decoding_backend".split()
)
"""Fields of the protocol and of vLLM that change no text. The server accepts and ignores them."""

REFUSED: dict[str, Any] = dict.fromkeys("functions audio reasoning_effort verbosity web_search_options".split()) | {
    "tools": [],
    "tool_choice": "none",
    "function_call": "none",
    "modalities": ["text"],
    "suffix": "",
    "best_of": 1,
    "use_beam_search": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
}
"""Fields that change the text and are not supported, with the values that ask for nothing."""

_GUIDED = {"json": "json_schema", "regex": "regex", "choice": "choices", "grammar": "grammar"}
"""vLLM's names of constraints, with those of ``Options``."""

_DEFAULTS = {"temperature": 1.0}
"""The protocol's defaults that differ from those of ``Options``."""

Body = TypeVar("Body", bound=BaseModel)
Samples = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
PositiveInt = Annotated[int, Field(ge=1)]
MOST_SECONDS = 86400
"""The longest ``timeout`` of a request."""

Seed = Annotated[int, Field(ge=0, lt=2**32)]


class StreamOptions(BaseModel):
    """What a stream sends beside the text.

    Attributes:
      include_usage: whether a last chunk has the usage.
      continuous_usage_stats: whether all other chunks have the usage so far, too.
      include_obfuscation: accepted and ignored.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


WITH_USAGE = {"include_usage": True, "continuous_usage_stats": True}
"""The ``StreamOptions`` of a stream whose chunks all have the usage."""


class StructuredOutputs(BaseModel):
    """Constraints of the text under vLLM's names. One of them may be given.

    Attributes:
      json_schema: a JSON schema, under the name ``json``.
      regex: a regular expression.
      choice: strings of which the text is one.
      grammar: a grammar.
      json_object: whether the text is an object of JSON.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    json_schema: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def options(self) -> dict[str, Any]:
        """The options of specjax."""
        fields = self.model_dump(by_alias=True)
        constraints = {option: fields[name] for name, option in _GUIDED.items() if fields[name] is not None}
        any_object = {"json_schema": {"type": "object"}} if self.json_object else {}
        return any_object | constraints


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
      user: the name of whoever asks. Waiting requests of all users get equal shares of the slots.
      priority: requests with a lower number begin earlier.
      timeout: the seconds after which the request ends with an error.
      response_format: a JSON schema of the text, in OpenAI's form.
      structured_outputs: constraints of the text, in vLLM's form.
      guided_json, guided_regex, guided_choice, guided_grammar: the same in vLLM's older form.
    """

    model_config = ConfigDict(strict=True, extra="allow")
    model: str
    n: Samples | None = None
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    specjax_rounds: bool | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    user: str | None = None
    priority: Annotated[int, Field(ge=-LARGEST, le=LARGEST)] | None = None
    timeout: Annotated[float, Field(gt=0, le=MOST_SECONDS)] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    def options(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The options for the engine, under the names that ``Options.of`` takes.

        ``defaults``: the options that the served model recommends.

        Raises ServeError for a field that changes the text and that the server does not have.
        """
        extras = {name: value for name, value in (self.model_extra or {}).items() if value is not None}
        for name in extras:
            if name in REFUSED and extras[name] not in (REFUSED[name], []):
                raise ServeError(400, f"{name} is not supported; leave it out", param=name, code="unsupported_field")
            if name not in OPTIONS | HARMLESS | REFUSED.keys():
                raise ServeError(400, f"the field {name} is unknown; leave it out", param=name, code="unknown_field")
        defaults = {name: value for name, value in defaults.items() if name != "max_new_tokens"}
        options = _DEFAULTS | defaults | {name: value for name, value in extras.items() if name in OPTIONS}
        for name in ("max_tokens", "response_format", "seed"):
            if getattr(self, name) is not None:
                options[name] = getattr(self, name)
        return {"seed": secrets.randbits(32)} | options | self._constraints(options)

    def _constraints(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The constraints under vLLM's names, as options.

        Raises RequestError for one that is among ``options`` already.
        """
        guided = {option: getattr(self, f"guided_{name}") for name, option in _GUIDED.items()}
        guided = {option: value for option, value in guided.items() if value is not None}
        structured = {} if self.structured_outputs is None else self.structured_outputs.options()
        for option in guided.keys() | structured.keys():
            if sum(option in source for source in (rename_options(options), guided, structured)) > 1:
                raise RequestError(f"{option} is given under two names; give one of them")
        return guided | structured

    @property
    def length(self) -> tuple[str, Any] | None:
        """The field that says how many new tokens the request wants, and its value; or None."""
        values = (("max_tokens", self.max_tokens), ("max_new_tokens", (self.model_extra or {}).get("max_new_tokens")))
        return next((pair for pair in values if pair[1] is not None), None)


class CompletionRequest(Common):
    """The body of ``/v1/completions``.

    Attributes:
      prompt: a text, token ids, or a list of these.
      echo: whether the texts begin with their prompts.
      logprobs: the number of likeliest tokens whose log-probabilities the answer has. With ``echo``
        it has those of the prompt's tokens, too, and ``max_tokens`` may be 0.
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
        if self.scores_prompt and self.stream:
            raise ServeError(400, "echo with logprobs has no stream; leave out one of the three", param="echo")
        if self.max_tokens == 0 and not self.scores_prompt:
            message = "max_tokens is 0, which only scores a prompt; add echo and logprobs, or ask for 1 at least"
            raise ServeError(400, message, param="max_tokens")
        options = super().options(defaults)
        if self.length is None:
            options["max_new_tokens"] = defaults.get("max_new_tokens", 16)  # the protocol's default
        if self.scores_prompt:
            options["prompt_logprobs"] = self.logprobs
        return options | ({} if self.logprobs is None else {"logprobs": self.logprobs})

    @property
    def scores_prompt(self) -> bool:
        """Whether the answer has the log-probabilities of the prompt's tokens."""
        return bool(self.echo) and self.logprobs is not None


def read_body(kind: type[Body], body: Any) -> Body:
    """The request in a value of JSON. Raises ServeError with the field where it is none."""
    if not isinstance(body, dict):
        raise ServeError(400, "the body must be a JSON object")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else None
        path = ".".join(str(part) for part in first["loc"]) or "the body"
        raise ServeError(400, f"{path}: {first['msg']}; mend this field", param=name) from None
