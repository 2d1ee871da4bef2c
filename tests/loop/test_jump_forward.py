"""Jump-forward: the law of the texts, the rounds that it saves, and the tokens that grammars force."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.grid import METHODS, count_draws, p_values
from support.grid.cases import CONSTRAINT, END, LENGTH, Case
from support.grid.loop import make_batch, prefill, run
from support.grid.methods import draft_of, target_of

from specjax.core.logit_adjustments import RowConstraints
from specjax.core.sampling import random_keys
from specjax.loop.chooser import at_largest_shape
from specjax.loop.decode import round_keys, step
from specjax.loop.jump_forward import MOST_FORCED, forced_tokens, jump_or, may_jump
from specjax.rules import RULES

UNLIKELY = 1e-4
CASES = {
    "forced, then free": Case(stop=END, grammar="1(1|2)[012]"),
    "free, then forced": Case(stop=END, grammar="[12]12"),
    "forced to its limit": Case(stop=END, grammar="2121"),
    "forced, then the end": Case(stop=END, grammar="12?", temperature=0.6),
    "greedy": Case(stop=END, grammar="(1|2)1(12|2)", temperature=0.0),
    "truncated": Case(stop=END, grammar="1[01]{2}", top_p=0.8, repetition_penalty=1.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_texts_have_the_targets_law(method):
    """The grammars of ``test_lossless`` force tokens too, in fewer places."""
    drafter, rules = METHODS[method]
    counts, _ = count_draws(drafter, rules[0], seed=1, rows=1_000, cases=CASES)
    values = p_values(counts, cases=CASES)
    assert min(values.values()) > UNLIKELY, values


def read(method: str, cases: dict, rows: int = 1, seeded: bool = False):
    """The state after the prefill, and what the rounds take besides it."""
    drafter, _ = METHODS[method]
    target, parameters = target_of(drafter, "dense"), drafter.parameters(draft_of(drafter, 1), 5)
    requests = make_batch(0, rows, (), cases)
    if seeded:  # the keys of equal rows do not depend on the number of rows
        keys = random_keys(5, rows)[jnp.arange(len(cases) * rows) % rows]
        requests = requests.replace(seeded=jnp.ones(len(cases) * rows, bool), keys=keys)
    state = prefill(target, parameters, requests, drafter=drafter, chunk=4, dtype="float32")
    return state, (target, parameters, drafter)


def decode(method: str, cases: dict, rows: int = 1, seeded: bool = False, rule: str = ""):
    """The states after the prefill and at the end; by default with the method's first rule."""
    state, (target, parameters, drafter) = read(method, cases, rows, seeded)
    rule = RULES[rule or METHODS[method][1][0]]
    return state, run(target, parameters, state, jnp.int32(99), drafter=drafter, rule=rule)


@pytest.mark.slow
def test_a_forced_text_takes_one_round_of_plain_decoding():
    _, state = decode("none", {"forced": CASES["forced to its limit"]}, rows=3)
    assert np.asarray(state.counters.calls).tolist() == [1] * 3
    assert not np.asarray(state.from_draft).any() and not np.asarray(state.counters.drafted).any()


def test_a_few_forced_tokens_do_not_stop_the_drafts_of_the_other_rows():
    cases = {"forced": CASES["forced to its limit"]} | {f"free {i}": Case() for i in range(4)}
    _, state = decode("ngram", cases)
    assert int(state.counters.drafted.sum()) > 0
    _, alone = decode("ngram", {f"forced {i}": CASES["forced to its limit"] for i in range(len(cases))})
    assert int(alone.counters.drafted.sum()) == 0


def test_forced_tokens_are_those_that_a_table_alone_allows():
    """In the hand-written automaton, state 1 allows token 1 and the end, and state 2 tokens 1 and 2."""
    table = CONSTRAINT.replace(next=CONSTRAINT.next.at[1, END].set(-1).at[2, 2].set(-1))
    state, _ = read("none", CASES)
    sampling = state.request.sampling.replace(constraint=RowConstraints(table))
    state = state.replace(
        request=state.request.replace(sampling=sampling), constraint_state=jnp.array([0, 1, 2, 3, 4, 1], jnp.int32)
    )
    forced = jax.jit(forced_tokens, static_argnames="most")(state, most=3).tolist()
    assert forced == [[-1] * 3, [1, 1, 1], [1, 1, 1], [-1] * 3, [-1] * 3, [1, 1, 1]]


def test_forced_tokens_are_those_that_the_grammar_alone_allows():
    state, _ = read("none", CASES)
    forced = np.asarray(jax.jit(forced_tokens, static_argnames="most")(state, most=4))
    expected = {
        "forced, then free": [1],
        "forced to its limit": [2, 1, 2, 1],
        "forced, then the end": [1],
        "truncated": [1],
    }
    for name, tokens in zip(CASES, forced.tolist()):
        assert tokens == (expected.get(name, []) + [-1] * 4)[:4], name


def test_no_round_jumps_beyond_the_capacity():
    """Plain decoding has room for one token beyond the limit, and a jump writes up to MOST_FORCED."""
    calls = {}
    for prompt in ((1, 2), (1, 2) * 4):
        state, after = decode("none", {"": Case(prompt=prompt, stop=END, grammar="[12]12")})
        assert np.asarray(after.tokens)[0, len(prompt) + 1 : len(prompt) + LENGTH].tolist() == [1, 2]
        calls[state.tokens.shape[1] - len(prompt) - 1] = int(after.counters.calls[0])
    assert calls == {9: 2, MOST_FORCED: LENGTH}


OWN_HISTORY = {"lookahead", "token_recycling"}  # their states hold predictions of earlier rounds


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=() if name == "draft_model" else pytest.mark.slow)
        for name in METHODS
        if not any(name.startswith(own) for own in OWN_HISTORY)
    ],
)
def test_after_a_jump_a_method_drafts_as_if_the_text_had_been_a_prompt(method):
    drafter, rules = METHODS[method]
    one_shape = at_largest_shape(drafter)
    target, parameters = target_of(drafter, "dense"), drafter.parameters(draft_of(drafter, 1), 5)
    read_anew = lambda cases: prefill(
        target, parameters, make_batch(0, 1, (), cases), drafter=drafter, chunk=4, dtype="float32"
    )
    before = read_anew({"": dataclasses.replace(CASES["forced, then free"], prompt=(1, 2, 1, 0))})
    forced = jax.jit(forced_tokens, static_argnames="most")(before, most=min(MOST_FORCED, drafter.depth or MOST_FORCED))

    @jax.jit
    def jump(target, parameters, state):
        one_round = functools.partial(step, target, parameters)
        return jump_or(lambda state: state, one_round, state, drafter=drafter, rule=RULES[rules[0]])

    jumped = jump(target, parameters, before)
    assert int(jumped.length[0]) == 6 and int(forced[0, 0]) == 1
    text = tuple(np.asarray(jumped.tokens)[0, :6].tolist())
    fresh = read_anew({"": dataclasses.replace(CASES["forced, then free"], prompt=text)})
    keys, _ = round_keys(fresh, 1)
    propose = jax.jit(lambda state: one_shape.propose(target, parameters, state, keys)[0])
    after, expected = propose(jumped.replace(request=fresh.request)), propose(fresh)
    np.testing.assert_array_equal(after.tokens, expected.tokens)
    np.testing.assert_array_equal(after.valid, expected.valid)
    if expected.q is not None:
        np.testing.assert_allclose(after.q, expected.q, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        ("draft_model", "block"),
        pytest.param("ngram", "sample_and_walk", marks=pytest.mark.slow),
        pytest.param("auto", "walk_if_seeded", marks=pytest.mark.slow),
    ],
)
def test_the_text_of_a_row_with_a_seed_does_not_depend_on_its_neighbours(method, rule):
    """Block verification draws texts that depend on where rounds begin. The walk draws those of plain decoding.

    The neighbours are free rows, beside which no round jumps, and forced rows. Both batches share a program.
    """
    seeded = {"seeded": Case(stop=END, grammar="[12]{3}|212")}
    texts = []
    for neighbour in (Case(), CASES["forced to its limit"]):
        cases = seeded | {f"neighbour {i}": neighbour for i in range(3)}
        _, state = decode(method, cases, rows=20, seeded=True, rule=rule)
        texts.append(np.asarray(state.tokens)[:20, : 3 + LENGTH].tolist())
    assert texts[0] == texts[1]


def test_a_rule_with_an_unknown_law_judges_every_round():
    """A user's function may divide by q, which the chain of a jump lacks."""
    state, _ = read("draft_model", CASES)
    assert may_jump(state, RULES["block"]) and not may_jump(state, RULES["block"].apply)
    assert not may_jump(state, RULES["typical"])
