"""Grammars of the host against ``jsonschema``, ``re`` and lists of texts, token by token."""

import functools
import itertools
import json
import re

import jsonschema
import numpy as np
import pytest
from support.models import byte_tokenizer
from transformers import AutoTokenizer

from specjax.checkpoints.hub import find
from specjax.errors import RequestError
from specjax.requests.constraint import compile_constraint
from specjax.requests.grammar import Grammar
from specjax.requests.grammar_masks import RowGrammar, write_masks
from specjax.requests.pattern import Character, spell
from specjax.requests.vocabulary import token_bytes

BYTES = byte_tokenizer(61)  # token 0 ends; single bytes, without brackets and lower case
ID = {text: id for id, text in enumerate(token_bytes(BYTES, 61)) if text}
V = 4096


@functools.cache
def tokenizer():
    return AutoTokenizer.from_pretrained(find("tiny-python"))


def compiled(**given) -> Grammar:
    found = compile_constraint(tokenizer(), (0,), V, **given)
    assert isinstance(found, Grammar)
    return found


def masks_of(rows, tokens, prompt_length, nodes, path, vocab_size=V) -> np.ndarray:
    """Bool [B, N, V]: the allowed tokens, as the device reads the bits."""
    numbers = np.array([row.number if row else 0 for row in rows], np.int32)
    length = np.array([len(text) for text in tokens], np.int32)
    padded = np.zeros((len(tokens), max(length) + 3), np.int32)
    for row, text in zip(padded, tokens):
        row[: len(text)] = text
    nodes, path = np.asarray(nodes), np.asarray(path)
    N = nodes.shape[1]
    parent = [[max([j for j in range(i) if row[i, j]], default=0) for i in range(N)] for row in path]
    counts = np.stack([numbers, prompt_length, length, np.full_like(length, N)], 1)
    asked = np.concatenate([counts, nodes, parent, padded], 1).astype(np.int32)
    masks = np.empty((len(asked), N, -(-vocab_size // 32)), np.uint32)
    write_masks(asked, masks.reshape(len(asked), -1))
    return np.unpackbits(masks.view(np.uint8), axis=-1, bitorder="little").astype(bool)[..., :vocab_size]


def allowed_after(row: RowGrammar, text: list[int], vocab_size=V) -> np.ndarray:
    """Bool [V]: the tokens allowed after a text, without drafts."""
    return masks_of([row], [[7, *text]], [1], np.zeros((1, 1), int), np.zeros((1, 1, 1), bool), vocab_size)[0, 0]


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether the grammar allows the tokens of a text and then the end."""
    row, tokens = RowGrammar(grammar), tokenizer().encode(text, add_special_tokens=False)
    return all(allowed_after(row, tokens[:i])[token] for i, token in enumerate((*tokens, 0)))


def random_text(grammar: Grammar, seed: int, longest: int = 400) -> str:
    """A text of random allowed tokens: the shorter the likelier, and the end as soon as it may come."""
    row, rng, tokens = RowGrammar(grammar), np.random.default_rng(seed), []
    lengths = np.array([len(text or b"") for text in token_bytes(tokenizer(), V)])
    while len(tokens) < longest:
        allowed = np.flatnonzero(allowed_after(row, tokens))
        assert allowed.size and row.failure is None, row.failure
        if allowed[0] == 0 and (allowed.size == 1 or rng.random() < 0.5):
            return b"".join(token_bytes(tokenizer(), V)[t] for t in tokens).decode()
        weight = np.where(lengths[allowed] > 0, 4.0 ** -lengths[allowed], 0)
        closing = [t for t in allowed if token_bytes(tokenizer(), V)[t] in (b'"', b"}", b"]")]
        if closing and rng.random() < 0.3:
            tokens.append(int(rng.choice(closing)))
        else:
            tokens.append(int(rng.choice(allowed, p=weight / weight.sum())))
    raise AssertionError("no end")


NULL, WHOLE = {"type": "null"}, {"type": "integer"}
SCHEMAS = [
    {"type": "object", "properties": {"a": WHOLE, "b": {"type": ["boolean", "null"]}}, "required": ["a"]},
    {"type": "object", "properties": {"s": {"type": "string", "minLength": 1, "maxLength": 3}}, "required": ["s"]},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 2},
    {"type": "array", "items": {"enum": ["x", 1, None, {"k": [1]}]}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [WHOLE, {"type": "string", "format": "date"}], "items": False, "minItems": 2},
    {"type": "integer", "minimum": -3, "maximum": 12},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 5},
    {"allOf": [{"type": "object", "properties": {"a": WHOLE}, "required": ["a"]}, {"required": ["b"], "properties": {"b": NULL}}]},
    {"anyOf": [{"const": 'a"b\n'}, {"type": "object", "properties": {"z": {"$ref": "#/$defs/z"}}, "required": ["z"], "additionalProperties": False}],
     "$defs": {"z": {"type": "string", "pattern": "^[a-c]{2}$"}}},
    {"type": "object", "properties": {"v": WHOLE, "next": {"$ref": "#"}}, "required": ["v"], "additionalProperties": False},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:50])
def test_random_texts_are_valid_for_their_schema(schema):
    grammar = compiled(json_schema=schema)
    texts = {random_text(grammar, seed) for seed in range(12)}
    assert len(texts) > 1
    for text in texts:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


@pytest.mark.parametrize(
    ("schema", "allowed", "forbidden"),
    [
        ({"type": "integer", "minimum": 3, "maximum": 11}, ["3", "11"], ["2", "12", "3.0", "03"]),
        ({"type": "object", "properties": {"a": NULL, "b": NULL}, "additionalProperties": False},
         ["{}", '{"b":null}', '{ "a" : null , "b" : null }', '{\n  "a": null,\n  "b": null\n}'], ['{"a":null']),
        ({"type": "object", "properties": {"x": {"$ref": "#"}}, "additionalProperties": False},
         ['{"x":' * 9 + "{}" + "}" * 9], ['{"y":{}}']),
        ({"type": "array", "items": NULL, "minItems": 1, "maxItems": 2}, ["[null]", "[null, null]"], ["[]", "[  null]", "[null,null,null]"]),
        ({"x-guidance": {"whitespace_flexible": False, "whitespace_pattern": None}, "type": "array", "items": NULL}, ["[null,null]"], ["[null, null]"]),
    ],
)  # fmt: skip
def test_texts_that_are_allowed_and_forbidden(schema, allowed, forbidden):
    grammar = compiled(json_schema=schema)
    found = [accepts(grammar, text) for text in (*allowed, *forbidden)]
    assert found == [True] * len(allowed) + [False] * len(forbidden)


def test_lark_grammars_and_the_names_of_special_tokens():
    balanced = compiled(grammar='start: "(" start ")" | "x"')
    assert accepts(balanced, "((x))") and not accepts(balanced, "((x)")
    name = tokenizer().convert_ids_to_tokens(0)
    assert compiled(grammar=f'start: "x" {name}' if name.startswith("<") else 'start: "x"')


@pytest.mark.parametrize("regex", [r"[0-9]{2}-[A-F]+", r"(AB|A)*C?", r"(?i:ab){1,3}", r"^A|[^A-Z]{0,3}$"])
def test_the_host_reads_an_expression_as_re_does(regex, monkeypatch):
    monkeypatch.setattr("specjax.requests.limits.MOST_CELLS", 0)
    grammar = compile_constraint(BYTES, (0,), 61, regex=regex)
    assert isinstance(grammar, Grammar)
    letters = [ID[c.encode()] for c in "0AB1C-"]
    row = RowGrammar(grammar)
    for n in range(5):
        for tokens in itertools.product(letters, repeat=n):
            text = "".join(token_bytes(BYTES, 61)[t].decode() for t in tokens)
            allowed = all(allowed_after(row, [*tokens[:i]], 61)[t] for i, t in enumerate((*tokens, 0)))
            assert allowed == (re.fullmatch(regex, text) is not None), text
    assert spell(Character(((0x61, 0x61), (0xD800, 0xDFFF)))) == r"[\x{61}-\x{61}]"


def test_masks_of_a_tree_are_those_of_its_paths():
    """Every node of random trees against a new row that reads the node's path alone."""
    grammar = compiled(json_schema=SCHEMAS[0])
    row, rng, text = RowGrammar(grammar), np.random.default_rng(0), []
    for _ in range(25):
        allowed = np.flatnonzero(allowed_after(row, text))
        allowed = allowed[allowed > 0]
        parent = np.array([0, *(rng.integers(0, i) for i in range(1, 9))])
        nodes, path = np.zeros(9, int), np.zeros((9, 9), bool)
        for i in range(1, 9):
            path[i] = path[parent[i]]
            path[i, i] = True
            before = [*text, *nodes[path[parent[i]]]]
            follow = np.flatnonzero(allowed_after(RowGrammar(grammar), before))
            nodes[i] = rng.choice(follow) if follow.size and rng.random() < 0.8 else rng.integers(V)
        found = masks_of([row, None], [[7, 8, *text], [7]], [2, 1], [nodes, nodes], [path, path])
        assert found[1].all()
        for i in range(9):
            tokens = nodes[path[i]].tolist()
            fresh = RowGrammar(grammar)
            fits = all(allowed_after(fresh, text + tokens[:k])[t] for k, t in enumerate(tokens)) and 0 not in tokens
            want = allowed_after(RowGrammar(grammar), text + tokens) if fits else np.ones(V, bool)
            assert np.array_equal(found[0, i], want), (text, tokens)
        if not allowed.size:
            break
        text.append(int(rng.choice(allowed)))
    back = allowed_after(row, text[:2])  # the row can go back too
    assert np.array_equal(back, allowed_after(RowGrammar(grammar), text[:2]))


def test_a_failure_forbids_every_token_and_names_the_reason():
    row = RowGrammar(compiled(json_schema=SCHEMAS[0]))
    assert not allowed_after(row, [17]).any() and "satisfy the grammar" in row.failure
    number = row.number
    del row
    gone = np.ones((1, 4), np.uint32)
    write_masks(np.array([[number, 1, 1, 1, 5, 0, 7]]), gone)
    assert not gone.any()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (dict(json_schema={"not": NULL}), 'Unimplemented keys: ["not"]'),
        (dict(json_schema={"type": "wheel"}), "Invalid type: wheel"),
        (dict(json_schema="false"), "json_schema must be a JSON object"),
        (dict(json_schema={"type": "string", "minLength": 3, "maxLength": 2}), "Unsatisfiable schema"),
        (dict(json_schema={"type": "string", "pattern": "a(?!b)"}), "json_schema cannot be used"),
        (dict(json_schema={"$ref": "#"}), "requires itself without end"),
        (
            dict(json_schema={"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
            "requires itself",
        ),
        (
            dict(
                json_schema={
                    "$defs": {"a": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/a"}]}, "minItems": 1}},
                    "$ref": "#/$defs/a",
                }
            ),
            "requires itself",
        ),
        (dict(json_schema={"$ref": "#/$defs/a"}), "json_schema cannot be used"),
        (dict(json_schema={"$ref": "https://example.com/schema"}), "json_schema cannot be used"),
        (dict(json_schema={"const": float("nan")}), "cannot be written as JSON"),
        (dict(json_schema={"const": "\ud800"}), "surrogates"),
        (dict(json_schema=[1]), "json_schema must be a JSON object"),
        (dict(json_schema="{"), "json_schema is not JSON"),
        (dict(json_schema="[" * 1_000_001), "LONGEST_GRAMMAR"),
        (dict(json_schema="[" * 90_000), "nests too deeply"),
        (dict(grammar='start: "a" b'), "unknown name"),
        (dict(grammar=""), "grammar cannot be used"),
        (dict(grammar='start: start "a"'), "grammar cannot match"),
        (dict(grammar="a" * 1_000_001), "LONGEST_GRAMMAR"),
        (dict(grammar="start: " + '"a" ' * 200_000), "grammar cannot be used"),
        (dict(grammar="start: %json " + json.dumps({"not": NULL})), "Unimplemented"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_followed_is_refused_in_one_line(given, named):
    with pytest.raises(RequestError) as error:
        compile_constraint(tokenizer(), (0,), V, **given)
    assert named in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 300
