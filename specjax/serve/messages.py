"""``/v1/messages``: Anthropic's protocol, as a translation of conversations."""

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from .chat_schema import ChatRequest
from .dialect import Dialect, event
from .errors import ServeError
from .request_schema import WITH_USAGE, PositiveInt, read_body

_LACKING = "container", "mcp_servers", "context_management", "speed", "n"
_HARMLESS = "service_tier", "inference_geo", "cache_control", "diagnostics"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessagesRequest(BaseModel):
    """The body of ``/v1/messages``. Other fields are those of ``/v1/chat/completions``.

    Attributes:
      model: the name of the served model.
      messages: turns of text or of blocks. A last turn of the assistant is continued.
      max_tokens: the most new tokens; only ``/v1/messages/count_tokens`` needs none.
      system: the system's text, or its blocks.
      tools: functions with a schema of their arguments.
      tool_choice: an object whose type is "auto", "any", "none" or "tool".
      stop_sequences: strings that end the text.
      output_config: its ``format`` is a JSON schema of the text.
      thinking: "adaptive" or "disabled" as its type, for templates with ``enable_thinking``.
      metadata: ``user_id`` is the user.
      stream: whether the answer is a stream of events.
    """

    model_config = ConfigDict(strict=True, extra="allow")
    model: str
    messages: list[dict[str, Any]]
    max_tokens: PositiveInt | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    output_config: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    stream: bool | None = None

    def chat(self) -> ChatRequest:
        """The same request as a conversation. Raises ServeError for what the server lacks."""
        extra = {name: value for name, value in (self.model_extra or {}).items() if value is not None}
        for name in _LACKING:
            if extra.pop(name, None):
                raise ServeError(400, f"{name} is not supported; leave it out", param=name, code="unsupported_field")
        turns = [{"role": "system", "content": _text(self.system, "system")}] if self.system else []
        for i, message in enumerate(self.messages):
            turns += _turns(message, f"messages[{i}]")
        continues = bool(turns) and turns[-1]["role"] == "assistant"
        fields: dict[str, Any] = {name: extra[name] for name in extra if name not in _HARMLESS}
        fields |= {"model": self.model, "messages": turns, "max_tokens": self.max_tokens, "stream": self.stream}
        fields["stream_options"] = WITH_USAGE if self.stream else None
        fields |= {"stop": self.stop_sequences, "user": (self.metadata or {}).get("user_id")}
        fields |= {"continue_final_message": continues, "response_format": self._format(), **self._tools()}
        return read_body(ChatRequest, fields | self._thinking())

    def _tools(self) -> dict[str, Any]:
        tools = []
        for i, tool in enumerate(self.tools or ()):
            if tool.get("type") not in (None, "custom") or "input_schema" not in tool:
                message = f"tools[{i}] is no function with an input_schema; leave it out"
                raise ServeError(400, message, param="tools")
            function = {name: tool[name] for name in ("name", "description") if name in tool}
            tools.append({"type": "function", "function": function | {"parameters": tool["input_schema"]}})
        wish = self.tool_choice or {"type": "auto"}
        choice = _CHOICES.get(wish.get("type", ""))
        named = {"type": "function", "function": {"name": wish.get("name")}}
        if choice is None and wish.get("type") != "tool":
            raise ServeError(400, "tool_choice needs a type: auto, any, none or tool", param="tool_choice")
        parallel = False if wish.get("disable_parallel_tool_use") else None
        chosen = {} if self.tool_choice is None else {"tool_choice": choice or named}
        return {"tools": tools or None, "parallel_tool_calls": parallel, **chosen}

    def _thinking(self) -> dict[str, Any]:
        kind = (self.thinking or {}).get("type")
        if kind not in (None, "adaptive", "disabled"):
            message = "thinking has no budget here; use the type adaptive or disabled, and bound max_tokens"
            raise ServeError(400, message, param="thinking", code="unsupported_field")
        return {} if kind is None else {"chat_template_kwargs": {"enable_thinking": kind == "adaptive"}}

    def _format(self) -> dict[str, Any] | None:
        config = {name: value for name, value in (self.output_config or {}).items() if value is not None}
        form = config.pop("format", None)
        if config:
            message = f"output_config.{min(config)} is not supported; leave it out"
            raise ServeError(400, message, param="output_config", code="unsupported_field")
        if isinstance(form, dict) and form.get("type") == "json_schema":
            return {"type": "json_schema", "json_schema": {"name": "text", "schema": form.get("schema")}}
        return form


def _turns(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The turns of a message: the results of tools come before its text."""
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise ServeError(400, f"{where} needs a text or blocks as its content; mend it", param="messages")
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    texts: list[Any] = []
    thoughts = ""
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_result":
            turn = {"role": "tool", "tool_call_id": block.get("tool_use_id")}
            results.append(turn | {"content": _text(block.get("content") or "", where)})
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": json.dumps(block.get("input"))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "thinking":
            thoughts += str(block.get("thinking", ""))
        elif kind != "redacted_thinking":
            texts.append(block)
    turn: dict[str, Any] = {"role": message.get("role"), "content": _text(texts, where)}
    turn |= ({"tool_calls": calls} if calls else {}) | ({"reasoning_content": thoughts} if thoughts else {})
    return results if results and not texts else [*results, turn]


def _text(content: str | Sequence[dict[str, Any]], where: str) -> str:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block in blocks:
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            kind = block.get("type") if isinstance(block, dict) else None
            raise ServeError(400, f"{where} has a block of type {kind}; give texts only", param="messages")
    return "".join(block["text"] for block in blocks)


def error_body(problem: ServeError) -> dict[str, Any]:
    """The body of an error."""
    kind = _ERRORS.get(problem.status, "api_error" if problem.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": problem.message}}


class MessageBlocks(Dialect):
    """Writes an answer as a message: blocks of text, of thinking and of calls."""

    def __init__(self, body: MessagesRequest):
        self._head = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": body.model}
        self._blocks: list[dict[str, Any]] = []
        self._is_open = False
        self._end_of_text: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        self._last: dict[str, Any] = {}

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        (choice,) = answer["choices"]
        for _ in self._add(choice["message"]):
            pass
        self._read_end(choice)
        for call in self._blocks:
            if call["type"] == "tool_use":
                call["input"] = json.loads(call["input"] or "{}")
        own = {"content": self._blocks, **self._end_of_text, "usage": _usage(answer["usage"])}
        return self._head | own | {"specjax": answer["specjax"]}

    def write(self, chunk: dict[str, Any]) -> Iterator[bytes]:
        if not self._last:
            begun = self._head | {"content": [], **self._end_of_text, "usage": _usage(chunk["usage"])}
            yield _event("message_start", message=begun)
        self._last = chunk
        for choice in chunk["choices"]:
            yield from self._add(choice["delta"])
            if choice["finish_reason"]:
                self._read_end(choice)

    def end(self) -> Iterator[bytes]:
        yield from self._close()
        own = {"usage": _usage(self._last["usage"]), "specjax": self._last["specjax"]}
        yield _event("message_delta", delta=self._end_of_text, **own)
        yield _event("message_stop")

    def fail(self, problem: ServeError) -> bytes:
        return event(error_body(problem), "error")

    def _read_end(self, choice: dict[str, Any]) -> None:
        reason, stop = _REASONS[choice["finish_reason"]], choice.get("stop_reason")
        if reason == "end_turn" and isinstance(stop, str):
            self._end_of_text = {"stop_reason": "stop_sequence", "stop_sequence": stop}
        else:
            self._end_of_text = {"stop_reason": reason, "stop_sequence": None}

    def _add(self, delta: dict[str, Any]) -> Iterator[bytes]:
        """Adds a delta of OpenAI's streams to the blocks."""
        for name, kind in (("reasoning_content", "thinking"), ("content", "text")):
            if delta.get(name):
                if not self._is_open or self._blocks[-1]["type"] != kind:
                    yield from self._open({"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {}))
                yield self._grow(kind, f"{kind}_delta", kind, delta[name])
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                yield from self._open({"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}})
                self._blocks[-1]["input"] = ""
            if function["arguments"]:
                yield self._grow("input", "input_json_delta", "partial_json", function["arguments"])

    def _grow(self, field: str, kind: str, name: str, piece: str) -> bytes:
        self._blocks[-1][field] += piece
        return _event("content_block_delta", index=len(self._blocks) - 1, delta={"type": kind, name: piece})

    def _open(self, block: dict[str, Any]) -> Iterator[bytes]:
        yield from self._close()
        self._blocks.append(block)
        self._is_open = True
        yield _event("content_block_start", index=len(self._blocks) - 1, content_block=block)

    def _close(self) -> Iterator[bytes]:
        if self._is_open:
            self._is_open = False
            yield _event("content_block_stop", index=len(self._blocks) - 1)


def _usage(usage: dict[str, Any]) -> dict[str, int]:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    read = {"input_tokens": usage["prompt_tokens"] - cached, "cache_read_input_tokens": cached}
    return read | {"cache_creation_input_tokens": 0, "output_tokens": usage["completion_tokens"]}


def _event(kind: str, **fields) -> bytes:
    return event({"type": kind} | fields, kind)
