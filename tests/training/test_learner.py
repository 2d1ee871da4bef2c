"""A head that learns beside an engine: against rounds of an engine, and its swaps."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import TINY, random_head

from specjax import Head, RequestError
from specjax.engine import Engine
from specjax.heads import Eagle3Config, Eagle3Head
from specjax.training.online.learner import RECIPE, Learner, expected_length
from specjax.training.recipe import make_recipe

LENGTH, STEPS = 24, 3
PROMPTS = np.random.default_rng(3).integers(5, TINY.vocab_size, (12, 8)).tolist()
OPTIONS = dict(max_new_tokens=20, ignore_eos=True)
FAST = make_recipe(
    RECIPE | {"length": LENGTH, "optimizer": {"name": "adamw", "rate": 1e-2, "warmup": 1, "decay": 0.0}}, "test"
)


@pytest.fixture
def engine(target) -> Engine:
    config = Eagle3Config(TINY.replace(num_layers=1), TINY.hidden_size, 1, (0, 1), TINY.vocab_size)
    head = Head(random_head(Eagle3Head, config), config, "eagle3")
    return Engine(target, "eagle3", head, slots=4, capacity=64, num_speculative_tokens=STEPS)


@pytest.fixture
def promotion_in_threads():
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield
    jax.config.update("jax_numpy_dtype_promotion", "strict")


def test_expected_lengths_are_those_of_rounds(engine, target):
    """An engine begins a round at each place of its greedy texts, with a head that learnt."""
    learner = Learner(engine, recipe=FAST)
    engine.listeners.append(learner.add)
    for prompt in PROMPTS:  # one by one, so that the same texts are held out in each run
        engine.submit(prompt, **OPTIONS).result()
    for _ in range(60):
        learner.learn()
    texts = [handle.prompt + handle.result().token_ids for handle in [engine.submit(p, **OPTIONS) for p in PROMPTS[:2]]]
    windows = np.array([text[: LENGTH + 1] for text in texts], np.int32)
    accepted = []
    for text in windows.tolist():
        for end in range(2, len(text) - STEPS + 1):
            handle = engine.submit(text[:end], max_new_tokens=STEPS + 1, ignore_eos=True)
            handle.result()
            (_, count, _), *_ = handle.rounds
            accepted.append((end, count))
    right = 1 + np.mean([count for end, count in accepted if end >= len(PROMPTS[0])])
    learnt = np.zeros((2, LENGTH + 2), bool)
    learnt[:, len(PROMPTS[0]) :] = True  # the tokens before are the prompt's, and not greedy
    measure = jax.jit(lambda head, model: expected_length(head, model, windows, learnt, STEPS))
    found = measure(engine.generator.draft.module, target.model)
    assert right > 1
    np.testing.assert_allclose(found, right, rtol=1e-6)


def test_a_head_learns_and_texts_stay(engine):
    """The swapped head accepts more on the same prompts, and nothing is compiled for it."""
    lines = []
    learner = Learner(engine, say=lines.append, recipe=FAST)
    engine.listeners.append(learner.add)
    serve = lambda: [engine.submit(prompt, **OPTIONS) for prompt in PROMPTS]
    measure = lambda handles: np.mean([1 + accepted for handle in handles for _, accepted, _ in handle.rounds])
    before = serve()
    texts = [handle.result().token_ids for handle in before]
    for _ in range(120):
        learner.learn()
    assert learner.swaps and "tokens a round" in lines[0]
    after = serve()
    assert [handle.result().token_ids for handle in after] == texts
    assert sum(handle.result().stats.compile_seconds for handle in after) == 0
    assert measure(after) > measure(before) + 0.1


def test_a_worse_head_goes_back(engine):
    """A step that ruins the head never serves, and the training continues from the serving one."""
    learner = Learner(engine, recipe=FAST)
    engine.listeners.append(learner.add)
    for handle in [engine.submit(prompt, **OPTIONS) for prompt in PROMPTS]:
        handle.result()
    while not learner.swaps:
        learner.learn()
    serving = learner.head
    noise = lambda x: (
        0.01 * jax.random.normal(jax.random.key(0), x.shape) if jnp.issubdtype(x.dtype, jnp.floating) else x
    )
    learner._training.begin(jax.tree.map(noise, serving))
    learner._compare()
    assert learner.head is serving
    trained = [np.asarray(x) for x in jax.tree.leaves(learner._training.head)]
    assert max(np.abs(x).max() for x in trained) > 0.1
    # After a change of domain the first head may be the better one again.
    learner._measure = lambda head, *batch: float(all((a == b).all() for a, b in zip(
        jax.tree.leaves(head), jax.tree.leaves(learner._first))))  # fmt: skip
    learner._compare()
    assert learner.head is learner._first and engine.generator.draft.module is learner._first


def test_the_thread_learns_in_its_share(engine, promotion_in_threads):
    with Learner(engine, share=1.0, recipe=FAST) as learner, engine:
        for handle in [engine.submit(prompt, **OPTIONS) for prompt in PROMPTS]:
            handle.result()
        until = time.monotonic() + 30
        engine.wait(lambda: learner.steps > 2 or time.monotonic() > until)
        assert learner.steps > 2
    assert not learner._thread.is_alive() and learner.add not in engine.listeners
    assert learner.head.config == engine.generator.draft.module.config


def test_refusals_are_one_line(engine, target):
    for message, make in {
        "only an EAGLE-3 head learns while it serves": lambda: Learner(Engine(target, "ngram", slots=2, capacity=64)),
        "must be above 0 and at most 1, not 0": lambda: Learner(engine, share=0),
    }.items():
        with pytest.raises(RequestError) as error:
            make()
        assert message in str(error.value) and "\n" not in str(error.value)
