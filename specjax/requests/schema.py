"""Checks of a JSON schema before llguidance reads it."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from ..core.checks import check_text, shorten
from ..core.read_files import parse_json
from ..errors import RequestError
from .limits import check_limit


def schema_text(schema: Mapping | str) -> str:
    """A JSON schema as JSON text.

    Raises RequestError for a value that is no JSON object, for a schema that is too long or too
    deep, and for a schema that requires itself without end.
    """
    if not isinstance(schema, str):
        try:
            schema = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise RequestError(f"json_schema cannot be written as JSON ({error})") from None
        except RecursionError:
            raise RequestError("json_schema nests too deeply to be read; use fewer levels") from None
    check_limit(len(schema), "LONGEST_GRAMMAR", f"json_schema: its length of {len(schema):,} characters", "shorten it")
    whole = parse_json("json_schema", check_text(schema, "json_schema"))
    if not isinstance(whole, dict):
        raise RequestError(f"json_schema must be a JSON object, not {shorten(whole)}")
    try:
        has_end = _has_end(whole, whole, [])
    except RecursionError:
        raise RequestError("json_schema nests too deeply through $ref; use fewer levels") from None
    if not has_end:
        raise RequestError("json_schema requires itself without end; make one of its $ref optional")
    return schema


def _has_end(schema: Any, whole: dict, above: list) -> bool:
    """Whether a value for ``schema`` need not hold a value for one of the schemas ``above``.

    llguidance would follow a schema without a finite value up to the limit of the text.
    """
    if not isinstance(schema, dict):
        return True
    if any(schema is other for other in above):
        return False
    needed = [_find(schema["$ref"], whole)] if isinstance(schema.get("$ref"), str) else []
    needed += _list(schema, "allOf")
    properties = schema.get("properties")
    if schema.get("type") == "object" and isinstance(properties, dict):
        needed += [properties[name] for name in _list(schema, "required") if name in properties]
    count = schema.get("minItems")
    if schema.get("type") == "array" and isinstance(count, int):
        first = _list(schema, "prefixItems")
        needed += first[:count] + [schema.get("items")] * (count > len(first))
    above = [*above, schema]
    choices = [options for name in ("anyOf", "oneOf") if (options := _list(schema, name))]
    return all(_has_end(part, whole, above) for part in needed) and all(
        any(_has_end(option, whole, above) for option in options) for options in choices
    )


def _list(schema: dict, name: str) -> list:
    return schema[name] if isinstance(schema.get(name), list) else []


def _find(reference: str, whole: dict) -> Any:
    """The part of the schema that a reference names; None if it is not found."""
    part: Any = whole
    for step in reference.removeprefix("#").split("/")[1:] if reference.startswith("#") else [""]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        part = part.get(step) if isinstance(part, dict) else None
    return part
