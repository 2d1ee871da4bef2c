"""Turns a JSON schema into a pattern of JSON texts.

Every text of the pattern is valid for the schema. The pattern leaves out some valid texts: objects
have their properties in the order of the schema, a string matches its ``pattern`` in full, and
values without a schema have at most two nested levels. See also ``json_text``. A keyword that the
pattern cannot enforce is refused; the error names its path, see ``schema_keywords``.
"""

from collections.abc import Mapping
from urllib.parse import unquote

from ..core.checks import check_text, shorten
from ..core.read_files import parse_json
from ..errors import RequestError
from . import json_text
from .limits import check_limit
from .pattern import Either, Pattern, read_regex
from .schema_keywords import check_keywords, path_step

RECURSIONS = 3
"""The number of times that a schema may contain itself through $ref."""


def read_schema(schema: Mapping | str) -> Pattern:
    """The pattern of JSON texts for ``schema``, a mapping or JSON text.

    Raises RequestError, which names the path of the fault, for an invalid schema, for a schema that
    no JSON satisfies, and for a keyword that is not supported.
    """
    if isinstance(schema, str):
        check_limit(
            len(schema), "LONGEST_PATTERN", f"json_schema: its length of {len(schema):,} characters", "shorten it"
        )
        schema = parse_json("json_schema", schema)
    _check_depth(schema)
    _check_schema(schema)
    assert not isinstance(schema, str)  # no text is a schema
    try:
        pattern = _Reader(schema).read(schema, "$", {})
    except RecursionError:
        raise RequestError("json_schema nests too deeply through $ref; use fewer levels") from None
    if pattern is None:
        raise RequestError("json_schema: $ requires itself without end; make one of its $ref optional")
    return pattern


def _check_depth(schema) -> None:
    level = [schema]
    depth = 0
    parts = 0
    while level:
        check_limit(depth, "MOST_SCHEMA_DEPTH", f"json_schema: its depth of {depth} levels", "use fewer levels")
        parts += len(level)
        check_limit(parts, "LONGEST_PATTERN", "json_schema: the number of its values", "use fewer")
        nested = [part for part in level if isinstance(part, Mapping | list | tuple)]
        held = [part.values() if isinstance(part, Mapping) else part for part in nested]
        level = [inner for values in held for inner in values]
        depth = depth + 1


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
    """Reads the parts of one schema. The pattern of a part that no JSON satisfies is None."""

    def __init__(self, schema: Mapping):
        self.schema = schema
        self.known = {}
        self.parts = 0

    def read(self, schema, path: str, within: dict[str, int]) -> Pattern | None:
        """The pattern of one part. ``within`` counts each reference on the way to the part."""
        kinds, alone = check_keywords(schema, path)
        self.parts += 1
        check_limit(
            self.parts,
            "MOST_SCHEMA_PARTS",
            "json_schema: the number of its parts with references written out",
            "refer less",
        )
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
            raise RequestError(
                f"json_schema: {path}.{keyword} has a value that is not of type {schema['type']!r}; remove the value"
            )
        return Either(tuple(_spell(value, f"{path}.{keyword}") for value in values))

    def _reference(self, name: str, path: str, within: dict[str, int]) -> Pattern | None:
        if within.get(name, 0) >= RECURSIONS:
            return None
        key = (name, tuple(sorted(within.items())))
        if key not in self.known:
            part = self._find(name, f"{path}.$ref")
            self.known[key] = self.read(part, path, within | {name: within.get(name, 0) + 1})
        return self.known[key]

    def _find(self, name: str, path: str):
        part = self.schema
        places = name.removeprefix("#").removeprefix("/").split("/")
        for place in places if name not in ("#", "#/") else ():
            place = unquote(place).replace("~1", "/").replace("~0", "~")
            inside = isinstance(part, list) and place.isdecimal() and int(place) < len(part)
            if not name.startswith("#/") or not (inside or isinstance(part, Mapping) and place in part):
                raise RequestError(
                    f"json_schema: {path} {shorten(name)} is not found; refer to a part such as #/$defs/x"
                )
            part = part[int(place)] if isinstance(part, list) else part[place]
        return part

    def _object(self, schema, path: str, within) -> Pattern | None:
        if "properties" not in schema and schema.get("additionalProperties") is not False:
            return self._free_object(schema, path, within)
        needed = set(schema.get("required", ()))
        members = []
        properties = schema.get("properties", {})
        check_limit(len(properties), "MOST_PROPERTIES", f"json_schema: {path}.properties", "use fewer")
        for name, value in properties.items():
            check_text(name, f"json_schema: {path}.properties names {shorten(name)}, which")
            inner = self.read(value, f"{path}.properties{path_step(name)}", within)
            if inner is None and name in needed:
                return None
            if inner is not None:
                members.append((name, inner, name in needed))
        return json_text.object_in_order(members)

    def _free_object(self, schema, path: str, within) -> Pattern | None:
        least, most = _bounds(schema, "minProperties", "maxProperties", path)
        if least > 1:  # an object may repeat a name, and then it has fewer properties
            raise RequestError(f"json_schema: {path}.minProperties above 1 is not supported; list the properties")
        value = schema.get("additionalProperties", True)
        value = _ANYTHING if value is True else self.read(value, f"{path}.additionalProperties", within)
        if value is None or most == 0:
            return None if least else json_text.EMPTY_OBJECT
        return json_text.object_of(value, least, most)

    def _array(self, schema, path: str, within) -> Pattern | None:
        least, most = _bounds(schema, "minItems", "maxItems", path)
        if "prefixItems" in schema:
            return self._tuple(schema, path, within, least, most)
        item = schema.get("items", True)
        if item is False:
            raise RequestError(f"json_schema: {path}.items is not supported as false; use maxItems 0")
        item = _ANYTHING if item is True else self.read(item, f"{path}.items", within)
        if item is None or most == 0:
            return None if least else json_text.EMPTY_ARRAY
        return json_text.array_of(item, least, most)

    def _tuple(self, schema, path: str, within, least: int, most: int | None) -> Pattern | None:
        items = [self.read(part, f"{path}.prefixItems[{i}]", within) for i, part in enumerate(schema["prefixItems"])]
        if least > len(items) or most is not None and most < len(items) or schema.get("items", False) is not False:
            raise RequestError(
                f"json_schema: {path}.prefixItems is not supported beside items, or with another minItems or maxItems; "
                f"leave them out"
            )
        known = [item for item in items if item is not None]
        return json_text.tuple_of(known) if len(known) == len(items) else None

    def _string(self, schema, path: str, within) -> Pattern:
        if "pattern" in schema:
            name = f"json_schema: {path}.pattern {shorten(schema['pattern'])}"
            return json_text.string_of(read_regex(schema["pattern"], name))
        if "format" in schema:
            name = schema["format"]
            known = json_text.FORMATS
            if name not in known:
                known = ", ".join(known)
                raise RequestError(f"json_schema: {path}.format {shorten(name)} is not supported; use one of {known}")
            return json_text.string_of(read_regex(known[name], path))
        return json_text.string(*_bounds(schema, "minLength", "maxLength", path))

    def _integer(self, schema, path: str, within) -> Pattern:
        return json_text.INTEGER

    def _number(self, schema, path: str, within) -> Pattern:
        return json_text.NUMBER

    def _boolean(self, schema, path: str, within) -> Pattern:
        return json_text.BOOLEAN

    def _null(self, schema, path: str, within) -> Pattern:
        return json_text.NULL


_ANYTHING = json_text.anything(2)


def _spell(value, path: str) -> Pattern:
    """The pattern of one value. Raises RequestError where JSON cannot spell it."""
    try:
        return json_text.constant(value)
    except (TypeError, ValueError):
        raise RequestError(f"json_schema: {path} has a value that JSON cannot spell: {shorten(value)}") from None


def _either(parts) -> Pattern | None:
    parts = [part for part in parts if part is not None]
    return Either(tuple(parts)) if parts else None


def _bounds(schema, low: str, high: str, path: str) -> tuple[int, int | None]:
    least = int(schema.get(low, 0))
    most = schema.get(high)
    for name in (low, high):
        check_limit(int(schema.get(name, 0)), "MOST_PIECES", f"json_schema: {path}.{name}", "lower it")
    if most is not None and least > most:
        raise RequestError(f"json_schema: {path}.{low} {least} is above {high} {most}; no JSON has both")
    return least, None if most is None else int(most)
