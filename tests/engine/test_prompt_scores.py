"""The log-probabilities of prompts that an engine reads, against one plain forward."""

import numpy as np
import pytest
from support.models import disturbed, language_model, tiny_model
from support.reference import log_softmax, logits_of

from specjax import Engine, RequestError

LONG = [5 + i * i % 50 for i in range(90)]


@pytest.fixture(scope="module")
def model():
    return tiny_model(0, num_layers=1)


@pytest.fixture(scope="module")
def engine(model):
    draft = language_model(disturbed(model))
    return Engine(language_model(model), draft=draft, num_speculative_tokens=2, slots=2, chunk=16, logprobs=3)


def plain(model, tokens) -> np.ndarray:
    """The log-probabilities [N - 1, V] after each of N tokens but the last, of one forward."""
    return np.array([log_softmax(row) for row in logits_of(model, tokens)])[:-1]


@pytest.mark.parametrize("prompt", [LONG, LONG[:17], LONG[:16], [7, 8], [7]], ids=len)
def test_scores_are_those_of_one_forward(engine, model, prompt):
    handle = engine.submit(prompt, max_new_tokens=0, prompt_logprobs=2)
    assert handle.result().token_ids == [] and handle.result().finish_reason == "length"
    expected = plain(model, prompt)
    assert handle.prompt_logprobs == pytest.approx([*expected[np.arange(len(prompt) - 1), prompt[1:]]], abs=1e-4)
    assert len(handle.prompt_top_logprobs) == len(prompt) - 1
    for found, row in zip(handle.prompt_top_logprobs, expected):
        assert [*found] == [*np.argsort(-row)[:2]] and [*found.values()] == pytest.approx(sorted(row)[:-3:-1], abs=1e-4)


def test_a_scored_prompt_has_the_text_of_any_other(engine):
    ask = lambda **given: engine.submit(LONG, max_new_tokens=12, temperature=0.8, seed=3, logprobs=1, **given)
    plain, scored, again = ask(), ask(prompt_logprobs=0), ask()
    assert scored.result().token_ids == plain.result().token_ids == again.result().token_ids
    assert scored.logprobs == pytest.approx(plain.logprobs, abs=1e-4) and len(scored.prompt_logprobs) == 89
    assert scored.prompt_top_logprobs == [{}] * 89 and plain.prompt_logprobs == []
    assert scored.cached_tokens == 0 < again.cached_tokens


def test_scores_and_texts_share_the_slots(engine, model):
    handles = [engine.submit(LONG[:n], max_new_tokens=n % 3, prompt_logprobs=0) for n in (20, 33, 50, 66)]
    for handle in handles:
        assert len(handle.result().token_ids) == len(handle.prompt) % 3
        row = plain(model, handle.prompt)
        assert sum(handle.prompt_logprobs) == pytest.approx(row[np.arange(len(row)), handle.prompt[1:]].sum(), abs=1e-2)
    assert not engine.has_work


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(prompt_logprobs=4), "prompt_logprobs is 4 and the engine records 3; make it with logprobs=4"),
        (dict(prompt_logprobs=-1), "prompt_logprobs must be a whole number, at least 0"),
        (dict(prompt_logprobs=True), "prompt_logprobs must be a whole number"),
        (dict(max_new_tokens=0), "max_new_tokens must be a whole number, at least 1"),
        (dict(max_new_tokens=0, max_tokens=0, prompt_logprobs=0), "names of one option"),
    ],
)
def test_bad_options(engine, options, words):
    with pytest.raises(RequestError, match=words):
        engine.submit(LONG, **options)
    assert not engine.has_work


def test_scores_are_compiled_before_the_request_waits(model):
    """So that the rows that run do not wait for a compilation."""
    engine = Engine(language_model(model), method="none", slots=2, chunk=32, logprobs=1)
    handle = engine.submit(LONG, max_new_tokens=2, prompt_logprobs=1)
    names = [key[2:4] for key in engine.generator.session._compiled if "read_scored_chunk" in key]
    assert names == [("read_scored_chunk", 16), ("read_scored_chunk", 32)]
    assert len(handle.result().token_ids) == 2 and len(handle.prompt_logprobs) == 89
    assert [key[2:4] for key in engine.generator.session._compiled if "read_scored_chunk" in key] == names
