"""Texts of JSON schemas against jsonschema, and what schemas are refused."""

import json

import jsonschema
import pytest
from support.walks import accepts, random_texts

from specjax.errors import RequestError
from specjax.requests.automaton import byte_automaton
from specjax.requests.schema import read_schema

NULL, WHOLE = {"type": "null"}, {"type": "integer"}
FIVE = {name: WHOLE for name in "abcde"}
SCHEMAS = [
    {"type": "object", "properties": {"a": WHOLE, "b": {"type": ["boolean", "null"]}}, "required": ["a"]},
    {"type": "object", "properties": FIVE},
    {"type": "object", "properties": FIVE, "required": ["c", "e"], "additionalProperties": False},
    {"type": "object", "properties": {'a\n"b\\\x01': NULL}, "required": ['a\n"b\\\x01']},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 2},
    {"type": "object", "additionalProperties": False},
    {"type": "object"},
    {"type": "array"},
    {"type": "array", "items": {"enum": ["x", 1, None, {"k": [1]}]}, "minItems": 1, "maxItems": 3},
    {"type": "array", "items": {"type": "number"}, "minItems": 2},
    {"type": "array", "items": NULL, "maxItems": 0},
    {"type": "array", "prefixItems": [WHOLE, {"type": "string", "format": "uuid"}]},
    {"type": "array", "prefixItems": [WHOLE, NULL], "minItems": 2, "maxItems": 2, "items": False},
    {"type": "string", "minLength": 1, "maxLength": 3},
    {"type": "string", "minLength": 2},
    {"type": "string", "pattern": "^a|b$"},
    {"type": "string", "pattern": "ab|cd"},
    {"type": "string", "pattern": r'^a"b|[\s\\"x/]{2}|[^a]\W$'},
    {"type": "string", "pattern": r"^.[^\d]\S{2}$"},
    *({"type": "string", "format": name} for name in ("date", "time", "date-time", "uuid", "email", "uri")),
    {"anyOf": [{"const": 'a"b\n'}, {"type": "object", "properties": {"z": {"$ref": "#/$defs/z"}}, "required": ["z"]}],
     "$defs": {"z": {"type": "string", "pattern": "^[a-c]{2}$"}}},
    {"type": "object", "properties": {"v": WHOLE, "next": {"$ref": "#"}}, "required": ["v"]},
    {"anyOf": [NULL, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]},
]  # fmt: skip


def automaton(schema):
    return byte_automaton(read_schema(schema), "json_schema")


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:50])
def test_every_text_is_valid_for_its_schema(schema):
    texts = random_texts(*automaton(schema), 60)
    for text in texts:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    assert len(set(texts)) > 1, texts


@pytest.mark.parametrize(
    ("schema", "allowed", "forbidden"),
    [
        ({"type": "string", "pattern": "ab|cd"}, ['"ab"', '"cd"'], ['"ab', 'cd"', '"abcd"']),
        ({"type": "string", "pattern": '^a"?$'}, ['"a"', '"a\\""'], ['"a""']),
        ({"type": "string", "pattern": r"^\s$"}, ['" "', '"\\n"', '"\\t"'], ['"\n"', '"\t"']),
        ({"type": "object", "properties": {"a": NULL, "b": NULL}}, ["{}", '{"b":null}', '{ "a" : null , "b" : null }'], ['{"b":null,"a":null}']),
        ({"type": "array", "items": NULL, "minItems": 1, "maxItems": 2}, ["[null]", "[null, null]"], ["[]", "[null,null,null]"]),
        ({"type": "object", "properties": {"x": {"$ref": "#"}}}, ['{"x":{"x":{"x":{}}}}'], ['{"x":{"x":{"x":{"x":{}}}}}']),
    ],
)  # fmt: skip
def test_texts_that_are_allowed_and_forbidden(schema, allowed, forbidden):
    compiled = automaton(schema)
    assert [accepts(*compiled, text) for text in (*allowed, *forbidden)] == [True] * len(allowed) + [False] * len(
        forbidden
    )


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "properties": {"age": {"type": "integer", "multipleOf": 2}}}, "$.properties.age.multipleOf is not supported for type integer"),
        ({"type": "integer", "minimum": 3}, "$.minimum is not supported"),
        ({"type": "array", "items": NULL, "uniqueItems": True}, "$.uniqueItems is not supported"),
        ({"type": "object", "patternProperties": {}}, "$.patternProperties is not supported"),
        ({"type": "object", "properties": {"a b": NULL}, "minProperties": 1}, "$.minProperties is not supported beside properties"),
        ({"type": "object", "properties": {"a b": {"not": NULL}}}, "$.properties['a b'].not is not supported"),
        ({"allOf": [NULL]}, "$.allOf is not supported"),
        ({"type": ["string", "null"], "maxLength": 3}, "$.maxLength is not supported beside several types"),
        ({"type": "object", "properties": {"a": NULL}, "required": ["b"]}, "$.required names 'b'"),
        ({"type": "object", "required": ["b"]}, "$.required names 'b'"),
        ({"type": "array", "items": {"type": "string", "contentEncoding": "base64"}}, "$.items.contentEncoding is not supported"),
        ({"type": "array", "prefixItems": [NULL], "minItems": 2}, "$.prefixItems is not supported beside"),
        ({"type": "string", "format": "no-such"}, "$.format 'no-such' is not supported"),
        ({"type": "string", "pattern": "("}, "$.pattern '(' cannot be read"),
        ({"type": "string", "pattern": "a(?!b)"}, "look-around is not supported"),
        ({"type": "wheel"}, "$.type is not valid"),
        ({"type": "array", "items": NULL, "minItems": -1}, "$.minItems is not valid"),
        ({"type": "array", "items": NULL, "minItems": "2"}, "$.minItems is not valid"),
        ({"type": "object", "properties": {"a": NULL}, "required": "a"}, "$.required is not valid"),
        ({"enum": []}, "$.enum is empty"),
        ({"anyOf": []}, "$.anyOf is not valid"),
        ({"type": "string", "enum": [1]}, "$.enum has a value that is not of type"),
        ({"type": "array", "items": NULL, "minItems": 3, "maxItems": 2}, "$.minItems 3 is above maxItems 2"),
        ({"type": "object", "additionalProperties": NULL, "minProperties": 2, "maxProperties": 1}, "$.minProperties 2 is above"),
        ({"type": "object", "additionalProperties": NULL, "minProperties": 2}, "$.minProperties above 1 is not supported"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "$.minLength 3 is above maxLength 2"),
        ({"$ref": "#"}, "$ requires itself without end"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "$ requires itself without end"),
        ({"$ref": "#/$defs/a"}, "$.$ref '#/$defs/a' is not found"),
        ({"$ref": "https://example.com/schema"}, "is not found"),
        ({"const": float("nan")}, "cannot spell"),
        ({"const": "\ud800"}, "cannot spell"),
        ({}, "$ has no type"),
        ([], "$ must be an object"),
        ("{", "json_schema is not JSON"),
        ("[" * 200_000, "LONGEST_PATTERN"),
        ("[" * 90_000, "nests too deeply"),
        ('{"items":' * 99 + "{}" + "}" * 99, "MOST_SCHEMA_DEPTH"),
        ({"$schema": ["x"], "type": "null"}, "cannot be checked"),
        ({"type": "string", "maxLength": 10**30}, "MOST_PIECES"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_other_schemas_are_refused_by_the_path_of_the_fault(schema, named):
    with pytest.raises(RequestError) as error:
        automaton(schema)
    assert named in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 300


def test_references_that_double_and_double_stop_at_a_limit():
    names = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}}]}
        for i in range(40)
    }
    with pytest.raises(RequestError, match="MOST_PIECES"):
        automaton({"$ref": "#/$defs/d0", "$defs": names | {"d40": NULL}})
    every = [{"$ref": f"#/$defs/d{i}"} for i in range(12)]
    with pytest.raises(RequestError, match="MOST_SCHEMA_PARTS"):
        automaton({"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"anyOf": [NULL, *every]} for i in range(12)}})
    with pytest.raises(RequestError, match="MOST_PROPERTIES"):
        automaton({"type": "object", "properties": {f"p{i}": NULL for i in range(1001)}})
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)}
    with pytest.raises(RequestError, match="nests too deeply"):
        automaton({"$ref": "#/$defs/d0", "$defs": chain | {"d3000": NULL}})
    circle = []
    circle.append(circle)
    with pytest.raises(RequestError, match="MOST_SCHEMA_DEPTH"):
        automaton({"const": circle})
