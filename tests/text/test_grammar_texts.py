"""Texts of the embedded model with schemas: every method against plain decoding, and ``jsonschema``."""

import json
import threading

import jsonschema
import pytest
from support.program import count_compilations

from specjax import Engine, Generator, NumericsError

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["area", "size"]}, "count": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
OTHER = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4}
PROMPTS = ["def area(", "x = "]
DRAFTS = {"draft_model": "tiny-python-draft", "tree": "tiny-python-draft", "ngram": None}


@pytest.fixture(scope="module")
def plain():
    return Generator("tiny-python", "none")


@pytest.fixture(scope="module")
def engine(plain):
    """A started engine, whose programs all tests share."""
    with Engine(plain.target, "none", slots=2) as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize("method", DRAFTS)
def test_greedy_texts_are_those_of_plain_decoding(method, plain):
    options = dict(json_schema=[SCHEMA, OTHER], max_new_tokens=40)
    drafted = Generator(plain.target, method, DRAFTS[method])(PROMPTS, **options)
    assert [r.token_ids for r in drafted] == [r.token_ids for r in plain(PROMPTS, **options)]
    if method != "ngram":
        assert drafted[0].stats.target_calls < len(drafted[0].token_ids)


def test_sampled_texts_are_valid_and_a_new_schema_compiles_nothing(plain):
    options = dict(n=4, temperature=1.0, max_new_tokens=60)
    for schema in (SCHEMA, OTHER):
        ended = [r.text for r in plain("x = ", json_schema=schema, **options) if r.finish_reason == "stop"]
        assert len(ended) > 1
        for text in ended:
            jsonschema.validate(json.loads(text), schema)
    assert count_compilations(plain, "x = ", json_schema={"type": "null"}, **options) == 0
    assert plain("x = ", json_schema={"type": "null"}).text == "null"


@pytest.mark.parametrize(
    "option",
    [
        {"json_schema": {"const": "a longer text that has no choice"}},
        pytest.param({"choices": ["def"]}, marks=pytest.mark.slow),
    ],
    ids=["grammar", "table"],
)
def test_forced_tokens_save_calls_of_the_target(option, plain, engine):
    """The text is that of one call a token, in a generator and in an engine beside a free row."""
    free = engine.submit("x = ", max_new_tokens=40).result().text
    result = plain("x = ", max_new_tokens=40, **option)
    assert result.stats.target_calls < len(result.token_ids) and result.stats.drafted == 0
    handles = [engine.submit("x = ", max_new_tokens=40, **one) for one in (option, {})]
    assert [handle.result().text for handle in handles] == [result.text, free]


def test_a_length_limit_cuts_the_text(plain):
    result = plain("x = ", json_schema=SCHEMA, max_new_tokens=3)
    assert result.finish_reason == "length" and len(result.token_ids) == 3


def test_a_row_without_a_possible_token_fails_and_the_others_go_on(plain, engine):
    """The end comes before min_new_tokens; and a parser that breaks down in the midst of a text."""
    with pytest.raises(NumericsError, match="no token is possible for prompt 1"):
        plain(PROMPTS, json_schema=[SCHEMA, {"const": 1}], min_new_tokens=[0, 30], max_new_tokens=60)
    bad = engine.submit("x = ", json_schema={"const": 1}, min_new_tokens=30, max_new_tokens=60)
    good = engine.submit("x = ", json_schema=SCHEMA, max_new_tokens=60)
    with pytest.raises(NumericsError, match="no token is possible"):
        bad.result()
    assert good.result().text == plain("x = ", json_schema=SCHEMA, max_new_tokens=60).text
    broken = engine.submit("x = ", grammar='start: "ab" /[a-z]{40}/', max_new_tokens=60)
    broken.constraint._grammar.start.consume_token(17)  # every copy is then in error
    with pytest.raises(NumericsError, match="grammar allows no token for prompt 0"):
        broken.result()


def test_two_threads_and_an_engine_ask_the_host_at_once(plain, engine):
    """Calls of the host from several programs at once do not wait for one another."""
    wanted = plain("x = ", json_schema=SCHEMA, max_new_tokens=60).text
    found = []
    call = lambda: found.extend(plain("x = ", json_schema=SCHEMA, max_new_tokens=60).text for _ in range(8))
    threads = [threading.Thread(target=call, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    handles = [engine.submit("x = ", json_schema=SCHEMA, max_new_tokens=60) for _ in range(8)]
    found += [handle.result().text for handle in handles]
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert found == [wanted] * 32
