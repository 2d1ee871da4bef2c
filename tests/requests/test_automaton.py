"""Byte automata of regular expressions against Python's ``re``, and the limits on the work of making them."""

import random
import re
import time

import pytest
from support.walks import accepts, random_texts

from specjax.errors import RequestError
from specjax.requests.automaton import byte_automaton
from specjax.requests.characters import complement, find_members, outside_surrogates
from specjax.requests.pattern import read_regex

EXPRESSIONS = {
    "[0-9]{2}-[A-F]+": "01AF-",
    "(AB|A)*C?": "ABC",
    "A(B|0CA)?-?": "AB0C-",
    "(0|1(01*0)*1)+": "01",
    "": "a",
    "(|a){3}": "a",
    "(a?){5}b": "ab",
    "(a*)*b": "ab",
    "x{2,}y{,3}": "xy",
    "^a|b$": "ab",
    "[^A-Z]{0,3}": "aé✓😀A\n",
    ".*é+": "éa\n✓",
    "(?s:.)a": "\na",
    r"\w+\s?": "aé٣ ✓_\u0301\u2003",
    r"[^\W\d]{1,2}": "aé1_٣",
    "(?i)straße|[k-m]": "STRAßEẞkK\u212al",
    "(?a:\\w)é": "aéb",
    "\ud7ff|[\ue000-\U00010001]": "\ud7ff\ue000\U00010000\U00010002",
}


@pytest.mark.parametrize("regex", EXPRESSIONS)
def test_a_text_is_accepted_exactly_where_re_matches_it_in_full(regex):
    automaton = byte_automaton(read_regex(regex, "regex"), "regex")
    rng = random.Random(0)
    for _ in range(500):
        text = "".join(rng.choice(EXPRESSIONS[regex]) for _ in range(rng.randrange(7)))
        assert accepts(*automaton, text) == (re.fullmatch(regex, text) is not None), text
    for text in random_texts(*automaton, 30):
        assert re.fullmatch(regex, text), text


def test_bytes_that_are_no_utf8_are_refused():
    moves, _ = byte_automaton(read_regex("(?s:.)", "regex"), "regex")
    lead = [byte for byte in range(256) if moves[0, byte] >= 0]
    assert lead == [*range(128), *range(0xC2, 0xF5)]
    second = lambda byte: [b for b in range(256) if moves[moves[0, byte], b] >= 0]
    assert second(0xE0) == list(range(0xA0, 0xC0)), "overlong"
    assert second(0xED) == list(range(0x80, 0xA0)), "surrogates"
    assert second(0xF0) == list(range(0x90, 0xC0)), "overlong"
    assert second(0xF4) == list(range(0x80, 0x90)), "above the last code point"


def test_sets_of_characters():
    digits = find_members(r"\d", 0)
    assert digits[0] == (0x30, 0x39) and (0x660, 0x669) in digits
    assert complement(((0, 4), (7, 9)))[0] == (5, 6)
    assert complement(complement(digits)) == digits
    assert outside_surrogates(((0, 5), (0xD000, 0xE001))) == ((0, 5), (0xD000, 0xD7FF), (0xE000, 0xE001))


@pytest.mark.parametrize(
    ("regex", "limit"),
    [
        ("(a|aa){1,3000}", "MOST_STEPS"),
        ("(a|b)*a(a|b){40}", "MOST_STATES"),
        ("[a-z]{1,100000}", "MOST_STATES"),
        ("(.{0,1000}a){0,1000}", "MOST_PIECES"),
        ("(((a{0,99}){0,99}){0,99}){0,99}", "MOST_PIECES"),
        ("a" * 100_001, "LONGEST_PATTERN"),
    ],
)
def test_work_stops_at_a_limit_that_is_named(regex, limit):
    began = time.process_time()
    with pytest.raises(RequestError, match=f"regex.*above the limit of [0-9,]+ .{limit}.") as error:
        byte_automaton(read_regex(regex, "regex"), "regex")
    assert "\n" not in str(error.value) and time.process_time() - began < 30


def test_repeating_nothing_ends():
    assert accepts(*byte_automaton(read_regex("(){4000000000}(|){0,9}()*", "regex"), "regex"), "")


@pytest.mark.parametrize(
    ("regex", "named"),
    [
        ("([", "unterminated"),
        ("A)(B", "unbalanced"),
        ("(?=A)A", "look-around"),
        (r"(a)\1", "back reference"),
        ("a*+", "possessive"),
        ("a^b", "an anchor inside"),
        (r"a\bb", "an anchor inside"),
        ("(" * 9000 + ")" * 9000, "nests too deeply"),
        ("[b-a]", "bad character range"),
    ],
)
def test_what_no_automaton_has_is_refused_by_name(regex, named):
    with pytest.raises(RequestError, match=f"cannot be read.*{named}") as error:
        read_regex(regex, "regex")
    assert "\n" not in str(error.value)
