"""Prompts that one program reads together, in blocks: texts, figures and shared beginnings are those of each alone."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.engine import NAN, OPTIONS, PROMPTS, SETTING, cost, facts
from support.models import TINY, disturbed, language_model, random_head, tiny_model

from specjax import Engine, Generator, NumericsError
from specjax.engine.block_pool import BlockPool
from specjax.engine.sizes import Sizes
from specjax.heads import Eagle3Config, Eagle3Head, Head

SIZES = dict(slots=16, capacity=256, chunk=128, rounds=4, prompts_together=4)
GREEDY = dict(max_new_tokens=9, ignore_eos=True)
SEEDED = GREEDY | dict(temperature=0.9, seed=7)
DRAW = np.random.default_rng(3)
draw = lambda first, count: [first, *DRAW.integers(1, 59, count - 1).tolist()]
COMMON = draw(40, 108)
MIXED = [
    *[draw(1 + i, length) for i, length in enumerate((1, 30, 2, 17, 31, 60, 33, 129, 16, 65, 200))],
    [*COMMON, 3],
    [*COMMON, 5, 6],
    [*COMMON[:50], 7],
    [*COMMON, 5, 6, *COMMON[:30]],
    draw(30, 45),
]
"""Prompts of 1 to 200 tokens. Some begin alike, in whole blocks and in parts of a block."""


def count_cached(prompts: list[list[int]], ahead: int = 0) -> list[int]:
    """The tokens of each prompt that an earlier one has, in pieces of 16. Its last one and ``ahead`` more are not shared."""
    same = lambda a, b: len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b))])
    longest = lambda a, b: max(min(same(a, b), len(a) - 1, len(b) - 1) - ahead, 0) // 16 * 16
    return [max((longest(prompt, other) for other in prompts[:i]), default=0) for i, prompt in enumerate(prompts)]


def watch_reading(monkeypatch, engine: Engine, name: str = "read") -> list[tuple[int, int]]:
    """A list that gets the number of prompts and the size of the chunks of each launch."""
    launches, read = [], getattr(engine.programs, name)
    watch = lambda parts, size: launches.append((len(parts), size)) or read(parts, size)
    monkeypatch.setattr(engine.programs, name, watch)
    return launches


def finish(engine: Engine) -> None:
    while engine.step():
        pass


@pytest.fixture(scope="module")
def together(target) -> Engine:
    return Engine(target, **SETTING, **SIZES, logprobs=2, blocks=80)


@pytest.fixture
def engine_of_one_test(together):
    """The engine without texts of other tests."""
    together.memory.clear()
    return together


@pytest.mark.parametrize(
    ("unread", "most", "count"),
    [
        ([200] * 4, 128, 1),
        ([100] * 4, 128, 1),
        ([60] * 4, 128, 2),  # four would be read after two programs, as the last two are now
        ([129] * 4, 128, 2),
        ([30] * 4, 128, 4),
        ([30] * 3, 128, 2),
        ([5] * 4, 128, 4),
        ([12, 2], 128, 2),
        ([72, 200, 200, 200], 128, 1),
        ([30] * 4, 64, 2),
        ([30] * 4, 32, 1),
        ([9] * 4, 64, 4),
        ([9] * 4, 32, 2),
        ([9], 128, 1),
        ([], 128, 1),
    ],
)
def test_prompts_are_read_together_where_they_wait_for_fewer_programs(together, unread, most, count):
    assert together.programs.count_together(unread, most) == count


def test_programs_that_are_not_ready_read_nothing(together, monkeypatch):
    monkeypatch.setattr(together.programs, "ready", {("chunk", 16), ("prompts", 2)})
    assert together.programs.count_together([9] * 4, 128) == 2


def test_sixteen_prompts_take_four_launches(engine_of_one_test, alone, monkeypatch):
    engine = engine_of_one_test
    launches = watch_reading(monkeypatch, engine)
    prompts = [draw(1 + i, 30) for i in range(16)]
    handles = [engine.submit(prompt, **GREEDY) for prompt in prompts]
    finish(engine)
    assert launches == [(4, 32)] * 4
    for handle, prompt in zip(handles, prompts):
        assert facts(handle.result()) == facts(alone(prompt, **GREEDY))


def test_texts_figures_and_cached_tokens_are_those_of_each_request_alone(engine_of_one_test, alone, monkeypatch):
    """Greedy and seeded ones, with penalties and with stop strings."""
    engine = engine_of_one_test
    launches = watch_reading(monkeypatch, engine)
    requests = list(zip(MIXED, OPTIONS * 3))
    handles = [engine.submit(prompt, **own) for prompt, own in requests]
    finish(engine)
    for handle, (prompt, own) in zip(handles, requests):
        result, expected = handle.result(), alone(prompt, **own)
        assert facts(result) == facts(expected) and cost(result) == cost(expected)
    assert [handle.cached_tokens for handle in handles] == count_cached(MIXED)
    assert {count for count, _ in launches} == {1, 2, 4} and engine.memory.usage == 0


EAGLE3 = Eagle3Config(TINY.replace(num_layers=1), TINY.hidden_size, 1, (0, 1), draft_vocab_size=TINY.vocab_size)
METHODS = {
    "none": {},
    "draft_model": dict(num_speculative_tokens=3),
    "eagle3": dict(
        draft=Head(random_head(Eagle3Head, EAGLE3), EAGLE3, "head"), tree_nodes=8, tree_top_k=4, tree_depth=2
    ),
}


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("none", "eagle3")]


@pytest.mark.parametrize("method", ["draft_model", *SLOW])
def test_drafts_of_prompts_that_are_read_together(monkeypatch, method):
    target = language_model(tiny_model(0, num_layers=1))
    draft = language_model(disturbed(target.model)) if method == "draft_model" else None
    setting = dict(method=method, draft=draft) | METHODS[method]
    engine = Engine(target, **setting, **SIZES | dict(chunk=64), blocks=80)
    oracle = Generator(target, capacity=256, **setting)
    launches, drafted = (watch_reading(monkeypatch, engine, name) for name in ("read", "read_draft"))
    requests = list(zip(MIXED, [GREEDY, SEEDED] * 8))
    handles = [engine.submit(prompt, **own) for prompt, own in requests]
    finish(engine)
    for handle, (prompt, own) in zip(handles, requests):
        result, expected = handle.result(), oracle(prompt, **{"stop": "never"} | own)
        assert facts(result) == facts(expected) and cost(result) == cost(expected)
    ahead = 2 * engine.generator.drafter.depth + 1 if method != "none" else 0
    assert [handle.cached_tokens for handle in handles] == count_cached(MIXED, ahead)
    assert max(launches)[0] > 1 and drafted == (launches if method != "none" else [])


def test_a_prompt_waits_for_one_that_begins_alike_and_finds_its_blocks(engine_of_one_test, alone):
    engine = engine_of_one_test
    prompts = [[*COMMON, 3], [*COMMON, 4], [*COMMON[:20], 9]]
    handles = [engine.submit(prompt, **GREEDY) for prompt in prompts]
    engine.step()
    assert [bool(handle.token_ids) for handle in handles] == [True, False, False]
    engine.step()
    assert all(handle.token_ids for handle in handles)  # the others begin alike too, and the pool has it
    assert [handle.cached_tokens for handle in handles] == [0, 96, 16]
    for handle, prompt in zip(handles, prompts):
        assert facts(handle.result()) == facts(alone(prompt, **GREEDY))


def test_a_cancelled_row_leaves_its_group(engine_of_one_test, alone):
    engine = engine_of_one_test
    prompts = [draw(1 + i, 165) for i in range(5)]
    handles = [engine.submit(prompt, **SEEDED) for prompt in prompts]
    engine.step()
    assert [(row.slot, row.start) for row in engine._scheduler.reading] == [(0, 64), (1, 64), (2, 0), (3, 0)]
    handles[1].cancel()
    engine.step()
    assert [bool(handle.token_ids) for handle in handles] == [True] + [False] * 4
    rows = [(row.handle, row.slot) for row in engine._scheduler.reading]
    assert rows == [(handles[2], 2), (handles[3], 3), (handles[4], 1)]
    finish(engine)
    for i in (0, 2, 3, 4):
        assert facts(handles[i].result()) == facts(alone(prompts[i], **SEEDED))
    assert engine.memory.usage == 0 and engine.num_running == 0


def test_a_row_that_fails_in_a_group_ends_alone(engine_of_one_test, alone, target, monkeypatch):
    """A token of the prompt has NaN for its embedding. Later prompts do not find the blocks of the row."""
    engine = engine_of_one_test
    broken = jax.tree.map(lambda x: x.copy(), target.model)
    broken.embed[...] = broken.embed[...].at[NAN].set(jnp.nan)
    engine.update(broken)
    prompts = [draw(1, 20), [*draw(2, 20), NAN, 5], draw(3, 20), draw(4, 20)]
    launches = watch_reading(monkeypatch, engine)
    handles = [engine.submit(prompt, **SEEDED) for prompt in prompts]
    finish(engine)
    assert launches == [(4, 32)]
    with pytest.raises(NumericsError, match="NaN"):
        handles[1].result()
    prompts[1] = prompts[1][:20]
    handles[1] = engine.submit(prompts[1], **SEEDED)
    finish(engine)
    engine.update(target.model)
    for handle, prompt in zip(handles, prompts):
        assert facts(handle.result()) == facts(alone(prompt, **SEEDED)) and handle.cached_tokens == 0


def test_a_scored_prompt_is_read_alone_among_others(engine_of_one_test, engine, alone):
    prompts = [draw(1 + i, 20 + i) for i in range(4)]
    ask = lambda engine, i: engine.submit(prompts[i], **GREEDY, **dict(prompt_logprobs=1) if i == 1 else {})
    handles = [ask(engine_of_one_test, i) for i in range(4)]
    expected = ask(engine, 1)
    assert [facts(handle.result()) for handle in handles] == [facts(alone(prompt, **GREEDY)) for prompt in prompts]
    assert facts(expected.result()) == facts(handles[1].result())
    np.testing.assert_allclose(handles[1].prompt_logprobs, expected.prompt_logprobs, atol=1e-4)
    assert len(handles[1].prompt_logprobs) == 20


def test_rows_that_wait_for_memory_while_others_are_read(engine_of_one_test, alone, monkeypatch):
    """Eight blocks, where a row needs up to 4: rows that decode take those of rows that are read."""
    engine = engine_of_one_test
    monkeypatch.setattr(engine.memory, "pool", BlockPool(8))
    waits, suspend = [], engine._scheduler.suspend
    watch = lambda row: waits.append((row.age, row in engine._scheduler.reading)) or suspend(row)
    monkeypatch.setattr(engine._scheduler, "suspend", watch)
    oldest = engine._scheduler._begun
    greedy = dict(max_new_tokens=130, ignore_eos=True)
    prompts = [*PROMPTS[:4], *(MIXED[i] for i in (9, 11, 12, 13, 15))]
    requests = list(zip(prompts, [greedy, greedy | dict(temperature=1.0, seed=4)] * 5))
    handles = [engine.submit(prompt, **own) for prompt, own in requests]
    finish(engine)
    for handle, (prompt, own) in zip(handles, requests):
        result, expected = handle.result(), alone(prompt, **own)
        assert facts(result) == facts(expected) and cost(result) == cost(expected)
    assert {is_read for _, is_read in waits} == {False, True} and min(waits)[0] > oldest and engine.memory.usage == 0


@pytest.mark.parametrize(
    ("backend", "options", "prompts"),
    [
        ("cpu", dict(blocks=9), 1),
        ("gpu", dict(blocks=9), 4),
        ("gpu", dict(blocks=9, chunk=32), 2),
        ("gpu", {}, 1),
        ("cpu", dict(blocks=9, prompts_together=8), 8),
        ("cpu", dict(blocks=9, prompts_together=32), 8),
    ],
)
def test_the_prompts_that_are_read_together_by_default(together, monkeypatch, backend, options, prompts):
    monkeypatch.setattr("jax.default_backend", lambda: backend)
    options = type(together.options)(**options)
    assert Sizes.of(options, together.generator).prompts == prompts
