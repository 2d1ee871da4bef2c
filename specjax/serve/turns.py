"""The assistant's turn: its reasoning, its content and its calls of tools, whole or in deltas."""

import dataclasses
import json

from .thoughts import ThoughtReader
from .tools.formats import ToolFormat
from .tools.reader import CallReader


@dataclasses.dataclass(frozen=True)
class TurnForm:
    """How the texts of a request's answer are read.

    Attributes:
      thinks: whether the model may write its reasoning between marks.
      is_open: whether the prompt has begun the reasoning.
      calls: the format of calls; None reads none.
      is_bare: whether a call may begin the text without the format's mark.
    """

    thinks: bool = False
    is_open: bool = False
    calls: ToolFormat | None = None
    is_bare: bool = False

    def reader(self) -> "TurnReader":
        """A reader of one text."""
        return TurnReader(self)

    def message(self, text: str) -> dict:
        """The message of a whole text. A call whose arguments are no object of JSON is content."""
        reader = self.reader()
        deltas = reader.feed(text) + reader.end()
        join = lambda name: "".join(delta.get(name, "") for delta in deltas)
        reasoning = join("reasoning_content")
        calls = _whole_calls(deltas)
        message = {"role": "assistant", "content": join("content"), "refusal": None}
        if not all(_is_object(call["function"]["arguments"]) for call in calls):
            calls = []
            message["content"] = dataclasses.replace(self, calls=None).message(text)["content"]
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message |= {"content": message["content"].strip() or None, "tool_calls": calls}
        return message


class TurnReader:
    """Reads a text as it arrives. Its deltas are those of OpenAI's streams."""

    def __init__(self, form: TurnForm):
        self._thoughts = ThoughtReader(form.is_open) if form.thinks else None
        self._calls = None if form.calls is None else CallReader(form.calls, form.is_bare)

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._calls is not None and self._calls.count > 0

    def feed(self, piece: str) -> list[dict]:
        """The deltas of one more piece of the text."""
        return self._deltas(*self._thoughts.feed(piece) if self._thoughts else ("", piece))

    def end(self) -> list[dict]:
        """The deltas that were held back until the end of the text."""
        deltas = self._deltas(*self._thoughts.end() if self._thoughts else ("", ""))
        return deltas + (self._calls.end() if self._calls else [])

    def _deltas(self, reasoning: str, answer: str) -> list[dict]:
        thought = [{"reasoning_content": reasoning}] if reasoning else []
        if self._calls is not None:
            return thought + self._calls.feed(answer)
        return thought + ([{"content": answer}] if answer else [])


def _whole_calls(deltas: list[dict]) -> list[dict]:
    """The calls whose pieces are in ``deltas``."""
    calls: list[dict] = []
    for piece in (call for delta in deltas for call in delta.get("tool_calls", ())):
        if "id" in piece:
            calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
        else:
            calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
    return calls


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
