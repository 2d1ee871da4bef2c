"""Constraints that come and go, against each constraint's own table, and a Generator's call with each request alone."""

import re

import numpy as np
import pytest
from support.engine import PROMPTS, facts, submit_over_time
from support.models import byte_tokenizer
from support.program import count_compilations

from specjax.engine.constraints import Constraints
from specjax.errors import RequestError
from specjax.requests.constraint import compile_constraint

TOKENIZER = byte_tokenizer(61)


def compiled(**given):
    return compile_constraint(TOKENIZER, (0,), 61, **given)


def walks(constraint, start: int, table, rng) -> bool:
    """Whether random tokens lead through both tables alike: the same ones are refused, and distances are the same."""
    following, classes, shortest, longest = map(np.asarray, (table.next, table.classes, table.shortest, table.longest))
    own, state, names = 0, start, {0: start}
    for _ in range(60):
        assert (shortest[state], longest[state]) == (constraint.shortest[own], constraint.longest[own])
        moves, joint = constraint.table.next[own, constraint.table.classes], following[state, classes]
        assert np.array_equal(moves >= 0, joint >= 0)
        token = rng.choice(np.flatnonzero(moves >= 0))
        own, state = moves[token], joint[token]
        assert names.setdefault(own, state) == state
    return True


def test_places_of_held_constraints_stay_while_others_come_and_go():
    held, rng = Constraints(40, 12), np.random.default_rng(0)
    digits, choices, letters = (
        compiled(regex="[0-9]{2,9}"),
        compiled(choices=["AB", "AC"]),
        compiled(regex="[A-F]*[0-9]"),
    )
    first = held.hold(digits)
    assert held.hold(None) == 0 and first is not None
    for other in (choices, letters, choices):
        start = held.hold(other)
        assert (
            start is not None
            and walks(digits, first, held.on_device.table, rng)
            and walks(other, start, held.on_device.table, rng)
        )
        assert not held.on_device.table.next[0].any()
        held.release(other)
    assert held.hold(digits) == first
    large = compiled(regex="[A-Z]{32}")
    assert held.hold(large) is None and walks(
        digits, first, held.on_device.table, rng
    )  # two rows still have the digits
    held.release(digits)
    assert held.hold(large) is None
    held.release(digits)
    start = held.hold(large)
    assert start is not None and walks(large, start, held.on_device.table, rng)
    assert held.hold(digits) is None


def test_a_table_is_not_made_again_for_a_constraint_that_it_has():
    held = Constraints(40, 12)
    one, two = compiled(regex="[0-9]+"), compiled(regex="[A-F]+")
    held.prepare(one)
    table = held.prepare(two).table
    assert held.hold(one) and held.hold(two) and held.on_device.table is table
    many = compiled(choices=[f"{a}{b}" for a, b in zip("ABCDEFGHIJKLM", "NOPQRSTUVWXYZ")])
    with pytest.raises(RequestError, match="choices has [0-9]+ states and 28 classes .* table 39 and 12"):
        held.check_size(many)


CONSTRAINTS = [
    dict(regex="[0-9]{3,30}"),
    {},
    dict(choices=["YES", "NO", "12"]),
    dict(json_schema={"enum": ["AB", "CD", 7]}),
    dict(grammar='start: "A" start "B" | "0"'),
    dict(regex="[A-Z]{20}(,[0-9]+)*"),
    dict(regex=r"[A-F]{1,9}-[0-9]{4}", min_new_tokens=8),
]
MATCHES = ["[0-9]{3,30}", ".*", "YES|NO|12", '"AB"|"CD"|7', "A*0?B*", "[A-Z]{20}(,[0-9]+)*", "[A-F]{1,9}-[0-9]{4}"]


def test_constrained_texts_are_those_of_each_request_alone(engine, alone):
    """The table is too small for all constraints at once, so that some requests wait for its room."""
    sampling = [{}, dict(temperature=1.0), dict(temperature=1.3, top_k=9)]
    own = [c | sampling[i % 3] | dict(seed=i, max_new_tokens=31) for i, c in enumerate(CONSTRAINTS)]
    handles = submit_over_time(engine, PROMPTS, own)
    for handle, prompt, options, match in zip(handles, PROMPTS, own, MATCHES):
        result = handle.result()
        # Rounds that jump forward depend on all rows, so other tokens may count as drafts. The text is the same.
        assert facts(result)[:4] == facts(alone(prompt, **options))[:4]
        assert re.fullmatch(match, result.text, re.DOTALL)
    submit_over_time(engine, PROMPTS[4:5], own)  # the store of prefixes gives its first blocks
    assert count_compilations(submit_over_time, engine, PROMPTS[::-1], own, seed=1) == 0
    assert count_compilations(submit_over_time, engine, PROMPTS[:3], [dict(max_new_tokens=9)] * 3) == 0


def test_a_constraint_waits_for_room_and_the_others_go_on(engine, alone):
    options = dict(max_new_tokens=60, temperature=1.0)
    first = engine.submit(PROMPTS[0], regex="[A-Z]{40}", **options)
    while not first.token_ids:
        engine.step()
    second = engine.submit(PROMPTS[1], regex="[0-9]{30}", **options)
    engine.step()
    assert engine.num_waiting == 1 and not first.is_over
    second_text = second.result().text
    assert first.is_over and len(second_text) == 30
    assert first.result().text == alone(PROMPTS[0], regex="[A-Z]{40}", **options).text
    blocking = engine.submit(PROMPTS[0], regex="[A-Z]{40}", **options)
    while not blocking.token_ids:
        engine.step()
    blocking.cancel()
    assert len(engine.submit(PROMPTS[1], regex="[0-9]{30}", **options).result().text) == 30
