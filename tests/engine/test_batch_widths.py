"""Rounds of some of the slots, against rounds of all slots and against a Generator."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoding import start
from support.engine import NAN, OPTIONS, PROMPTS, SETTING, cost, facts, submit_over_time
from support.grid import METHODS
from support.grid.methods import V, draft_of, target_of
from support.models import language_model
from support.program import count_compilations, make_blank_requests

from specjax import Engine, RequestError, make_mesh
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model, save_model
from specjax.engine import row_subset, slots
from specjax.engine.batch_widths import Copies, usual_widths
from specjax.rules.acceptance import resolve

METHODS_OF_CASES = ("lookahead", "partial_cache", "partial_cascade", "merged", "eagle3", "switch")
CASES = {"hybrid": ("draft_model", "hybrid")} | {name: (name, "dense") for name in METHODS_OF_CASES}
"""Methods and kinds of targets with caches of several kinds. Those of all other methods are like these.

The first case has keys and values of target and draft, and recurrent states.

Method auto chooses for all rows of a batch, so its rounds depend on the batch.
"""

PROMPT = 50
"""Tokens of a prompt. Its row soon reaches beyond the positions that are copied together."""


def compile_rounds(method: str, kind: str):
    """``slots.advance`` and ``narrow.advance`` of a method, a state of three rows, and one of two."""
    drafter = METHODS[method][0]
    target, draft = target_of(drafter, kind), drafter.parameters(draft_of(drafter, 1), V)
    axes = slots.find_row_axes(
        target, draft, make_blank_requests(1, 32), drafter=drafter, chunk=16, dtype="float32", logprobs=None
    )
    static = dict(drafter=drafter, rule=resolve("auto", drafter.drawn), most_rounds=8)
    prompts = np.random.default_rng(0).integers(0, V, (3, PROMPT)).tolist()
    options = dict(capacity=128, chunk=64, limit=PROMPT + 40, temperature=0.7)
    begin = lambda prompts, seeds: start(target, draft, drafter, prompts, seeds=seeds, **options)
    on_all = jax.jit(partial(slots.advance, **static))
    on_some = jax.jit(partial(row_subset.advance, axes=axes, **static))
    states = begin(prompts, [1, 2, 3]), begin(prompts[:2], 7)
    return partial(on_all, target, draft), partial(on_some, target, draft), *states


def text(state, row: int) -> list[int]:
    return state.tokens[row, : state.length[row]].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_rounds_of_some_slots_are_those_of_all_and_leave_the_others_alone(case):
    """The rows of slots 2 and 0 run alone, in several calls, and then with the third to their ends."""
    on_all, on_some, begun, other = compile_rounds(*CASES[case])
    expected, state, lengths = begun, begun, []
    for known in (False, True, True):
        expected, news = on_all(expected, jnp.int32(6))
        (state, other), some = on_some(state, other, jnp.int32([2, 0]), jnp.array([known] * 2), jnp.int32(6))
        for row, slot in enumerate((2, 0)):
            assert text(state, slot) == text(expected, slot)
            told = lambda news, row: (
                news.tokens[row, : news.count[row]].tolist(),
                news.rounds[row].tolist(),
                news.done[row],
            )
            assert told(some, row) == told(news, slot)
        assert text(state, 1) == text(begun, 1)
        lengths.append(int(state.length[0]))
    assert PROMPT < lengths[0] < lengths[1] <= lengths[2] and lengths[2] > 64  # beyond the first piece of positions
    for _ in range(12):
        expected, state = (on_all(one, jnp.int32(8))[0] for one in (expected, state))
    assert state.done.all() and [text(state, row) for row in range(3)] == [text(expected, row) for row in range(3)]


@pytest.fixture(scope="module")
def narrow_engine(target) -> Engine:
    engine = Engine(target, **SETTING, slots=4, widths=[2, 1], chunk=16, rounds=2)
    engine.compile_rounds()
    return engine


def test_texts_do_not_depend_on_the_width(narrow_engine, alone, monkeypatch):
    ran, launch = set(), narrow_engine.programs.launch

    def watched(rounds, running, *rest):
        ran.add(len(running))
        return launch(rounds, running, *rest)

    monkeypatch.setattr(narrow_engine.programs, "launch", watched)
    handles = submit_over_time(narrow_engine, PROMPTS, OPTIONS * 2)
    for handle, prompt, own in zip(handles, PROMPTS, OPTIONS * 2):
        result, expected = handle.result(), alone(prompt, **own)
        assert facts(result) == facts(expected) and cost(result) == cost(expected)
    assert {1, 2, 3} <= ran


LONG = np.random.default_rng(0).integers(1, NAN, (3, 80)).tolist()
"""Prompts with more positions than are copied together: keys and values of the first ones are copied once."""


def test_a_row_is_copied_anew_after_the_slot_got_another_request(narrow_engine, alone):
    options = dict(max_new_tokens=30, ignore_eos=True, temperature=1.0, seed=1)
    for prompt in LONG[:2]:  # one after the other, in one slot
        assert narrow_engine.submit(prompt, **options).result().token_ids == alone(prompt, **options).token_ids


def test_a_row_is_copied_anew_after_rounds_of_all_slots(narrow_engine, alone):
    """Two rows run, then a third beside them for more positions than are copied together, then two again."""
    options = dict(ignore_eos=True, temperature=1.0, seed=1)
    handles = [narrow_engine.submit(prompt, max_new_tokens=170, **options) for prompt in LONG[:2]]
    while not all(handle.token_ids for handle in handles):
        narrow_engine.step()
    third = narrow_engine.submit(LONG[2], max_new_tokens=100, **options)
    while not third.is_over:
        narrow_engine.step()
    assert all(100 <= len(handle.token_ids) < 160 for handle in handles)
    for handle, prompt in zip(handles, LONG):
        assert handle.result().token_ids == alone(prompt, max_new_tokens=170, **options).token_ids


def test_compiled_rounds_are_not_compiled_again(narrow_engine):
    submit_over_time(narrow_engine, PROMPTS[:6], OPTIONS)
    one = lambda: narrow_engine.submit(PROMPTS[0], **OPTIONS[0]).result()
    assert count_compilations(one) == 0


def test_a_slot_keeps_the_row_that_has_its_copy():
    copies = Copies()
    assert copies.choose([5, 3], 4, 8) == [5, 3, 0, 1]
    copies.add([5, 3, 0, 1])
    assert copies.choose([3, 1, 6], 4, 8) == [6, 3, 0, 1]
    assert copies.are_known([6, 3, 0, 1]) == [False, True, True, True]
    copies.forget(3)
    assert copies.are_known([6, 3, 0, 1]) == [False, False, True, True]
    copies.add([3])
    assert copies.are_known([3]) == [True] and copies.are_known([6, 3, 0, 1]) == [False, False, True, True]
    copies.forget_all()
    assert copies.are_known([3]) == [False]


def test_the_usual_widths():
    assert [usual_widths(n) for n in (1, 3, 4, 15, 16, 64)] == [(), (), (1,), (1,), (1, 4), (1, 4, 16)]
    assert usual_widths(16, on_mesh=True) == ()


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ([4], "widths must be below the 4 slots, not 4"),
        ([0], "widths must be a whole number, at least 1"),
        (2, "widths must be a list of numbers of rows, not 2"),
    ],
)
def test_widths_that_do_not_fit_are_refused(target, widths, message):
    with pytest.raises(RequestError, match=message):
        Engine(target, **SETTING, slots=4, widths=widths)


def test_an_engine_on_a_mesh_has_no_widths(target, tmp_path):
    save_model(target.model, tmp_path)
    target = language_model(load_model(tmp_path, Placement(mesh=make_mesh(data=2))))
    with pytest.raises(RequestError, match="an engine on a mesh computes all its slots"):
        Engine(target, **SETTING, slots=4, widths=[1])
