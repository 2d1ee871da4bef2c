"""The keywords of a JSON schema that a pattern can enforce."""

from collections.abc import Mapping

from ..core.checks import shorten
from ..errors import RequestError

_NOTES = {
    "title", "description", "$schema", "$id", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly",
}  # fmt: skip
_DEFINITIONS = {"$defs", "definitions"}
_OF_TYPE = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": set(),
    "number": set(),
    "boolean": set(),
    "null": set(),
}
_ALONE = ("enum", "const", "anyOf", "$ref")
_EXCLUSIVE = [
    ("properties", "minProperties"), ("properties", "maxProperties"), ("pattern", "minLength"),
    ("pattern", "maxLength"), ("pattern", "format"), ("format", "minLength"), ("format", "maxLength"),
]  # fmt: skip
"""Pairs of keywords of which the pattern can enforce only one."""


def check_keywords(schema, path: str) -> tuple[list[str], str | None]:
    """The types of one part of a schema, and its keyword enum, const, anyOf or $ref.

    The keyword is None for a part without one. ``path`` names the part in errors.

    Raises RequestError for keywords that are not supported or exclude one another.
    """
    # 1. Check the types.
    if not isinstance(schema, Mapping):
        raise RequestError(f"json_schema: {path} must be an object with a type, not {shorten(schema)}")
    keywords = [name for name in schema if name not in _NOTES | _DEFINITIONS]
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    for kind in kinds:
        if kind not in _OF_TYPE:
            raise RequestError(
                f"json_schema: {path}.type {shorten(kind)} is not supported; use one of {', '.join(_OF_TYPE)}"
            )
    # 2. Check that each keyword is known for these types.
    alone = next((name for name in _ALONE if name in keywords), None)
    known = {alone} if alone else _OF_TYPE[kinds[0]] if len(kinds) == 1 else set()
    if alone:
        beside = f" beside {alone}"
    elif len(kinds) > 1:
        beside = " beside several types"
    else:
        beside = f" for type {kinds[0]}" if kinds else ""
    for name in keywords:
        if name not in known | {"type"}:
            raise RequestError(f"json_schema: {path}{path_step(name)} is not supported{beside}; leave it out")
    # 3. Check that the keywords agree.
    if not kinds and not alone:
        raise RequestError(f"json_schema: {path} has no type; give one, or enum, const, anyOf or $ref")
    if alone in ("anyOf", "$ref") and kinds:
        raise RequestError(f"json_schema: {path}.type is not supported beside {alone}; leave one out")
    for a, b in _EXCLUSIVE:
        if a in keywords and b in keywords:
            raise RequestError(f"json_schema: {path}.{b} is not supported beside {a}; leave one out")
    missing = [name for name in schema.get("required", ()) if name not in schema.get("properties", {})]
    if missing:
        raise RequestError(
            f"json_schema: {path}.required names {shorten(missing[0])}, which is no property; describe it there"
        )
    if "properties" in schema and isinstance(schema.get("additionalProperties"), Mapping):
        raise RequestError(f"json_schema: {path}.additionalProperties beside properties must be true or false")
    return kinds, alone


def path_step(name: str) -> str:
    """A property's name as a step of a path."""
    return f".{name}" if name.isidentifier() and len(name) < 60 else f"[{shorten(name)}]"
