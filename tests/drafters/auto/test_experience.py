"""The draft model's acceptance in earlier requests: counted by hand for greedy and sampled rows, and the next request's first rate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import disturbed, language_model, random_prompts, tiny_model

from specjax import Engine, Generator
from specjax.drafters.auto.arms import Arm
from specjax.drafters.auto.experience import Experience
from specjax.drafters.auto.rates import MATCHES, RATES, rate_of_model
from specjax.drafters.auto.times import Times
from specjax.drafters.parts.running_acceptance import RunningAcceptance
from specjax.text.round_times import make_record, write_costs

TARGET = tiny_model(0, 8.0, num_layers=1)
MODEL, DRAFT = language_model(TARGET, "target"), language_model(disturbed(TARGET, 0.1), "draft")
ARMS = Arm(0), Arm(3, True)
PROMPTS = random_prompts(3, 20, vocab_size=6, seed=4)
HEAT = [0.0, 1.0, 0.0]
LENGTH = dict(max_new_tokens=60, ignore_eos=True)


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """A file by which drafts always pay."""
    file = tmp_path_factory.mktemp("costs") / "costs.json"
    write_costs(file, make_record(MODEL, [DRAFT], ARMS, [1], [1], np.broadcast_to([1e9, 1.0], (2, 1, 1, 2))))
    return str(file)


@pytest.fixture(scope="module")
def compiled(costs):
    generator = Generator(MODEL, "auto", DRAFT, costs=costs)
    return generator, generator.session.parameters


@pytest.fixture
def generator(compiled):
    """The generator without experience. All tests share its programs, which are those of three prompts."""
    generator, generator.session.parameters = compiled
    return generator


def test_the_experience_counts_old_tests_less_than_new_ones():
    experience = Experience.start()
    np.testing.assert_allclose(experience.rate, 0.7)
    after = experience.after(np.array([[0, 0], [36, 136]]))
    np.testing.assert_allclose(after.rate, [0.7, (0.7 * 64 + 36) / 200], rtol=1e-6)
    for _ in range(100):
        after = after.after(np.array([[100, 100], [0, 100]]))
    np.testing.assert_allclose(after.tested, 1024)
    assert after.rate[0] > 0.999 and after.rate[1] < 1e-3
    for _ in range(8):
        after = after.after(np.array([[0, 100], [0, 0]]))
    np.testing.assert_allclose(after.rate[0], (1024 / 1124) ** 8, rtol=1e-3)


def test_a_run_teaches_the_tests_of_its_rounds_by_class_of_row(generator):
    """A round tests the drafts up to the first that the target rejects, which the counters tell too."""
    session = generator.session
    decoding = generator.start(PROMPTS, **LENGTH, temperature=HEAT)
    own, of_model = decoding.state.drafter, np.arange(RATES) >= MATCHES
    sure = RunningAcceptance(jnp.full((3, RATES), 1e6) * jnp.where(of_model, 0.999, 1e-6), jnp.full((3, RATES), 1e6))
    decoding.state = decoding.state.replace(drafter=own.replace(acceptance=sure))  # nothing is looked up
    before = session.parameters.experience
    for rounds in (4, 3):
        session.advance(decoding, rounds)
    counters = jax.device_get(decoding.state.counters)
    accepted = counters.accepted_at[:, :3].sum(1)
    tested = counters.calls + counters.accepted_at[:, :2].sum(1)
    assert np.all(counters.calls == 7) and 0 < accepted.sum() < 3 * 21
    expected = before.after(np.array([[x[0] + x[2], x[1]] for x in (accepted, tested)]).T)
    for name in ("accepted", "tested"):
        np.testing.assert_allclose(getattr(session.parameters.experience, name), getattr(expected, name), rtol=1e-5)


def test_the_next_request_begins_with_the_rate_of_its_class(generator):
    """At a rate of 0.7 a draft pays, at 0.2 it does not. A sampled row begins with the second."""
    first = np.float32([0.7, 0.2])
    given = generator.session.parameters.replace(
        times=Times.of_table([[[1.0, 1.8]]], [1], [1]), experience=Experience(100 * first, np.full(2, 100, np.float32))
    )
    generator.session.parameters = given
    choose = jax.jit(lambda state: generator.drafter.choose(TARGET, given, state)[2])
    state = generator.start(PROMPTS, **LENGTH, temperature=HEAT).state
    rate = rate_of_model(state.drafter.acceptance, state.request.sampling.temperature > 0, jnp.asarray(first))
    np.testing.assert_allclose(rate.alpha, [0.7, 0.2, 0.7], rtol=1e-6)
    np.testing.assert_allclose(rate.first, [0.7, 0.2, 0.7], rtol=1e-6)
    for temperature, arm in ((0.0, 1), (1.0, 0)):
        assert int(choose(generator.start(PROMPTS, **LENGTH, temperature=temperature).state)) == arm


@pytest.mark.parametrize("widths", [(), pytest.param((1,), marks=pytest.mark.slow)])
def test_the_slots_of_an_engine_teach_it(costs, widths):
    """The other slot is empty, and teaches nothing."""
    engine = Engine(MODEL, "auto", DRAFT, costs=costs, slots=2, widths=widths, capacity=64)
    session = engine.generator.session
    before = session.parameters.experience.tested
    engine.submit(PROMPTS[0], max_new_tokens=20, ignore_eos=True, temperature=1.0).result()
    after = session.parameters.experience.tested
    assert after[0] == before[0] and before[1] + 5 <= after[1] <= before[1] + 60


def test_another_draft_has_no_experience(generator):
    session = generator.session
    generator(PROMPTS, **LENGTH, temperature=HEAT)
    assert not np.any(session.parameters.experience.tested == 64)
    generator.update(draft=disturbed(TARGET, 0.2))
    np.testing.assert_allclose(session.parameters.experience.tested, 64)
    generator.update(draft=DRAFT.model)  # for other tests
