"""Requests that come and go, against a Generator's call with each of them alone."""

import asyncio
import contextlib
import dataclasses
import gc

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec
from support.engine import COMMON, NAN, OPTIONS, PROMPTS, RECORDED, SETTING, cost, facts, submit_over_time
from support.models import TINY, language_model, random_head, tiny_model
from support.program import count_compilations
from support.reference import continue_greedily

from specjax import Engine, Generator, Head, NumericsError, RequestError, make_mesh
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model, save_model
from specjax.engine import memory
from specjax.errors import CancelledError
from specjax.heads import Eagle3Config
from specjax.heads.eagle3 import Eagle3Head


@pytest.mark.slow
def test_samples_are_those_of_a_generators_call(engine, target):
    generator, options = Generator(target, **SETTING, capacity=256), dict(max_new_tokens=12, temperature=1.0, seed=6)
    expected = generator(PROMPTS[0], n=3, **COMMON, **options)
    handles = [engine.submit(PROMPTS[0], sample=i, logprobs=1, **options) for i in range(3)]
    assert [handle.result().token_ids for handle in handles] == [result.token_ids for result in expected]
    np.testing.assert_allclose(handles[2].logprobs, expected[2].logprobs, atol=1e-4)
    rounds, stats = np.array(handles[1].rounds), expected[1].stats
    assert rounds.sum(0).tolist() == [stats.drafted, stats.accepted, stats.generated]
    assert handles[1].accepted_at == list(stats.accepted_at) and len(rounds) == stats.target_calls
    assert handles[1].top_logprobs[0].keys() == expected[1].top_logprobs[0].keys()


def test_all_tokens_weigh_the_same_where_slots_are_filled_again(target, draft):
    """Method auto favours the rows that end last in a fixed batch only."""
    engine, generator = Engine(target, draft=draft, slots=2, capacity=64), Generator(target, draft=draft)
    assert engine.generator.method == generator.method == "auto"
    assert not engine.generator.session.drafter.ends_together and generator.session.drafter.ends_together


def test_texts_are_those_of_each_request_alone(engine, alone):
    handles = submit_over_time(engine, PROMPTS, [own | RECORDED for own in OPTIONS * 2])
    assert all(handle.is_over for handle in handles)
    for handle, prompt, own in zip(handles, PROMPTS, OPTIONS * 2):
        result, expected = handle.result(), alone(prompt, **own)
        assert facts(result) == facts(expected)
        assert cost(result) == cost(expected)
        np.testing.assert_allclose(result.logprobs, expected.logprobs, atol=1e-4)
        np.testing.assert_allclose(result.policy_logprobs, expected.policy_logprobs, atol=1e-4)
        assert handle.policy_logprobs == result.policy_logprobs
    assert len({handle.result().text for handle in handles}) > 8
    assert {handle.result().finish_reason for handle in handles} == {"stop", "length"}


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [5, None])
def test_several_rounds_in_a_step_change_neither_texts_nor_figures(target, alone, rounds):
    """With 5 rounds a step goes on beyond a stop string and beyond ends of rows. None: by measured times."""
    engine = Engine(target, **SETTING, slots=2, chunk=16, rounds=rounds)
    handles = submit_over_time(engine, PROMPTS, OPTIONS)
    for handle, prompt, own in zip(handles, PROMPTS, OPTIONS):
        result, expected = handle.result(), alone(prompt, **own)
        assert facts(result) == facts(expected) and cost(result) == cost(expected)
        assert np.sum(handle.rounds, 0).tolist() == [result.stats.drafted, result.stats.accepted, len(result.token_ids)]
        assert (handle.drafted, handle.accepted_at) == (result.stats.drafted, list(result.stats.accepted_at))


def test_nothing_is_compiled_for_later_requests(engine):
    for _ in range(2):  # the second time finds prompts in the store of prefixes
        submit_over_time(engine, PROMPTS, OPTIONS * 2)
    assert count_compilations(submit_over_time, engine, PROMPTS[::-1], OPTIONS * 2, seed=1) == 0


@pytest.mark.slow
def test_a_mesh_gives_the_texts_of_one_device_with_rows_and_heads_in_parts(target, alone, tmp_path):
    save_model(target.model, tmp_path)
    model = load_model(tmp_path, Placement(mesh=make_mesh(data=2, model=2)))
    engine = Engine(language_model(model), **SETTING, slots=2, chunk=16, logprobs=2)
    handles = submit_over_time(engine, PROMPTS[:6], OPTIONS)
    for handle, prompt, own in zip(handles, PROMPTS, OPTIONS):
        assert facts(handle.result()) == facts(alone(prompt, **own))
    keys, _ = engine.programs._state.cache.layers[0]
    assert keys.sharding.spec == PartitionSpec("data", "model")
    assert count_compilations(submit_over_time, engine, PROMPTS[6:], OPTIONS, seed=1) == 0


def test_pieces_are_the_text_and_stop_strings_are_held_back(engine, alone):
    options = dict(max_new_tokens=40, ignore_eos=True, temperature=1.0, seed=5)
    text = alone(PROMPTS[0], **options).text
    stop = text[20:23]
    handles = [engine.submit(PROMPTS[0], stop=stop, **options), engine.submit(PROMPTS[1], **options)]
    pieces = list(handles[0])
    assert len(pieces) > 3 and "".join(pieces) == text[: text.index(stop)] == handles[0].result().text
    assert handles[0].result().stop_reason == stop
    assert "".join(handles[1]) == alone(PROMPTS[1], **options).text
    assert "".join(handles[1]) == handles[1].result().text  # it is over before the iteration begins


def test_no_reader_ever_sees_a_stop_string(engine):
    """A reader that looks just when the string is complete does not see it either."""
    handle, seen = engine.submit(PROMPTS[5], max_new_tokens=40, stop=["+", "%"], ignore_eos=True), []
    handle.watch(lambda: handle.token_ids and seen.append(next(iter(handle), "")))
    result = handle.result()
    assert result.stop_reason in ("+", "%") and len(seen) > 1
    assert all(result.text.startswith(text) for text in seen) and seen[-1] == result.text


def test_a_cancelled_request_frees_its_slot_at_the_next_step(engine, alone):
    options = dict(max_new_tokens=120, ignore_eos=True, temperature=1.0, seed=5)
    handles = [engine.submit(prompt, **options) for prompt in PROMPTS[:5]]
    while not handles[2].token_ids:
        engine.step()
    assert [bool(handle.token_ids) for handle in handles] == [True, True, True, False, False]
    handles[1].cancel()  # it is running
    handles[3].cancel()  # it is waiting
    for _ in range(-(-(len(PROMPTS[4]) - 1) // 16)):  # the chunks of the next prompt
        engine.step()
    assert handles[4].token_ids and not handles[0].is_over and not handles[2].is_over
    for i in (0, 2, 4):
        assert facts(handles[i].result()) == facts(alone(PROMPTS[i], **options))
    with pytest.raises(CancelledError, match="the request was cancelled"):
        handles[1].result()
    assert list(handles[3]) == [] and not engine.has_work


def test_a_row_that_fails_ends_alone(engine, alone):
    options = dict(max_new_tokens=30, ignore_eos=True, temperature=0.9, seed=7)
    handles = [engine.submit(prompt, **options) for prompt in (PROMPTS[0], [NAN, 6, 7], PROMPTS[1], PROMPTS[2])]
    with pytest.raises(NumericsError, match="NaN"):
        handles[1].result()
    with pytest.raises(NumericsError, match="NaN"):
        list(handles[1])
    for handle, prompt in zip(handles[:1] + handles[2:], PROMPTS):
        assert facts(handle.result()) == facts(alone(prompt, **options))


def test_a_long_prompt_is_read_between_rounds_of_the_others(engine, alone):
    options, long = dict(max_new_tokens=60, ignore_eos=True), [7, *range(1, 58)] * 2
    running = engine.submit(PROMPTS[0], **options)
    engine.step()
    late, grown = engine.submit(long, **options | {"max_new_tokens": 10}), []
    while not late.token_ids:
        before = len(running.token_ids)
        engine.step()
        grown.append(len(running.token_ids) - before)
    assert len(grown) == -(-(len(long) - 1) // 16) and min(grown) > 0  # a round after each chunk
    assert facts(running.result()) == facts(alone(PROMPTS[0], **options))
    assert facts(late.result()) == facts(alone(long, **options | {"max_new_tokens": 10}))


def test_a_step_fills_all_free_slots_if_running_rows_may_wait(target, alone):
    engine, options = Engine(target, **SETTING, slots=3), dict(max_new_tokens=12, ignore_eos=True)
    engine._pace._pause = 0
    for seconds, read in ((1e3, 3), (1e-9, 1)):
        engine._pace._round = seconds
        handles = [engine.submit(prompt, **options) for prompt in PROMPTS[:4]]
        engine.step()
        assert [bool(handle.token_ids) for handle in handles] == [i < read for i in range(4)]
        for handle, prompt in zip(handles, PROMPTS):
            assert facts(handle.result()) == facts(alone(prompt, **options))


def test_a_failure_of_the_device_ends_all_requests_and_the_engine_goes_on(engine, alone, monkeypatch):
    handles = [engine.submit(prompt, max_new_tokens=20, ignore_eos=True) for prompt in PROMPTS[:5]]
    engine.step()

    def fail(*_):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine.programs, "launch", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            engine.step()
    for handle in handles:
        with pytest.raises(RuntimeError, match="out of memory"):
            handle.result()
    assert not engine.has_work
    again = engine.submit(PROMPTS[0], max_new_tokens=20, ignore_eos=True)
    assert facts(again.result()) == facts(alone(PROMPTS[0], max_new_tokens=20, ignore_eos=True))


@pytest.fixture
def two_models(engine, target):
    """The engine's model, and another with the same structure. The engine has the first again at the end."""
    yield target.model, tiny_model(1)
    engine.update(target.model)


def read_memory() -> int:
    """The bytes of all arrays on the device."""
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_swaps_of_weights_compile_nothing_and_leave_no_memory(engine, two_models, count):
    """Every text is that of the weights of its time, by forwards without a cache."""
    prompts, options = PROMPTS[:2], dict(max_new_tokens=4, ignore_eos=True)
    wanted = [continue_greedily(model, prompts, 4) for model in two_models]
    assert all(a != b for a, b in zip(*wanted))

    def swap(times: int):
        for i in range(times):
            engine.update(two_models[i % 2])
            handles = [engine.submit(prompt, **options) for prompt in prompts]
            assert [handle.result().token_ids for handle in handles] == wanted[i % 2]

    swap(2)
    before = read_memory()
    assert count_compilations(swap, count) == 0
    assert read_memory() == before


def test_weights_that_were_changed_in_place_count_after_an_update(engine, two_models):
    model, options = jax.tree.map(lambda x: x.copy(), two_models[0]), dict(max_new_tokens=4, ignore_eos=True)
    for other in (model, two_models[1]):
        nnx.update(model, nnx.state(other))
        engine.update(model)
        wanted = continue_greedily(other, PROMPTS[:1], 4)[0]
        assert engine.submit(PROMPTS[0], **options).result().token_ids == wanted


@pytest.mark.parametrize("started", [False, True])
def test_new_weights_wait_for_the_rows_that_run_and_hold_the_others_back(engine, two_models, started):
    options = dict(max_new_tokens=30, ignore_eos=True)
    old, new = (continue_greedily(model, PROMPTS[6:], 30) for model in two_models)
    handles = [engine.submit(prompt, **options) for prompt in PROMPTS[6:]]
    with engine if started else contextlib.nullcontext():
        engine.wait(lambda: engine.num_running == 3)
        engine.update(nnx.state(two_models[1]))
        running = [handle.is_over for handle in handles]
        assert 3 <= sum(running) < 6
        assert [handle.result().token_ids for handle in handles] == [
            a if is_old else b for a, b, is_old in zip(old, new, running)
        ]
    with pytest.raises(RequestError, match="make a new Generator"):
        engine.update(tiny_model(0, num_layers=1))
    assert engine.submit(PROMPTS[6], **options).result().token_ids == new[0]


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([5] * 255, dict(max_new_tokens=9), "the prompt has 255 tokens, .* the capacity is 128"),
        ([5] * 100, dict(max_new_tokens=60), "it needs 163 positions"),
        ([5] * 300, {}, "the model's context is 256"),
        ([5], dict(n=2), "n is no option of an engine's request; submit the prompt once for each sample"),
        (
            [5],
            dict(regex="[A-Z]{60}", max_new_tokens=70),
            "has 61 states and 3 classes of tokens, and the engine's table 47 and 16",
        ),
        ([5], dict(regex="[A-Z]{9}", choices=["A"]), "give one of regex, choices, json_schema and grammar"),
        ([5], dict(logprobs=3), "logprobs is 3 and the engine records 2; make it with logprobs=3"),
        (
            [5],
            dict(max_new_tokens=9, stop_token_ids=list(range(1, 40))),
            "stop_token_ids: 40 tokens end the request, and the most is 32",
        ),
        ([5], dict(temprature=1), "did you mean temperature"),
        ([5], dict(temperature=-1), "temperature must be"),
        ([[5], [6]], {}, "one prompt, not 2"),
        (None, {}, "give prompts or messages"),
    ],
)
def test_refused_requests_have_one_line(engine, monkeypatch, prompt, options, message):
    monkeypatch.setattr(engine, "capacity", 128)
    with pytest.raises(RequestError, match=message) as error:
        engine.submit(prompt, **options)
    assert "\n" not in str(error.value) and not engine.has_work


def test_policy_logprobs_need_an_engine_that_records(engine, monkeypatch):
    monkeypatch.setattr(engine, "options", dataclasses.replace(engine.options, logprobs=None))
    with pytest.raises(RequestError, match="policy_logprobs is asked for .* make it with logprobs=0"):
        engine.submit([5], policy_logprobs=True)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (dict(slots=0), "slots must be"),
        (dict(rounds=0), "rounds must be"),
        (dict(rounds=65), "rounds must be"),
        (dict(chunk=48), "chunk must be a power of two, not 48"),
        (dict(prefix_bytes=-1), "prefix_bytes must be"),
        (dict(constraint_states=1), "constraint_states must be"),
        (dict(logprobs=21), "logprobs must be"),
        (dict(method="draft_model"), "needs a draft"),
        (dict(method="ngram", draft_length=3), "draft_length 3 is unknown"),
    ],
)
def test_refused_engines_have_one_line(target, setting, message):
    with pytest.raises(RequestError, match=message) as error:
        Engine(target, **setting)
    assert "\n" not in str(error.value)


def test_a_started_engine_serves_coroutines(engine, alone):
    options = dict(max_new_tokens=24, ignore_eos=True)

    async def stream(prompt) -> str:
        return "".join([piece async for piece in engine.submit(prompt, **options)])

    async def late_stream(prompt) -> str:
        handle = engine.submit(prompt, **options)
        await handle
        return "".join([piece async for piece in handle])

    async def serve():
        whole = [engine.submit(prompt, **options) for prompt in PROMPTS[:4]]
        return await asyncio.gather(*whole, *map(stream, PROMPTS[4:7]), late_stream(PROMPTS[7]), return_exceptions=True)

    async def unattended():
        await engine.submit(PROMPTS[0], **options)

    with engine:
        found = asyncio.run(serve())
        late = engine.submit(PROMPTS[8], **options)
    assert late.is_over and not engine.is_started
    texts = [one if isinstance(one, str) else one.text for one in [*found, late.result()]]
    assert texts == [alone(prompt, **options).text for prompt in PROMPTS[:9]]
    with pytest.raises(RequestError, match="nothing drives the engine"):
        asyncio.run(unattended())
    while engine.step():
        pass


def test_slots_that_do_not_fit_the_memory_are_refused_with_the_figure(target, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1_000_000)
    with pytest.raises(RequestError, match="40 slots need ([0-9,]+) bytes .* has 1,000,000 bytes free") as error:
        Engine(target, **SETTING, slots=40)
    need = int(str(error.value).split()[3].replace(",", ""))
    keys_and_values = 2 * TINY.num_layers * TINY.num_kv_heads * TINY.head_dim * 4 * 512
    assert 42 * keys_and_values < need < 43 * keys_and_values  # with a slot to read in, and the store of prefixes
    assert Engine(target, **SETTING, slots=1).step() is False


EAGLE3 = Eagle3Config(TINY.replace(num_layers=1), TINY.hidden_size, 2, (0, 1, 2), draft_vocab_size=TINY.vocab_size)
METHODS = {
    "auto": dict(draft=None),
    "draft_model": dict(num_speculative_tokens=3),
    "ema": dict(method="draft_model", num_speculative_tokens=1, draft_length="ema"),
    "eagle3": dict(
        draft=Head(random_head(Eagle3Head, EAGLE3), EAGLE3, "head"), tree_nodes=8, tree_top_k=4, tree_depth=2
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_texts_of_further_methods(target, draft, method):
    setting = dict(method=method, draft=draft) | METHODS[method]
    sizes = dict(slots=3, widths=[1], chunk=16)
    engine, alone = Engine(target, **sizes, **setting), Generator(target, capacity=256, **setting)
    requests = list(zip(PROMPTS[5:], OPTIONS * 2))
    handles = submit_over_time(engine, *zip(*requests))
    same = slice(4 if method == "auto" else None)  # auto may choose other arms, and so draft other tokens
    for handle, (prompt, own) in zip(handles, requests):
        assert facts(handle.result())[same] == facts(alone(prompt, **{"stop": "never"} | own))[same]
    if method != "auto":
        assert sum(handle.result().stats.accepted for handle in handles) > 5
    else:  # it learns the time of every round, and a round counts by 0.999 of the next
        assert engine.generator.session.parameters.times.rounds.sum() > 0.9 * max(len(h.rounds) for h in handles)
