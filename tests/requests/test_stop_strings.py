"""Stop strings against plain string search."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import byte_tokenizer
from transformers import AutoTokenizer

from specjax.checkpoints.hub import find
from specjax.core.automata import advance_along
from specjax.errors import RequestError
from specjax.requests.constraint import compile_constraint
from specjax.requests.stop_strings import combine_stops, compile_stops
from specjax.requests.vocabulary import token_bytes

BYTES = byte_tokenizer(61)  # token 0 ends; single bytes
ID = {text: id for id, text in enumerate(token_bytes(BYTES, 61)) if text}


@pytest.fixture(scope="module")
def python_tokenizer():
    return AutoTokenizer.from_pretrained(find("tiny-python"))


along = jax.jit(advance_along)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.text("AB-", min_size=1, max_size=4), min_size=1, max_size=3), st.text("AB-", max_size=12))
def test_stop_strings_are_found_where_find_finds_them(strings, text):
    automaton, start = combine_stops([compile_stops(BYTES, 61, strings)])
    tokens = np.array(
        [[ID[c.encode()] for c in text.ljust(12, "-")]], np.int32
    )  # of one length, so that one program does
    states = np.asarray(along(automaton, jnp.asarray(start), jnp.asarray(tokens)))[0, : len(text)]
    accepted = np.asarray(automaton.accept)[states].tolist()
    assert accepted == [any(s in text[: i + 1] for s in strings) for i in range(len(text))]


def test_stop_strings_inside_and_across_real_tokens(python_tokenizer):
    text = "class Stack:\n    def pop(self):\n        return naïve ✓\n"
    for stop in ("Sta", "ack:\n  ", "ï", "return naïve ✓", "\n\n"):
        automaton, start = combine_stops([compile_stops(python_tokenizer, 4096, [stop])])
        ids = python_tokenizer.encode(text)
        states = np.asarray(advance_along(automaton, jnp.asarray(start), jnp.asarray([ids])))[0]
        raw = [token_bytes(python_tokenizer, 4096)[t] for t in ids]
        wanted = [stop.encode() in b"".join(raw[: i + 1]) for i in range(len(ids))]
        assert np.asarray(automaton.accept)[states].tolist() == wanted


def test_special_tokens_have_no_text(python_tokenizer):
    automaton, start = combine_stops([None, compile_stops(python_tokenizer, 4096, ["ab"])])
    a, b, end = (python_tokenizer.convert_tokens_to_ids(t) for t in ("a", "b", python_tokenizer.eos_token))
    states = np.asarray(advance_along(automaton, jnp.asarray(start), jnp.array([[a, end, b]] * 2)))
    assert np.asarray(automaton.accept)[states].tolist() == [[False] * 3, [False, False, True]]
    with pytest.raises(RequestError, match="empty"):
        compile_stops(python_tokenizer, 4096, ["a", ""])


def test_strings_beyond_the_limits_are_refused():
    for strings, limit in ([str(i) for i in range(65)], "MOST_STOP_STRINGS"), (["ab" * 600], "MOST_STOP_BYTES"):
        with pytest.raises(RequestError, match=limit):
            compile_stops(BYTES, 61, strings)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(stop="a\ud800"), "stop holds characters that are no text"),
        (dict(regex="a\ud800"), "no text; remove its surrogates"),
        (dict(choices=["a", "\ud800"]), "choices holds characters that are no text"),
        (dict(json_schema='{"enum": ["\\ud800"]}'), "json_schema cannot be read: unexpected end of hex escape"),
        (
            dict(json_schema='{"type": "object", "properties": {"\\ud800": {"type": "integer"}}}'),
            "json_schema cannot be read: unexpected end of hex escape",
        ),
    ],
)
def test_half_of_a_surrogate_pair_gets_one_line(options, words):
    with pytest.raises(RequestError) as error:
        compile_stops(BYTES, 61, [options["stop"]]) if "stop" in options else compile_constraint(
            BYTES, (0,), 61, **options
        )
    assert words in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 200
