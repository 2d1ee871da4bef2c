"""Constraints over tokens against ``re`` and ``jsonschema``."""

import dataclasses
import itertools
import re

import jax.numpy as jnp
import numpy as np
import pytest
from support.models import byte_tokenizer
from transformers import AutoTokenizer

from specjax.checkpoints.hub import find
from specjax.core.automata import advance, advance_along, advance_tree
from specjax.core.tree import Tree
from specjax.errors import RequestError
from specjax.requests.constraint import ENDLESS, check_lengths, combine_constraints, compile_constraint
from specjax.requests.grammar import Grammar
from specjax.requests.vocabulary import token_bytes

BYTES = byte_tokenizer(61)  # token 0 ends; single bytes
TEXTS = token_bytes(BYTES, 61)
ID = {text: id for id, text in enumerate(TEXTS) if text}


@pytest.fixture(scope="module")
def python_tokenizer():
    return AutoTokenizer.from_pretrained(find("tiny-python"))


def walk(compiled, rng, longest: int = 60) -> list[int]:
    """Random allowed tokens, ended as soon as the end token 0 is drawn, or by the shortest way when time is up."""
    state, tokens = 0, []
    while True:
        allowed = np.flatnonzero(compiled.table.next[state, compiled.table.classes] >= 0)
        assert allowed.size, "a dead end"
        if len(tokens) >= longest:
            after = compiled.table.next[state, compiled.table.classes[allowed]]
            allowed = (
                allowed[[0]] if allowed[0] == 0 else allowed[compiled.shortest[after] == compiled.shortest[after].min()]
            )
        token = int(rng.choice(allowed))
        if token == 0:
            assert compiled.shortest[state] == 0
            return tokens
        state = compiled.table.next[state, compiled.table.classes[token]]
        tokens.append(token)


def accepts(compiled, tokens) -> bool:
    """Whether the tokens and then the end token are allowed."""
    state = 0
    for token in (*tokens, 0):
        state = compiled.table.next[state, compiled.table.classes[token]]
        if state < 0:
            return False
    return True


REGEXES = [
    r"[0-9]{2}-[A-F]+",
    r"(AB|A)*C?",
    r"[^A-Z]{0,3}",
    r"A|AB|ABC",
    r"(0|1(01*0)*1)+",
    r"",
    r"(CA|B0)?",
    r"A(B|0CA)?-?",
]


@pytest.mark.parametrize("regex", REGEXES)
def test_texts_are_accepted_that_re_matches_and_no_others(regex):
    compiled = compile_constraint(BYTES, (0,), 61, regex=regex)
    rng = np.random.default_rng(0)
    for _ in range(50):
        text = b"".join(TEXTS[t] for t in walk(compiled, rng))
        assert re.fullmatch(regex, text.decode()), text
    letters = [ID[c.encode()] for c in "0AB1C-"]
    for n in range(5):
        for tokens in itertools.product(letters, repeat=n):
            text = b"".join(TEXTS[t] for t in tokens).decode()
            assert accepts(compiled, tokens) == (re.fullmatch(regex, text) is not None), text


def test_lengths_to_the_next_and_the_farthest_match():
    compiled = compile_constraint(BYTES, (0,), 61, regex=r"AB(C|DEF)?")
    assert (compiled.shortest[0], compiled.longest[0]) == (2, 5)
    assert compile_constraint(BYTES, (0,), 61, regex=r"A+").longest[0] == ENDLESS
    with pytest.raises(RequestError, match="min_new_tokens 6 conflicts with regex.*longest match has 5"):
        check_lengths(compiled, 6, 9)
    with pytest.raises(RequestError, match="1 new tokens are too few.*shortest match has 2"):
        check_lengths(compiled, 0, 1)


def test_banned_tokens_leave_no_dead_end():
    banned = frozenset([ID[b"B"]])
    compiled = compile_constraint(BYTES, (0,), 61, regex=r"A(B|CD)|AB", banned=banned)
    assert {bytes(b"".join(TEXTS[t] for t in walk(compiled, np.random.default_rng(i)))) for i in range(20)} == {b"ACD"}
    with pytest.raises(RequestError, match="cannot match without the tokens"):
        compile_constraint(BYTES, (0,), 61, regex=r"AB+", banned=banned)


def test_real_tokens_spell_choices_however_they_are_cut(python_tokenizer):
    choices = ["yes", "no", "maybe (so) a.b|c*", "naïve ✓"]
    compiled = compile_constraint(python_tokenizer, (0,), 4096, choices=choices)
    rng = np.random.default_rng(0)
    spelled = {python_tokenizer.decode(walk(compiled, rng)) for _ in range(200)}
    assert spelled == set(choices)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (dict(regex="(["), "cannot be read"),
        (dict(regex="(?=A)A"), "cannot be read"),
        (dict(regex="A)(B"), "cannot be read"),
        (dict(regex="\N{SNOWMAN}"), "cannot match over this vocabulary"),
        (dict(choices=[]), "choices is empty"),
        (dict(choices=["A", ""]), "choices is empty"),
        (dict(choices=["A"], regex="A"), "regex and choices"),
        (dict(), "none"),
    ],
)
def test_what_cannot_match_is_refused(given, named):
    with pytest.raises(RequestError, match=named) as error:
        compile_constraint(BYTES, (0,), 61, **given)
    assert "\n" not in str(error.value)


def test_automata_of_a_batch_keep_to_themselves():
    one, two = (compile_constraint(BYTES, (0,), 61, regex=r) for r in ("A+B", "[AC]{2}"))
    constraint, start, _ = combine_constraints([two, None, one, two])
    automaton = constraint.table
    assert start[1] == 0 and start[0] == start[3] and len(set(start.tolist())) == 3
    tokens = jnp.array([[ID[c.encode()] for c in text] for text in ("CA", "ZZ", "AB", "AB")])
    states = np.asarray(advance_along(automaton, jnp.asarray(start), tokens))
    assert (states[:3] >= 0).all() and states[3, 1] == -1 and np.all(states[1] == 0)
    assert np.asarray(automaton.shortest)[states[[0, 2], 1]].tolist() == [0, 0]
    assert combine_constraints([None, None])[0] is None
    assert automaton.next.shape == combine_constraints([one])[0].table.next.shape, (
        "another constraint of this size must not recompile"
    )


def test_states_along_a_tree_are_those_of_its_paths():
    compiled = compile_constraint(BYTES, (0,), 61, regex=r"(AB|C)*D")
    constraint, start, _ = combine_constraints([compiled])
    automaton = constraint.table
    rng = np.random.default_rng(0)
    parent = np.array([0, 0, 0, 1, 1, 3, 2, 5])
    tokens = rng.choice([ID[c.encode()] for c in "ABCD"], 8)
    tree = Tree(jnp.asarray(tokens)[None], jnp.asarray(parent)[None], jnp.ones((1, 8), bool), max_depth=4)
    states = np.asarray(advance_tree(automaton, jnp.asarray(start), tree))[0]
    for node in range(8):
        path = []
        while node:
            path.insert(0, node)
            node = parent[node]
        state = jnp.asarray(start[0])
        for step in path:
            state = advance(automaton, state, jnp.asarray(tokens[step]))
        assert not path or states[path[-1]] == state


def test_a_batch_of_too_many_constraints_is_refused():
    one = compile_constraint(BYTES, (0,), 61, regex="A{3}")
    compiled = [dataclasses.replace(one) for _ in range(257)]
    assert combine_constraints(compiled[:256])[0] is not None
    with pytest.raises(RequestError, match="MOST_CONSTRAINTS"):
        combine_constraints(compiled)


@pytest.mark.parametrize("limit", ["MOST_TOKEN_STEPS", "MOST_CELLS", "MOST_TABLE_STATES", "MOST_TABLE_CLASSES"])
def test_an_expression_beyond_the_limits_of_a_table_becomes_a_grammar(limit, monkeypatch):
    monkeypatch.setattr(f"specjax.requests.limits.{limit}", 2)
    assert isinstance(compile_constraint(BYTES, (0,), 61, regex=f"A{{{len(limit)}}}"), Grammar)
