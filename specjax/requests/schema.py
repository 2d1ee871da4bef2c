"""JSON schemas to patterns of the JSON texts that they allow.

Every text of the pattern is valid for its schema; the pattern need not have all valid texts. Objects have their properties in
the order of the schema, spaces are at most one, and strings have no escapes by code point. A keyword that the pattern would
not keep is refused by its path.
"""

import json
from collections.abc import Mapping
from functools import partial
from urllib.parse import unquote

from ..checks import parse_json, shorten
from ..errors import RequestError
from .characters import Ranges, complement, intersect
from .limits import check_limit
from .pattern import Character, Either, Pattern, Repeat, Sequence, literal, map_characters, optional, read_regex

RECURSIONS = 3
"""How often a schema may contain itself through $ref."""

_NOTES = {"title", "description", "$schema", "$id", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly"}
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
    ("properties", "minProperties"), ("properties", "maxProperties"), ("pattern", "minLength"), ("pattern", "maxLength"),
    ("pattern", "format"), ("format", "minLength"), ("format", "maxLength"),
]  # fmt: skip
"""Pairs of which the pattern could keep only one."""

_FORMATS = {
    "date": r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "time": r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": r"[a-z0-9_+-]+(?:\.[a-z0-9_+-]+)*@[a-z0-9]+(?:-[a-z0-9]+)*(?:\.[a-z0-9]+(?:-[a-z0-9]+)*)+",
    "uri": r"https?://[a-z0-9]+(?:-[a-z0-9]+)*(?:\.[a-z0-9]+(?:-[a-z0-9]+)*)*(?::[0-9]{1,4})?(?:/[A-Za-z0-9._~-]*)*(?:\?[A-Za-z0-9._~=&-]*)?",
}
_FORMATS["date"] = _FORMATS["date"].replace("[0-9]{4}", "(?:[1-9][0-9]{3}|0[1-9][0-9]{2})", 1)  # no year 0
_FORMATS["date-time"] = f"{_FORMATS['date']}T{_FORMATS['time']}"

_CONTROL: Ranges = ((0, 0x1F), (0x7F, 0x9F))
_PLAIN: Ranges = complement(((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x9F)))
"""Characters that stand for themselves in a JSON string. C1 controls could, but texts are better without."""

_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


def _in_string(character: Character) -> Pattern:
    """How a JSON string spells a character of a set. Control characters without a short escape are left out."""
    has = lambda c: any(low <= ord(c) <= high for low, high in character.ranges)
    escaped = [literal("\\" + letter) for c, letter in _ESCAPES.items() if has(c)]
    plain = intersect(character.ranges, _PLAIN)
    return Either((*([Character(plain)] if plain else []), *escaped))


_read = partial(read_regex, name="json_schema")
_LETTER = _in_string(Character(complement(())))
_QUOTE, _SPACE = literal('"'), optional(literal(" "))
_STRING = Sequence((_QUOTE, Repeat(_LETTER, 0, None), _QUOTE))
_INTEGER, _NUMBER = "-?(?:0|[1-9][0-9]*)", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-][0-9]+)?"
_SCALARS = (_STRING, _read(_NUMBER), literal("true"), literal("false"), literal("null"))


def read_schema(schema: Mapping | str) -> Pattern:
    """The pattern of JSON texts for ``schema``, a mapping or JSON text.

    Raises RequestError, with the path of the fault, for a schema that is no schema, that no JSON satisfies, or that has a
    keyword which is not supported.
    """
    if isinstance(schema, str):
        check_limit(len(schema), "LONGEST_PATTERN", f"json_schema: its length of {len(schema):,} characters", "shorten it")
        schema = parse_json("json_schema", schema)
    _check_depth(schema)
    _check_schema(schema)
    try:
        pattern = _Reader(schema).read(schema, "$", {})
    except RecursionError:
        raise RequestError("json_schema nests too deeply through $ref; use fewer levels") from None
    if pattern is None:
        raise RequestError("json_schema: $ requires itself without end; make one of its $ref optional")
    return pattern


def _check_depth(schema) -> None:
    level, depth, parts = [schema], 0, 0
    while level:
        check_limit(depth, "MOST_SCHEMA_DEPTH", f"json_schema: its depth of {depth} levels", "use fewer levels")
        parts += len(level)
        check_limit(parts, "LONGEST_PATTERN", "json_schema: the number of its parts", "use fewer")
        held = [part.values() if isinstance(part, Mapping) else part for part in level if isinstance(part, Mapping | list | tuple)]
        level, depth = [inner for values in held for inner in values], depth + 1


def _check_schema(schema) -> None:
    from jsonschema.exceptions import best_match
    from jsonschema.validators import Draft202012Validator, validator_for

    if not isinstance(schema, Mapping):
        raise RequestError(f"json_schema: $ must be an object with a type, not {shorten(schema)}")
    try:
        validator = validator_for(schema, default=Draft202012Validator)
        fault = best_match(validator(validator.META_SCHEMA).iter_errors(schema))
    except (TypeError, RecursionError) as error:  # $schema may be anything
        raise RequestError(f"json_schema cannot be checked: {shorten(str(error))}") from None
    if fault is not None:
        raise RequestError(f"json_schema: {fault.json_path} is not valid: {shorten(fault.message, 90)}")


class _Reader:
    """Reads the parts of one schema. None stands for a part that no JSON text satisfies."""

    def __init__(self, schema: Mapping):
        self.schema, self.known, self.pieces = schema, {}, 0

    def read(self, schema, path: str, within: dict[str, int]) -> Pattern | None:
        """The pattern of one part; ``within`` counts the references that lead to it."""
        kinds, alone = _check_keywords(schema, path)
        self.pieces += 1
        check_limit(self.pieces, "MOST_PIECES", "json_schema: its size with references written out", "refer less")
        if alone in ("enum", "const"):
            return self._values(schema, alone, kinds, path)
        if alone == "anyOf":
            return _either(self.read(part, f"{path}.anyOf[{i}]", within) for i, part in enumerate(schema["anyOf"]))
        if alone == "$ref":
            return self._reference(schema["$ref"], path, within)
        return _either(getattr(self, f"_{kind}")(schema, path, within) for kind in kinds)

    def _values(self, schema, keyword: str, kinds: list, path: str) -> Pattern:
        from jsonschema import Draft202012Validator

        values = schema["enum"] if keyword == "enum" else [schema["const"]]
        if not values:
            raise RequestError(f"json_schema: {path}.enum is empty; give at least one value")
        if kinds and not all(Draft202012Validator({"type": kinds}).is_valid(value) for value in values):
            raise RequestError(f"json_schema: {path}.{keyword} has a value that is not of type {schema['type']!r}")
        return Either(tuple(_literal_json(value, f"{path}.{keyword}") for value in values))

    def _reference(self, name: str, path: str, within: dict[str, int]) -> Pattern | None:
        if within.get(name, 0) >= RECURSIONS:
            return None
        key = (name, tuple(sorted(within.items())))
        if key not in self.known:
            part = self._find(name, f"{path}.$ref")
            self.known[key] = self.read(part, path, within | {name: within.get(name, 0) + 1})
        return self.known[key]

    def _find(self, name: str, path: str):
        part, places = self.schema, name.removeprefix("#").removeprefix("/").split("/")
        for place in places if name not in ("#", "#/") else ():
            place = unquote(place).replace("~1", "/").replace("~0", "~")
            inside = isinstance(part, list) and place.isdecimal() and int(place) < len(part)
            if not name.startswith("#/") or not (inside or isinstance(part, Mapping) and place in part):
                raise RequestError(f"json_schema: {path} {shorten(name)} is not found; refer to a part of this schema, such as #/$defs/x")
            part = part[int(place)] if inside else part[place]
        return part

    def _object(self, schema, path: str, within) -> Pattern | None:
        if "properties" not in schema and schema.get("additionalProperties") is not False:
            return self._free_object(schema, path, within)
        needed, parts = set(schema.get("required", ())), []
        for name, value in schema.get("properties", {}).items():
            inner = self.read(value, f"{path}.properties{_step(name)}", within)
            if inner is None and name in needed:
                return None
            if inner is not None:
                parts.append((Sequence((_SPACE, _literal_json(name, path), _SPACE, literal(":"), _SPACE, inner)), name in needed))
        return Sequence((literal("{"), _in_order(parts), _SPACE, literal("}")))

    def _free_object(self, schema, path: str, within) -> Pattern | None:
        least, most = _bounds(schema, "minProperties", "maxProperties", path)
        if least > 1:
            raise RequestError(f"json_schema: {path}.minProperties above 1 is not supported: names might repeat; list them as properties")
        value = schema.get("additionalProperties", True)
        value = self._anything(2) if value is True else self.read(value, f"{path}.additionalProperties", within)
        if value is None or most == 0:
            return None if least else _EMPTY_OBJECT
        return _object_of(value, least, most)

    def _array(self, schema, path: str, within) -> Pattern | None:
        least, most = _bounds(schema, "minItems", "maxItems", path)
        first = [self.read(part, f"{path}.prefixItems[{i}]", within) for i, part in enumerate(schema.get("prefixItems", ()))]
        if "prefixItems" in schema:
            if not least <= len(first) or most is not None and len(first) > most or schema.get("items", False) is not False:
                raise RequestError(f"json_schema: {path}.prefixItems is not supported beside items, or minItems or maxItems of another number")
            if None in first:
                return None
            return Sequence((literal("["), _SPACE, _joined(first), _SPACE, literal("]")))
        item = schema.get("items", True)
        if item is False:
            raise RequestError(f"json_schema: {path}.items is not supported as false; use maxItems 0")
        item = self._anything(2) if item is True else self.read(item, f"{path}.items", within)
        if item is None or most == 0:
            return None if least else _EMPTY_ARRAY
        return _array_of(item, least, most)

    def _string(self, schema, path: str, within) -> Pattern:
        if "pattern" in schema:
            where = f"json_schema: {path}.pattern {shorten(schema['pattern'])}"
            return Sequence((_QUOTE, map_characters(read_regex(schema["pattern"], where), _in_string), _QUOTE))
        if "format" in schema:
            if schema["format"] not in _FORMATS:
                raise RequestError(f"json_schema: {path}.format {shorten(schema['format'])} is not supported; use one of {', '.join(_FORMATS)}")
            return Sequence((_QUOTE, _read(_FORMATS[schema["format"]]), _QUOTE))
        return Sequence((_QUOTE, Repeat(_LETTER, *_bounds(schema, "minLength", "maxLength", path)), _QUOTE))

    def _integer(self, schema, path: str, within) -> Pattern:
        return _read(_INTEGER)

    def _number(self, schema, path: str, within) -> Pattern:
        return _read(_NUMBER)

    def _boolean(self, schema, path: str, within) -> Pattern:
        return Either((literal("true"), literal("false")))

    def _null(self, schema, path: str, within) -> Pattern:
        return literal("null")

    def _anything(self, depth: int) -> Pattern:
        """Any JSON value of at most ``depth`` levels of arrays and objects."""
        if depth == 0:
            return Either(_SCALARS)
        inner = self._anything(depth - 1)
        return Either((*_SCALARS, _array_of(inner, 0, None), _object_of(inner, 0, None)))


_EMPTY_ARRAY = Sequence((literal("["), _SPACE, literal("]")))
_EMPTY_OBJECT = Sequence((literal("{"), _SPACE, literal("}")))


def _array_of(item: Pattern, least: int, most: int | None) -> Pattern:
    return Sequence((literal("["), _SPACE, _repeat(item, literal(","), _SPACE, least, most), _SPACE, literal("]")))


def _object_of(value: Pattern, least: int, most: int | None) -> Pattern:
    member = Sequence((_STRING, _SPACE, literal(":"), _SPACE, value))
    comma = Sequence((_SPACE, literal(",")))
    return Sequence((literal("{"), _SPACE, _repeat(member, comma, _SPACE, least, most), _SPACE, literal("}")))


def _repeat(part: Pattern, comma: Pattern, space: Pattern, least: int, most: int | None) -> Pattern:
    """``part`` between ``least`` and ``most`` times, with ``comma`` and ``space`` between."""
    more = Repeat(Sequence((comma, space, part)), max(least - 1, 0), None if most is None else most - 1)
    return Sequence((part, more)) if least else optional(Sequence((part, more)))


def _joined(parts: list[Pattern]) -> Pattern:
    return Sequence(tuple(piece for i, part in enumerate(parts) for piece in ((literal(","), _SPACE, part) if i else (part,))))


def _in_order(parts: list[tuple[Pattern, bool]]) -> Pattern:
    """Members of an object in order, with commas between; each is a pattern and whether it is required."""
    comma = Sequence((_SPACE, literal(",")))
    needed = [i for i, (_, required) in enumerate(parts) if required]
    after = lambda later: [Sequence((comma, p)) if required else optional(Sequence((comma, p))) for p, required in later]
    if needed:  # the first that is required has those before it with commas behind them, those after it with commas before
        early = [optional(Sequence((part, comma))) for part, _ in parts[: needed[0]]]
        return Sequence((*early, parts[needed[0]][0], *after(parts[needed[0] + 1 :])))
    return optional(Either(tuple(Sequence((part, *after(parts[i + 1 :]))) for i, (part, _) in enumerate(parts)))) if parts else Sequence()


def _either(parts) -> Pattern | None:
    parts = [part for part in parts if part is not None]
    return Either(tuple(parts)) if parts else None


def _literal_json(value, path: str) -> Pattern:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError):
        raise RequestError(f"json_schema: {path} has a value that JSON cannot spell: {shorten(value)}") from None
    return literal(text)


def _bounds(schema, low: str, high: str, path: str) -> tuple[int, int | None]:
    least, most = int(schema.get(low, 0)), schema.get(high)
    for name in (low, high):
        check_limit(int(schema.get(name, 0)), "MOST_PIECES", f"json_schema: {path}.{name}", "lower it")
    if most is not None and least > most:
        raise RequestError(f"json_schema: {path}.{low} {least} is above {high} {most}; no JSON has both")
    return least, None if most is None else int(most)


def _step(name: str) -> str:
    """A property's name as a step of a path."""
    return f".{name}" if name.isidentifier() else f"[{shorten(name)}]"


def _check_keywords(schema, path: str) -> tuple[list[str], str | None]:
    """The types of one part, and the keyword among ``_ALONE`` that it has. Raises RequestError for what is not supported."""
    if not isinstance(schema, Mapping):
        raise RequestError(f"json_schema: {path} must be an object with a type, not {shorten(schema)}")
    given = [name for name in schema if name not in _NOTES | _DEFINITIONS]
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    for kind in kinds:
        if kind not in _OF_TYPE:
            raise RequestError(f"json_schema: {path}.type {shorten(kind)} is not supported; use one of {', '.join(_OF_TYPE)}")
    alone = next((name for name in _ALONE if name in given), None)
    known = {alone} if alone else _OF_TYPE[kinds[0]] if len(kinds) == 1 else set()
    for name in given:
        if name not in known | {"type"}:
            beside = f" beside {alone}" if alone else " beside several types" if len(kinds) > 1 else f" for type {kinds[0]}" if kinds else ""
            raise RequestError(f"json_schema: {path}{_step(name)} is not supported{beside}; leave it out")
    if not kinds and not alone:
        raise RequestError(f"json_schema: {path} has no type; give one, or enum, const, anyOf or $ref")
    if alone in ("anyOf", "$ref") and kinds:
        raise RequestError(f"json_schema: {path}.type is not supported beside {alone}; leave one out")
    for a, b in _EXCLUSIVE:
        if a in given and b in given:
            raise RequestError(f"json_schema: {path}.{b} is not supported beside {a}; leave one out")
    missing = [name for name in schema.get("required", ()) if name not in schema.get("properties", {})]
    if missing:
        raise RequestError(f"json_schema: {path}.required names {shorten(missing[0])}, which is not among its properties; describe it there")
    if "properties" in schema and isinstance(schema.get("additionalProperties"), Mapping):
        raise RequestError(f"json_schema: {path}.additionalProperties beside properties must be true or false")
    return kinds, alone
