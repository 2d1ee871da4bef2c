"""Rounds that a started engine launches before it has read the results of the last ones."""

import contextlib

import pytest
from support.engine import OPTIONS, PROMPTS, SETTING, cost, count_waits, facts

from specjax import Engine
from specjax.errors import CancelledError


@pytest.fixture
def started(engine):
    """The engine with a thread, which begins with the requests that have been submitted."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(engine)


def watch_launches(engine, monkeypatch) -> list[int]:
    """A list that gets the number of launches on the device, after each launch."""
    flying, numbers = [0], []
    launch, finish = engine.programs.launch, engine.programs.finish

    def count_launch(*given):
        flying[0] += 1
        numbers.append(flying[0])
        return launch(*given)

    def count_finish(given):
        flying[0] -= 1
        return finish(given)

    monkeypatch.setattr(engine.programs, "launch", count_launch)
    monkeypatch.setattr(engine.programs, "finish", count_finish)
    return numbers


def test_rounds_are_launched_before_the_results_of_the_last_ones(engine, started, alone, monkeypatch):
    numbers = watch_launches(engine, monkeypatch)
    requests = list(zip(PROMPTS, OPTIONS * 2))
    handles = [engine.submit(prompt, **own) for prompt, own in requests]
    started()
    for handle, (prompt, own) in zip(handles, requests):
        result, expected = handle.result(), alone(prompt, **own)
        assert facts(result) == facts(expected) and cost(result) == cost(expected)
    assert set(numbers) == {1, 2} and numbers.count(2) > 20
    engine.stop()
    assert engine._rounds._flying is None


def test_a_row_begins_with_one_round(target, monkeypatch):
    """Steps have three rounds by the clock, but for those in which a row begins."""
    engine, rounds = Engine(target, "none", slots=1, capacity=256), []
    launch = engine.programs.launch
    monkeypatch.setattr(engine.programs, "launch", lambda count, *given: rounds.append(count) or launch(count, *given))
    monkeypatch.setattr(engine._pace, "add_rounds", lambda count, seconds: setattr(engine._pace, "_round", 0.007))
    with engine:
        for _ in range(2):
            rounds.clear()
            engine.submit(PROMPTS[0], max_new_tokens=40, ignore_eos=True).result()
            assert rounds[0] == 1 and set(rounds[2:]) == {3}


def test_a_row_that_has_ended_drops_the_tokens_of_later_rounds(engine, started, alone, monkeypatch):
    """A stop string and a cancellation end rows that the device still decodes. Each row leaves its slot once."""
    left, release = [], engine.programs.release
    monkeypatch.setattr(engine.programs, "release", lambda slot: left.append(slot) or release(slot))
    long = dict(max_new_tokens=150, ignore_eos=True, temperature=1.0, seed=2)
    cancelled = engine.submit(PROMPTS[0], **long)
    stopped = engine.submit(PROMPTS[5], stop=["+", "%"], max_new_tokens=100, ignore_eos=True)
    other = engine.submit(PROMPTS[1], **long)
    cancelled.watch(lambda: len(cancelled.token_ids) > 9 and not cancelled.is_over and cancelled.cancel())
    started()
    with pytest.raises(CancelledError):
        cancelled.result()
    assert facts(stopped.result()) == facts(alone(PROMPTS[5], stop=["+", "%"], max_new_tokens=100, ignore_eos=True))
    assert cost(stopped.result())[3] == len(stopped.result().token_ids)
    late = engine.submit(PROMPTS[2], **long)
    for handle, prompt in ((other, PROMPTS[1]), (late, PROMPTS[2])):
        assert facts(handle.result()) == facts(alone(prompt, **long))
    assert len(left) == 4


def test_rows_get_their_tokens_before_they_wait_for_memory(target, alone):
    engine = Engine(target, **SETTING, slots=3, chunk=16, capacity=256, rounds=4, logprobs=2, blocks=5)
    waits, asked, has_room = count_waits(engine), set(), engine.memory.has_room
    engine.memory.has_room = lambda rows, rounds: asked.add(rounds) or has_room(rows, rounds)
    options = dict(max_new_tokens=130, ignore_eos=True, temperature=0.8, seed=3)
    handles = [engine.submit(prompt, **options) for prompt in PROMPTS[:4]]
    with engine:
        for handle, prompt in zip(handles, PROMPTS):
            result, expected = handle.result(), alone(prompt, **options)
            assert facts(result) == facts(expected) and cost(result) == cost(expected)
    assert waits and engine.memory.usage == 0
    assert asked == {4, 8}  # the rounds of one launch, and those of the launch on the device too


def test_a_failure_in_flight_ends_all_requests_and_the_engine_goes_on(engine, started, alone, monkeypatch):
    options = dict(max_new_tokens=60, ignore_eos=True)
    handles = [engine.submit(prompt, **options) for prompt in PROMPTS[:2]]
    finish = engine.programs.finish

    def fail(launch):
        if handles[0].token_ids:
            raise RuntimeError("out of memory")
        return finish(launch)

    with monkeypatch.context() as patch:
        patch.setattr(engine.programs, "finish", fail)
        started()
        for handle in handles:
            with pytest.raises(RuntimeError, match="out of memory"):
                handle.result()
    assert facts(engine.submit(PROMPTS[0], **options).result()) == facts(alone(PROMPTS[0], **options))


def test_rounds_that_are_not_launched_ahead_hand_out_their_tokens(engine):
    handle = engine.submit(PROMPTS[0], max_new_tokens=9, ignore_eos=True)
    engine.step()
    assert handle.token_ids and engine._rounds._flying is None
    assert len(handle.result().token_ids) == 9
