"""The grammar of texts that consist of calls, in llguidance's dialect of Lark."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .formats import ToolFormat

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""llguidance's options for JSON as Python and chat templates write it."""


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
