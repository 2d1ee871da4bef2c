"""The fields of a request with tools, and the grammar that they ask of the text."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..errors import ServeError
from .formats import ToolFormat

ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""llguidance's options for JSON as Python and chat templates write it."""


class Function(BaseModel):
    """A function that the model may call.

    Attributes:
      name: letters, digits, dots, dashes and underscores, at most 64.
      description: what it does, for the model.
      parameters: a JSON schema of its arguments; by default it has none.
    """

    model_config = ConfigDict(strict=True, extra="allow")
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """A tool in OpenAI's form."""

    model_config = ConfigDict(strict=True, extra="allow")
    type: Literal["function"]
    function: Function


class Named(BaseModel):
    """A function by its name."""

    model_config = ConfigDict(strict=True, extra="forbid")
    name: str


class NamedTool(BaseModel):
    """The tool that the model must call."""

    model_config = ConfigDict(strict=True, extra="forbid")
    type: Literal["function"]
    function: Named


ToolChoice = Literal["auto", "none", "required"] | NamedTool


def check_choice(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Raises ServeError for two tools of one name, and for a choice that names none of them."""
    names = [tool.function.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise ServeError(400, f"tools has two functions {name}; give each another name", param="tools")
    if not tools and choice not in ("auto", "none"):
        raise ServeError(400, "tool_choice needs tools; give them, or leave it out", param="tool_choice")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        message = f"tool_choice names {choice.function.name}, which is none of the tools; use {', '.join(names)}"
        raise ServeError(400, message, param="tool_choice")


def enforced_grammar(
    tools: Sequence[Tool], choice: ToolChoice, parallel: bool, form: ToolFormat, tokenizer
) -> str | None:
    """The grammar of the text where the request demands calls, else None.

    ``parallel``: whether there may be more calls than one.
    """
    if choice == "auto":
        return None
    functions = [tool.function.model_dump() for tool in tools]
    if isinstance(choice, NamedTool):
        functions = [one for one in functions if one["name"] == choice.function.name]
    several = parallel and choice == "required"
    return calls_grammar(form, functions, several=several, with_mark=not form.is_bare(tokenizer))


def plain_calls(calls: Sequence[dict[str, Any]], where: str) -> list[dict]:
    """The calls of an assistant's turn for a chat template, which wants arguments as objects.

    Raises ServeError, which begins with ``where``, for calls that are not in OpenAI's form.
    """
    plain = []
    for call in calls:
        function = call.get("function")
        try:
            arguments = json.loads(function["arguments"] or "{}") if isinstance(function, dict) else None
        except (KeyError, TypeError, ValueError):
            arguments = None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(arguments, dict) or not isinstance(function, dict) or not isinstance(name, str):
            problem = "a call of a tool needs a function with a name and arguments, an object as JSON text"
            raise ServeError(400, f"{where}: {problem}; mend it", param="messages")
        plain.append(call | {"function": function | {"arguments": arguments}})
    return plain


def calls_grammar(form: ToolFormat, functions: Sequence[Mapping], *, several: bool, with_mark: bool) -> str:
    """The grammar of texts that call one of ``functions``, in OpenAI's form, and nothing else.

    Args:
      several: whether there may be more calls than one.
      with_mark: whether the text shows the format's mark.
    """
    opening = (form.mark if with_mark else "") + form.opening
    more = f"({_literal(form.between)} call)*" if several else ""
    lines = [
        f"start: {_literal(opening)} call {more} {_literal(form.closing)}",
        f"call: {' | '.join(f'call{i}' for i in range(len(functions)))}",
    ]
    for i, function in enumerate(functions):
        schema = json.dumps(_closed(function.get("parameters") or {"type": "object"}) | {"x-guidance": _COMPACT})
        head = f'{{"name": {json.dumps(function["name"])}, "{form.arguments}": '
        lines += [f"call{i}: {_literal(head)} arguments{i} {_literal('}')}", f"arguments{i}: %json {schema}"]
    return "\n".join(lines)


def _closed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of arguments, without any that the function does not name.

    A schema in which another part may name them stays open.
    """
    if parameters.keys() & {"$ref", "allOf", "anyOf", "oneOf", "patternProperties", "additionalProperties"}:
        return dict(parameters)
    return {"properties": {}} | dict(parameters) | {"additionalProperties": False}


def _literal(text: str) -> str:
    """A text as Lark quotes it; the empty text is left out."""
    return json.dumps(text) if text else ""
