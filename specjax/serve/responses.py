"""The requests of ``/v1/responses``, OpenAI's newer protocol, as conversations."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from .chat_schema import ChatRequest
from .errors import ServeError
from .request_schema import WITH_USAGE, PositiveInt, read_body

_STATEFUL = "previous_response_id", "conversation", "prompt"
_LACKING: dict[str, Any] = {
    "background": False,
    "context_management": [],
    "include": [],
    "max_tool_calls": None,
    "moderation": None,
    "n": 1,
    "reasoning": {},
    "top_logprobs": 0,
    "truncation": "disabled",
}
"""Fields that the server lacks, with the values that ask for nothing."""

_ASSISTANT = {"role": "assistant"}
_TEXTS = "input_text", "output_text", "text", "reasoning_text"


class ResponsesRequest(BaseModel):
    """The body of ``/v1/responses``. Other fields are those of ``/v1/chat/completions``.

    Attributes:
      model: the name of the served model.
      input: the user's text, or the items of a conversation.
      instructions: the system's text before it.
      tools: functions, with their fields beside ``type``.
      tool_choice: "auto", "none", "required", or a function by its name.
      text: its ``format`` is a JSON schema of the text.
      max_output_tokens: the most new tokens.
      stream: whether the answer is a stream of events.
    """

    model_config = ConfigDict(strict=True, extra="allow")
    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    max_output_tokens: PositiveInt | None = None
    stream: bool | None = None

    def chat(self) -> ChatRequest:
        """The same request as a conversation. Raises ServeError for what the server lacks."""
        extra = {name: value for name, value in (self.model_extra or {}).items() if value is not None}
        for name in extra.keys() & set(_STATEFUL):
            message = f"{name} is not supported, because the server keeps no answers; send the conversation as input"
            raise ServeError(400, message, param=name, code="unsupported_field")
        for name, nothing in _LACKING.items():
            value = extra.pop(name, nothing)
            if value != nothing and any(value.values() if isinstance(value, dict) else [value]):
                raise ServeError(400, f"{name} is not supported; leave it out", param=name, code="unsupported_field")
        form = dict(self.text or {})
        response_format = _response_format(form.pop("format", None))
        fields: dict[str, Any] = {"messages": self._messages(), "tools": self._tools(), "tool_choice": self._choice()}
        fields |= {"max_completion_tokens": self.max_output_tokens, "response_format": response_format}
        fields |= {"model": self.model, "stream": self.stream, "stream_options": WITH_USAGE if self.stream else None}
        return read_body(_Chat, extra | form | fields)

    def _messages(self) -> list[dict[str, Any]]:
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        turns: list[dict[str, Any]] = []
        if self.instructions:
            turns.append({"role": "system", "content": self.instructions})
        for i, item in enumerate(items):
            turn = _turn(item, f"input[{i}]")
            if turns and turns[-1]["role"] == turn["role"] == "assistant":  # the items of one turn
                turn = _joined(turns.pop(), turn)
            turns.append(turn)
        return turns

    def _tools(self) -> list[dict[str, Any]] | None:
        for i, tool in enumerate(self.tools or ()):
            if tool.get("type") != "function":
                message = f"tools[{i}] is no function, and no other tools are supported; leave it out"
                raise ServeError(400, message, param="tools")
        functions = [{name: each[name] for name in each if name != "type"} for each in self.tools or ()]
        return [{"type": "function", "function": function} for function in functions] or None

    def _choice(self) -> str | dict[str, Any] | None:
        if not isinstance(self.tool_choice, dict):
            return self.tool_choice
        if self.tool_choice.get("type") != "function":
            raise ServeError(400, "tool_choice is none of auto, none, required and a function", param="tool_choice")
        return {"type": "function", "function": {"name": self.tool_choice.get("name")}}


class _Chat(ChatRequest):
    """The conversation, whose length has the protocol's name in messages of errors."""

    @property
    def length(self) -> tuple[str, Any] | None:
        most = self.max_completion_tokens
        return super().length if most is None else ("max_output_tokens", most)


def _response_format(form: Any) -> dict[str, Any] | None:
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}


def _turn(item: dict[str, Any], where: str) -> dict[str, Any]:
    """The turn, or the part of an assistant's turn, that an item of the input tells."""
    kind = item.get("type", "message")
    if kind == "message":
        return {"role": item.get("role"), "content": _text(item.get("content"), where)}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return _ASSISTANT | {"content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        content = _text(item.get("output"), where)
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
    if kind == "reasoning":
        return _ASSISTANT | {"content": "", "reasoning_content": _text(item.get("content") or "", where)}
    raise ServeError(400, f"{where} is a {kind}, which is not supported; leave it out", param="input")


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """One turn of two: texts after texts, and calls after calls."""
    return first | {name: first[name] + second[name] if name in first else second[name] for name in second} | _ASSISTANT


def _text(content: Any, where: str) -> str:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(
        isinstance(part, dict) and part.get("type") in _TEXTS and isinstance(part.get("text"), str) for part in parts
    ):
        raise ServeError(400, f"{where} has a part that is no text; give texts only", param="input")
    return "".join(part["text"] for part in parts)
