"""JSON schemas to regular expressions, by outlines_core, behind a check that it honours every keyword: it passes over some silently."""

import json
import re

from ..errors import RequestError

DEPTH = 3
"""How often a schema may contain itself through $ref."""

_NOTES = {"title", "description", "$schema", "$id", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_DEFINITIONS = {"$defs", "definitions"}
_TYPED = {
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
    ("properties", "minProperties"), ("properties", "maxProperties"), ("prefixItems", "items"), ("prefixItems", "minItems"),
    ("prefixItems", "maxItems"), ("pattern", "minLength"), ("pattern", "maxLength"), ("pattern", "format"), ("format", "minLength"),
    ("format", "maxLength"),
]  # fmt: skip
"""Pairs of which the translation would ignore one."""


def schema_regex(schema: dict | str) -> str:
    """The regular expression of all JSON texts for ``schema``, a dict or JSON text; objects in the order of their properties.

    Objects with ``properties`` have no others, and spaces are at most one. Raises RequestError for a keyword that is not supported.
    """
    from outlines_core.json_schema import build_regex_from_schema

    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise RequestError(f"json_schema is not JSON ({error})") from None
    _check(schema, "json_schema")
    try:
        return build_regex_from_schema(json.dumps(schema, ensure_ascii=False), max_recursion_depth=DEPTH)
    except (ValueError, TypeError) as error:
        raise RequestError(f"json_schema is not supported: {str(error).splitlines()[0]}") from None


def _check(schema, where: str) -> None:
    if not isinstance(schema, dict):
        raise RequestError(f"{where} must be an object with a type, not {json.dumps(schema)}")
    given = set(schema) - _NOTES - _DEFINITIONS
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    for kind in kinds:
        if kind not in _TYPED:
            raise RequestError(f"{where}: type {kind!r} is unknown; use one of {', '.join(_TYPED)}")
    alone = [name for name in _ALONE if name in given]
    if not kinds and not alone:
        raise RequestError(f"{where} has no type; give one, or enum, const, anyOf or $ref")
    fitting = {alone[0]} if alone else _TYPED[kinds[0]] if len(kinds) == 1 else set()
    for name in sorted(given - {"type"} - fitting):
        beside = f" beside {alone[0]!r}" if alone else f" for type {schema.get('type')!r}"
        raise RequestError(f"{where}: keyword {name!r}{beside} is not supported; leave it out")
    for a, b in _EXCLUSIVE:
        if a in given and b in given:
            raise RequestError(f"{where}: keyword {b!r} beside {a!r} is not supported; leave one out")
    _check_values(schema, alone, kinds, where)
    for name in _DEFINITIONS & set(schema):
        for key, value in schema[name].items():
            _check(value, f"{where}.{name}.{key}")
    for key, value in schema.get("properties", {}).items():
        _check(value, f"{where}.properties.{key}")
    for name in ("anyOf", "prefixItems"):
        for i, value in enumerate(schema.get(name, [])):
            _check(value, f"{where}.{name}[{i}]")
    for name in ("items", "additionalProperties"):
        if name in schema and not isinstance(schema[name], bool):
            _check(schema[name], f"{where}.{name}")


def _check_values(schema: dict, alone: list[str], kinds: list[str], where: str) -> None:
    """What depends on more than names."""
    if alone and kinds and alone[0] in ("anyOf", "$ref"):
        raise RequestError(f"{where}: keyword 'type' beside {alone[0]!r} is not supported; leave one out")
    if alone and kinds:
        from jsonschema import Draft202012Validator

        values = schema["enum"] if alone[0] == "enum" else [schema["const"]]
        if not all(Draft202012Validator({"type": kinds}).is_valid(value) for value in values):
            raise RequestError(f"{where}: a value of {alone[0]!r} is not of type {schema['type']!r}")
    missing = sorted(set(schema.get("required", [])) - set(schema.get("properties", {})))
    if missing:
        raise RequestError(f"{where}: required property {missing[0]!r} is not among its properties; describe it there")
    if "properties" in schema and isinstance(schema.get("additionalProperties"), dict):
        raise RequestError(f"{where}: keyword 'additionalProperties' beside 'properties' must be true or false")
    if schema.get("additionalProperties") is False and "properties" not in schema:
        raise RequestError(f"{where}: an object without properties or additional ones is not supported; use const {{}}")
    for name in ("items",):
        if isinstance(schema.get(name), bool):
            raise RequestError(f"{where}: keyword {name!r} must be a schema")
    if re.search(r"(?<!\\)\.|\[\^|\\[SWD\"\\]|\"", schema.get("pattern", "")):
        raise RequestError(f"{where}: pattern {schema['pattern']!r} may match a quote or backslash; list the characters it allows")
