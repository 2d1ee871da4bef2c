"""The answers of ``/v1/responses``, whole or as events."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

from .dialect import Dialect, event
from .errors import ServeError
from .responses import ResponsesRequest

_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""The types of the texts in items."""


class ResponseItems(Dialect):
    """Writes an answer as a response: items of text, of reasoning and of calls."""

    def __init__(self, body: ResponsesRequest):
        echo = body.model_dump(exclude={"input", "stream"}, exclude_none=True)
        self._head = {"object": "response", "id": _id("resp"), "created_at": int(time.time()), "model": body.model}
        self._head |= {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "metadata": {}} | echo
        self._head |= {"store": False, "error": None, "incomplete_details": None}
        self._output: list[dict[str, Any]] = []
        self._is_open = False
        self._sent = 0
        self._reason: str | None = None
        self._last: dict[str, Any] = {}

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        (choice,) = answer["choices"]
        for _ in self._add(choice["message"]):
            pass
        self._reason = choice["finish_reason"]
        for _ in self._close():
            pass
        return self._end(answer)

    def write(self, chunk: dict[str, Any]) -> Iterator[bytes]:
        if not self._last:
            for name in ("created", "in_progress"):
                yield self._event(f"response.{name}", response=self._response("in_progress"))
        self._last = chunk
        for choice in chunk["choices"]:
            yield from self._add(choice["delta"])
            if choice["finish_reason"]:
                self._reason = choice["finish_reason"]
                yield from self._close()

    def end(self) -> Iterator[bytes]:
        response = self._end(self._last)
        yield self._event(f"response.{response['status']}", response=response)

    def fail(self, problem: ServeError) -> bytes:
        error = problem.as_dict()["error"]
        return self._event("error", **{name: error[name] for name in ("message", "param", "code")})

    def _end(self, last: dict[str, Any]) -> dict[str, Any]:
        response = self._response("incomplete" if self._reason == "length" else "completed")
        if self._reason == "length":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        usage = last["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        response["usage"] = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},  # they are not counted apart
            "total_tokens": usage["total_tokens"],
        }
        return response | {"specjax": last["specjax"]}

    def _response(self, status: str) -> dict[str, Any]:
        return self._head | {"status": status, "output": self._output, "usage": None}

    def _add(self, delta: dict[str, Any]) -> Iterator[bytes]:
        """Adds a delta of OpenAI's streams to the items."""
        for name, kind in (("reasoning_content", "reasoning"), ("content", "message")):
            if delta.get(name):
                if not self._is_open or self._output[-1]["type"] != kind:
                    yield from self._open(kind)
                self._output[-1]["content"][0]["text"] += delta[name]
                yield self._of_item(f"response.{_PARTS[kind]}.delta", delta=delta[name])
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                yield from self._open("function_call", call_id=call["id"], name=function["name"], arguments="")
            if function["arguments"]:
                self._output[-1]["arguments"] += function["arguments"]
                yield self._of_item("response.function_call_arguments.delta", delta=function["arguments"])

    def _open(self, kind: str, **fields) -> Iterator[bytes]:
        """Begins an item after the one before."""
        yield from self._close()
        own = {"message": {"role": "assistant"}, "reasoning": {"summary": []}}.get(kind, {})
        item = {"id": _id(kind[:2]), "type": kind, "status": "in_progress"} | own | fields
        content = {} if kind == "function_call" else {"content": []}
        self._output.append(item | content)
        self._is_open = True
        yield self._event("response.output_item.added", item=self._output[-1], output_index=len(self._output) - 1)
        if content:
            extra = {"annotations": [], "logprobs": []} if kind == "message" else {}
            self._output[-1]["content"].append({"type": _PARTS[kind], "text": ""} | extra)
            yield self._of_item("response.content_part.added", part=self._output[-1]["content"][0])

    def _close(self) -> Iterator[bytes]:
        """Ends the item that is open."""
        if not self._is_open:
            return
        self._is_open = False
        item = self._output[-1]
        item["status"] = "incomplete" if self._reason == "length" else "completed"
        if item["type"] == "function_call":
            named = {"name": item["name"], "arguments": item["arguments"]}
            yield self._of_item("response.function_call_arguments.done", **named)
        else:
            (part,) = item["content"]
            yield self._of_item(f"response.{part['type']}.done", text=part["text"])
            yield self._of_item("response.content_part.done", part=part)
        yield self._event("response.output_item.done", item=item, output_index=len(self._output) - 1)

    def _of_item(self, kind: str, **fields) -> bytes:
        """An event about the newest item."""
        item = self._output[-1]
        place = {} if item["type"] == "function_call" else {"content_index": 0}
        logprobs = {"logprobs": []} if "output_text" in kind else {}
        fields |= {"item_id": item["id"], "output_index": len(self._output) - 1}
        return self._event(kind, **place, **logprobs, **fields)

    def _event(self, kind: str, **fields) -> bytes:
        self._sent += 1
        return event({"type": kind, "sequence_number": self._sent - 1} | fields, kind)


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
