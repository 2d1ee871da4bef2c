"""Reads calls of tools while the text arrives."""

import json
import re
import uuid
from collections.abc import Callable

from ..thoughts import held_back
from .formats import ToolFormat

_HEAD = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
"""A call up to its arguments."""


class CallReader:
    """Splits a text into content and calls, as parts of OpenAI's deltas.

    A call whose name is known begins with a delta of its id and its name. Pieces of its arguments
    follow as they arrive. What looks like a call and is none is content.

    Args:
      is_bare: whether the text may begin with a call without the format's mark.

    Attributes:
      count: the number of calls so far.
    """

    def __init__(self, form: ToolFormat, is_bare: bool):
        self.count = 0
        self._form = form
        self._text = ""
        self._skipped = ""
        self._scan = _Scan()
        self._state: Callable[[], list[dict] | None] = self._read_fillers if is_bare else self._read_content

    def feed(self, piece: str) -> list[dict]:
        """The deltas of one more piece of the text."""
        self._text += piece
        deltas: list[dict] = []
        while self._text and (found := self._state()) is not None:
            deltas += found
        return deltas

    def end(self) -> list[dict]:
        """The deltas that were held back until the end of the text."""
        rest = self._text if self._state != self._read_fillers else ""
        rest = rest if self.count else self._skipped + self._text
        self._text = self._skipped = ""
        return _content(rest)

    def _read_content(self) -> list[dict] | None:
        """Content up to a mark. Each state returns None where it needs more of the text."""
        mark = self._form.mark
        if mark in self._text:
            content, _, self._text = self._text.partition(mark)
            self._skipped = mark
            self._state = self._read_fillers
            return _content(content)
        keep = len(self._text) - held_back(self._text, mark)
        content = self._text[:keep]
        self._text = self._text[keep:]
        return _content(content) or None

    def _read_fillers(self) -> list[dict] | None:
        """What stands before a call: blanks, marks and separators."""
        begin = len(self._text) - len(self._text.lstrip())
        rest = self._text[begin:]
        filler = next((one for one in self._form.fillers if rest.startswith(one)), "")
        if rest.startswith("{"):
            self._scan = _Scan()
            self._state = self._read_call
        elif any(one.startswith(rest) and one != rest for one in self._form.fillers):
            return None
        elif not filler:
            return self._give_back("" if self.count else self._skipped + self._text[:begin], rest)
        self._skipped += self._text[:begin] + filler
        self._text = rest[len(filler) :]
        return []

    def _give_back(self, content: str, rest: str) -> list[dict]:
        """Goes on with content: ``content``, and what ``rest`` has."""
        self._skipped = ""
        self._text = rest
        self._state = self._read_content
        return _content(content)

    def _read_call(self) -> list[dict] | None:
        """A call up to its arguments, or a whole one that is written otherwise."""
        if match := _HEAD.match(self._text):
            self._text = self._text[match.end() :]
            self._scan = _Scan(depth=1)
            self._state = self._read_arguments
            return self._begin(json.loads(match[1]), "")
        end = _Scan().find(self._text, 0)
        if end is None:
            return None
        call, rest = self._text[:end], self._text[end:]
        name, arguments = _read_call(call)
        if name is None:
            return self._give_back(self._skipped + call, rest)
        self._text = rest
        self._state = self._read_fillers
        return self._begin(name, arguments)

    def _begin(self, name: str, arguments: str) -> list[dict]:
        """The first delta of a call."""
        self._skipped = ""
        function = {"name": name, "arguments": arguments}
        call = {"index": self.count, "id": uuid.uuid4().hex[:9], "type": "function", "function": function}
        self.count += 1
        return [{"tool_calls": [call]}]

    def _read_arguments(self) -> list[dict]:
        """A piece of the arguments."""
        end = self._scan.find(self._text, 1)
        piece = self._text[:end]
        self._text = "" if end is None else self._text[end:]
        if end is not None:
            self._state = self._skip_rest
        return [{"tool_calls": [{"index": self.count - 1, "function": {"arguments": piece}}]}]

    def _skip_rest(self) -> list[dict]:
        """What stands in a call after its arguments."""
        end = self._scan.find(self._text, 0)
        self._text = "" if end is None else self._text[end:]
        if end is not None:
            self._state = self._read_fillers
        return []


class _Scan:
    """Finds the ends of objects of JSON. ``depth``: the objects that are open."""

    def __init__(self, depth: int = 0):
        self._depth = depth
        self._in_string = False
        self._is_escaped = False

    def find(self, text: str, depth: int) -> int | None:
        """The place in the next piece after a brace that leaves ``depth`` objects open."""
        for i, letter in enumerate(text):
            if self._in_string:
                self._in_string = letter != '"' or self._is_escaped
                self._is_escaped = letter == "\\" and not self._is_escaped
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == depth:
                    return i + 1
        return None


def _content(text: str) -> list[dict]:
    return [{"content": text}] if text else []


def _read_call(text: str) -> tuple[str | None, str]:
    """The name and the arguments of a call in JSON; no name where the text is no call."""
    try:
        call = json.loads(text)
    except ValueError:
        return None, ""
    arguments = call.get("arguments", call.get("parameters"))
    if not isinstance(call.get("name"), str) or not isinstance(arguments, dict | str):
        return None, ""
    return call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments)
