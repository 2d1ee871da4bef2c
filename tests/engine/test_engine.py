"""Requests that come and go, against a Generator's call with each of them alone."""

import asyncio
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from support.models import TINY, random_head, random_prompts
from support.program import count_compilations

from specjax import Engine, Generator, Head, NumericsError, RequestError, Result
from specjax.engine import memory
from specjax.errors import CancelledError
from specjax.heads import Eagle3Config
from specjax.heads.eagle3 import Eagle3Head

NAN = 59
"""A prompt that begins with this token gets NaN instead of logits."""


def break_marked_rows(logits, context):
    return jnp.where((context.tokens[:, 0] == NAN)[:, None, None], jnp.nan, logits)


SETTING = dict(method="ngram", num_speculative_tokens=2, processors=(break_marked_rows,))
PROMPTS = [[5 + i, *prompt] for i, prompt in enumerate(random_prompts(12, 15))]
PROMPTS[4] += random_prompts(1, 40)[0] * 3  # longer than a chunk
OPTIONS = [
    dict(max_new_tokens=12, ignore_eos=True),
    dict(max_new_tokens=30, ignore_eos=True, temperature=0.8, seed=3),
    dict(max_new_tokens=1),
    dict(max_new_tokens=20, temperature=1.0, top_k=5, seed=4, repetition_penalty=1.3),
    dict(max_new_tokens=25, stop_token_ids=[5, 9, 11], ignore_eos=True),
    dict(max_new_tokens=40, stop=["+", "%"], ignore_eos=True),
]


COMMON = dict(logprobs=1, stop="never")
"""Options of all calls of the Generator, which thus compiles one loop."""


@pytest.fixture(scope="module")
def alone(target) -> Callable[..., Result]:
    generator = Generator(target, **SETTING, capacity=256)
    return lambda prompt, **options: generator(prompt, **COMMON | options)


@pytest.fixture(scope="module")
def engine(target) -> Engine:
    return Engine(target, **SETTING, slots=3, chunk=16, logprobs=2)


def facts(result) -> tuple:
    return result.text, result.token_ids, result.finish_reason, result.stop_reason, result.from_draft


def submit_over_time(engine: Engine, prompts, options, seed: int = 0) -> list:
    """Handles of requests between whose arrivals there are random numbers of steps; all have ended."""
    handles = []
    for prompt, own, steps in zip(prompts, options, np.random.default_rng(seed).poisson(3, len(prompts))):
        handles.append(engine.submit(prompt, **own))
        for _ in range(steps):
            engine.step()
    while engine.step():
        pass
    return handles


@pytest.mark.slow
def test_samples_are_those_of_a_generators_call(engine, target):
    generator, options = Generator(target, **SETTING, capacity=256), dict(max_new_tokens=12, temperature=1.0, seed=6)
    expected = generator(PROMPTS[0], n=3, **COMMON, **options)
    handles = [engine.submit(PROMPTS[0], sample=i, logprobs=1, **options) for i in range(3)]
    assert [handle.result().token_ids for handle in handles] == [result.token_ids for result in expected]
    np.testing.assert_allclose(handles[2].logprobs, expected[2].logprobs, atol=1e-4)
    steps = np.array(handles[1].steps)
    stats = expected[1].stats
    assert steps.sum(0).tolist() == [stats.drafted, stats.accepted, stats.generated]
    assert handles[1].accepted_at == list(stats.accepted_at) and len(steps) == stats.target_calls
    assert handles[1].top_logprobs[0].keys() == expected[1].top_logprobs[0].keys()


def test_texts_are_those_of_each_request_alone(engine, alone):
    handles = submit_over_time(engine, PROMPTS, [own | {"logprobs": 1} for own in OPTIONS * 2])
    assert all(handle.is_over for handle in handles)
    for handle, prompt, own in zip(handles, PROMPTS, OPTIONS * 2):
        result, expected = handle.result(), alone(prompt, **own)
        assert facts(result) == facts(expected)
        assert result.stats.target_calls == expected.stats.target_calls
        np.testing.assert_allclose(result.logprobs, expected.logprobs, atol=1e-4)
    assert len({handle.result().text for handle in handles}) > 8
    assert {handle.result().finish_reason for handle in handles} == {"stop", "length"}


def test_nothing_is_compiled_for_later_requests(engine):
    submit_over_time(engine, PROMPTS, OPTIONS * 2)
    assert count_compilations(submit_over_time, engine, PROMPTS[::-1], OPTIONS * 2, seed=1) == 0


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


def test_a_failure_of_the_device_ends_all_requests_and_the_engine_goes_on(engine, alone, monkeypatch):
    handles = [engine.submit(prompt, max_new_tokens=20, ignore_eos=True) for prompt in PROMPTS[:5]]
    engine.step()

    def fail():
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine.programs, "advance", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            engine.step()
    for handle in handles:
        with pytest.raises(RuntimeError, match="out of memory"):
            handle.result()
    assert not engine.has_work
    again = engine.submit(PROMPTS[0], max_new_tokens=20, ignore_eos=True)
    assert facts(again.result()) == facts(alone(PROMPTS[0], max_new_tokens=20, ignore_eos=True))


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([5] * 256, dict(max_new_tokens=9), "the prompt has 256 tokens, .* a slot has 128"),
        ([5] * 100, dict(max_new_tokens=60), "it needs 163 positions"),
        ([5] * 300, {}, "the model's context is 256"),
        ([5], dict(n=2), "n is no option of an engine's request; submit the prompt once for each sample"),
        ([5], dict(regex="a*"), "regex is no option of an engine's request"),
        ([5], dict(choices=["a"]), "choices is no option"),
        ([5], dict(json_schema="{}"), "json_schema is no option"),
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


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (dict(slots=0), "slots must be"),
        (dict(chunk=48), "chunk must be a power of two, not 48"),
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
    assert 41 * keys_and_values < need < 42 * keys_and_values
    assert Engine(target, **SETTING, slots=1).step() is False


EAGLE3 = Eagle3Config(TINY.replace(num_layers=1), TINY.hidden_size, 2, (0, 1, 2), draft_vocab_size=TINY.vocab_size)
METHODS = {
    "draft_model": dict(num_speculative_tokens=3),
    "ema": dict(method="draft_model", num_speculative_tokens=1, draft_length="ema"),
    "eagle3": dict(
        draft=Head(random_head(Eagle3Head, EAGLE3), EAGLE3, "head"), tree_nodes=8, tree_top_k=4, tree_depth=2
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_texts_of_methods_with_a_draft(target, draft, method):
    setting = dict(method=method, draft=draft) | METHODS[method]
    engine, alone = Engine(target, slots=3, chunk=16, **setting), Generator(target, capacity=256, **setting)
    requests = list(zip(PROMPTS[5:], OPTIONS * 2))
    handles = submit_over_time(engine, *zip(*requests))
    for handle, (prompt, own) in zip(handles, requests):
        assert facts(handle.result()) == facts(alone(prompt, **{"stop": "never"} | own))
    assert sum(handle.result().stats.accepted for handle in handles) > 5
