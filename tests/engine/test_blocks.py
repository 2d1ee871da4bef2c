"""Rows in blocks: the texts and figures of each request alone, also of rows that had to wait for memory."""

import dataclasses
import re

import numpy as np
import pytest
from support.engine import NAN, OPTIONS, PROMPTS, SETTING, cost, count_waits, facts
from support.models import TINY, language_model, random_head, tiny_model

from specjax import Engine, Generator, NumericsError, RequestError
from specjax.engine import memory
from specjax.engine.prompt_programs import Part
from specjax.heads import Eagle3Config, Eagle3Head, Head

SIZES = dict(slots=3, chunk=16, capacity=256, rounds=4)
LONG = [
    dict(max_new_tokens=130, ignore_eos=True),
    dict(max_new_tokens=130, ignore_eos=True, temperature=0.8, seed=3, top_p=0.9),
    dict(max_new_tokens=110, ignore_eos=True, temperature=1.0, seed=4, repetition_penalty=1.3),
    dict(max_new_tokens=190, ignore_eos=True, stop=["+", "%"]),
]


@pytest.fixture(scope="module")
def paged(target) -> Engine:
    """An engine with 5 blocks, where a row needs up to 4."""
    return Engine(target, **SETTING, **SIZES, widths=[1], logprobs=2, blocks=5)


def test_rows_that_waited_for_memory_have_the_texts_and_figures_of_rows_alone(paged, alone):
    """Greedy and seeded ones, with penalties, and with stop strings."""
    waits = count_waits(paged)
    requests = list(zip(PROMPTS, LONG * 2 + OPTIONS))
    handles = [paged.submit(prompt, **own) for prompt, own in requests]
    while paged.step():
        pass
    assert len(waits) > 2 and paged.memory.usage == 0
    for handle, (prompt, own) in zip(handles, requests):
        result, expected = handle.result(), alone(prompt, **own)
        assert facts(result) == facts(expected) and cost(result) == cost(expected)
    assert min(waits) > 0  # the oldest row never waits


def test_a_row_that_fails_ends_alone(paged, alone):
    options = dict(max_new_tokens=30, ignore_eos=True, temperature=0.9, seed=7)
    handles = [paged.submit(prompt, **options) for prompt in ([NAN, 6, 7], PROMPTS[0])]
    with pytest.raises(NumericsError, match="NaN"):
        handles[0].result()
    assert facts(handles[1].result()) == facts(alone(PROMPTS[0], **options)) and paged.memory.usage == 0


def test_prompts_that_begin_alike_have_blocks_in_common(target, alone):
    """While they run, and after an answer that the next turn of its conversation begins with."""
    engine = Engine(target, **SETTING, **SIZES, blocks=12)
    options = dict(max_new_tokens=40, ignore_eos=True, temperature=1.0, seed=8)
    prompt = [7, *range(2, 55)] * 2 + [11] * 30  # 138 tokens
    one, two = engine.submit(prompt, **options), engine.submit(prompt, sample=1, **options)
    while not two.token_ids:
        engine.step()
    rows = engine._scheduler.rows
    assert rows[0].blocks[:2] == rows[1].blocks[:2] and engine.memory.pool.used == len(
        {*rows[0].blocks, *rows[1].blocks}
    )
    shared = [np.asarray(pool[np.array(rows[0].blocks[:2])]) for pool in engine.programs._target_pools]
    results = [one.result(), two.result()]
    turn = prompt + results[0].token_ids + [9] * 30
    third = engine.submit(turn, **options).result()
    assert [each.stats.cached_tokens for each in (*results, third)] == [
        0,
        128,
        176,
    ]  # a part of the answer's block is copied
    longer = engine.submit(turn + [5] * 3, max_new_tokens=5, ignore_eos=True).result()
    assert longer.stats.cached_tokens == 208
    for before, pool in zip(shared, engine.programs._target_pools):
        np.testing.assert_array_equal(
            pool[np.array(engine.memory.pool.share(engine.memory._keys(turn, 128)[3::4]))], before
        )
    assert facts(results[0]) == facts(alone(prompt, **options)) and results[0].token_ids != results[1].token_ids
    assert facts(third) == facts(alone(turn, **options))


@pytest.mark.parametrize("program", ["rounds of 1", "rounds of 3", "chunks of 2 prompts", "copy of a block"])
def test_no_program_copies_a_pool(paged, program):
    """A compiled round has no copy, scatter, gather or transpose of a whole pool."""
    programs = paged.programs
    parts = [Part(programs._blank, programs.begin_reading(), None)] * 2
    call = {
        "rounds of 1": lambda: programs._some_rounds("rounds", 1, [0], None),
        "rounds of 3": lambda: programs._all_rounds("rounds", 1, None),
        "chunks of 2 prompts": lambda: programs._reading(parts, 16),
        "copy of a block": lambda: dict(modules=(), key=()) | programs._copying(1, 2),
    }[program]()
    function, args, modules, key = (call.pop(name) for name in ("function", "args", "modules", "key"))
    text = programs._compile(function, args, modules, key, call)[0].as_text()
    pools = re.findall(r"= f32\[6,2,64,8\]\S* ([\w-]+)\(", text)
    assert "parameter" in pools and not {"copy", "scatter", "gather", "transpose"} & {*pools}


EAGLE3 = Eagle3Config(TINY.replace(num_layers=1), TINY.hidden_size, 2, (0, 1, 2), draft_vocab_size=TINY.vocab_size)
TREES = dict(tree_nodes=8, tree_top_k=4, tree_depth=2)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_drafts_in_blocks(target, draft, method):
    """Drafts that waited, or that share beginnings, draft the same tokens. So do those of ``test_warm_start``."""
    head = dict(draft=Head(random_head(Eagle3Head, EAGLE3), EAGLE3, "head"), **TREES)
    setting = dict(draft=draft, method="draft_model", num_speculative_tokens=3) if method == "draft_model" else head
    engine = Engine(target, **setting, **SIZES, blocks=5)
    oracle = Generator(target, **setting, capacity=256)
    common = [7, *range(2, 55)] * 2
    requests = list(zip([common + [3], common + [5, 6], *PROMPTS[:3]], [LONG[0], *LONG]))
    waits = count_waits(engine)
    handles = [engine.submit(prompt, **own) for prompt, own in requests]
    for handle, (prompt, own) in zip(handles, requests):
        result, expected = handle.result(), oracle(prompt, **{"stop": "never"} | own)
        assert facts(result) == facts(expected) and cost(result) == cost(expected)
    assert waits and handles[1].cached_tokens == 96 and sum(handle.result().stats.accepted for handle in handles) > 20


@pytest.mark.slow
@pytest.mark.parametrize("changes", [dict(kv_quantize="int8"), dict(window=40)], ids=["int8", "window"])
def test_other_caches(changes):
    """Keys of eight bits, and layers that see a window, which XLA reads in chunks."""
    config = TINY.replace(windows=(40, None)) if "window" in changes else TINY
    target = language_model(tiny_model(0, config=config))
    if "kv_quantize" in changes:
        target = dataclasses.replace(target, kv_quantize="int8")
    engine, oracle = Engine(target, **SETTING, **SIZES, blocks=5), Generator(target, **SETTING, capacity=256)
    handles = [engine.submit(prompt, **own) for prompt, own in zip(PROMPTS, LONG)]
    for handle, prompt, own in zip(handles, PROMPTS, LONG):
        assert facts(handle.result()) == facts(oracle(prompt, **{"stop": "never"} | own))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(blocks=3), r"256 positions needs 4 blocks of 16,384 bytes and there are 3; give more blocks"),
        (dict(blocks=70), "70 blocks need 1,146,880 bytes and the device has 1,000,000 bytes free"),
        (dict(memory=0.1), "there are 0; give more blocks or memory"),
        (dict(blocks=4, memory=0.5), "give one of them"),
        (dict(memory=1.5), "memory must be a number, above 0 and at most 1"),
        (dict(blocks=4, prefix_bytes=100), "leave prefix_bytes out"),
        (dict(blocks=4, method="layer_skip", skip_mlp=(1,)), "LayerSkip reads the target's keys itself"),
    ],
    ids=str,
)
def test_what_cannot_be_in_blocks_is_refused_in_one_line(target, monkeypatch, options, words):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)
    monkeypatch.setattr(memory, "all_bytes", lambda device: 2_000_000)
    with pytest.raises(RequestError, match=words) as error:
        Engine(target, **SETTING | dict(slots=1, chunk=16, capacity=256) | options)
    assert "\n" not in str(error.value)


def test_a_request_that_never_fits_is_refused(paged):
    with pytest.raises(RequestError, match="it needs 259 positions; the capacity is 256"):
        paged.submit(PROMPTS[0], max_new_tokens=300)
