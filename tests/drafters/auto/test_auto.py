"""Method auto: seeded texts are plain decoding's, the choice is the best by plain arithmetic, and trying costs little."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoding import new_tokens, run, start
from support.models import TINY, disturbed, language_model, random_head, random_prompts, tiny_model

from specjax import Generator, RequestError
from specjax.core.tree import ancestors, chain
from specjax.core.verdict import Verdict, verdict_at
from specjax.drafters import Auto, DynamicTree, Eagle3, Plain, make_drafter
from specjax.drafters.auto.arms import Arm
from specjax.drafters.auto.constants import CONSTANTS
from specjax.drafters.auto.rates import CHAIN, MATCHES, RATES, TREE, estimate, start_rates, update_rates
from specjax.drafters.auto.resting import RestingModel
from specjax.drafters.auto.state import Prepared
from specjax.drafters.auto.times import Times, predict
from specjax.drafters.parts.running_acceptance import RunningAcceptance
from specjax.heads import Eagle3Config, Eagle3Head, Head, MedusaConfig, MedusaHeads
from specjax.rules import RULES
from specjax.rules.walks import sample_and_walk

V = 61
TARGET = tiny_model(0, 8.0, num_layers=1)
DRAFT = disturbed(TARGET, 0.1)
PROMPTS = [*random_prompts(3, 20, vocab_size=6, seed=4), [3, 1, 4, 1, 5] * 4]
ARMS = Arm(0), Arm(1), Arm(3), Arm(3, True)
AUTO = Auto(arms=ARMS)
COSTLY, CHEAP, PLAIN = [1, 1.05, 1.1, 5], [1, 1.1, 1.2, 1.3], [1, 50, 50, 50]
SIZES = dict(capacity=64, chunk=32, limit=[len(prompt) + 24 for prompt in PROMPTS])


def parameters(times):
    """The parameters for these times of the arms."""
    given = AUTO.parameters((DRAFT,), V)
    return given.replace(times=Times.of_table([[times]], [1], [1]))


FIRST = np.array([*0.75 * (1 - 0.8 / np.arange(1, 7)), 0.6, 0.8], np.float32)
"""The rates before the first round: those of matches of one to six tokens, of chains and of trees."""


def certain(state, rates=FIRST):
    """The state with these rates, [B, RATES] or [RATES], of many trials. Their upper bounds are the rates."""
    tested = jnp.full((state.done.size, RATES), 1e6, jnp.float32)  # the dtype of the state, for one program
    return state.replace(drafter=state.drafter.replace(acceptance=RunningAcceptance(tested * rates, tested)))


@partial(jax.jit, static_argnames="auto")
def choose_arm(auto, given, state, matched):
    """The number of the arm that ``auto`` chooses, and whether drafts nearly pay."""
    return auto._choose_arm(state, auto._outlook(given, state, matched))


@partial(jax.jit, static_argnames="drafter")
def propose(target, draft, drafter, state):
    """The drafter's tree and its state after that."""
    return drafter.propose(target, draft, state, jnp.broadcast_to(jax.random.key(0), 4))


def spell(state):
    """The tokens of each row, for a new prefill."""
    return [tokens[:length].tolist() for tokens, length in zip(np.asarray(state.tokens), np.asarray(state.length))]


def decode_with(times, seeded, prompts=PROMPTS, **options):
    """The state when all rows are done. All calls share one program."""
    given = parameters(times)
    state = start(TARGET, given, AUTO, prompts, **SIZES | options)
    state = state.replace(request=state.request.replace(seeded=jnp.array(seeded)))
    state = run(TARGET, given, state, jnp.int32(99), drafter=AUTO, rule=RULES["walk_if_seeded"])
    assert np.all(state.done) and not np.any(state.failed)
    return state


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_seeded_text_is_that_of_plain_decoding_whatever_is_chosen(temperature):
    options = dict(seeds=np.array([5, 6, 7, 8]), temperature=temperature)
    plain = start(TARGET, None, Plain(), PROMPTS, **SIZES | options)
    expected = run(TARGET, None, plain, jnp.int32(99), drafter=Plain(), rule=sample_and_walk)
    expected, chosen = new_tokens(expected, PROMPTS), []
    for times in (COSTLY, CHEAP, PLAIN):
        state = decode_with(times, [True, True, False, True], **options)
        texts = new_tokens(state, PROMPTS)
        same = [text == other for text, other in zip(texts, expected)]
        assert same[0] and same[1] and same[3]
        assert same[2] or temperature  # the row without a seed has a text of its own
        chosen.append(np.asarray(state.counters.chosen).sum(0))
        np.testing.assert_array_equal(np.asarray(state.counters.emitted).sum(1), list(map(len, texts)))
    costly, cheap, plain = chosen
    assert cheap[3] > costly[3] and costly[1] + costly[2] > 0  # other times, other arms
    assert plain[0] >= 24 and plain[0] > 10 * plain[1:].sum()


def test_a_seeded_row_drafts_with_the_noise_of_the_targets_samples():
    """So the target as its own draft is always accepted. With a noise of its own it would seldom be at this temperature."""
    given = parameters([9, 9, 9, 1])
    given = given.replace(models=(TARGET,))
    state = start(TARGET, given, AUTO, PROMPTS, **SIZES, seeds=np.arange(4), temperature=3.0)
    state = state.replace(request=state.request.replace(seeded=jnp.ones(4, bool)))
    state = certain(state, jnp.array([0.01] * MATCHES + [0.99] * 2))  # all rows draw
    state = run(TARGET, given, state, jnp.int32(4), drafter=AUTO, rule=RULES["walk_if_seeded"])
    assert state.counters.accepted_at.sum() == state.counters.drafted.sum() == 4 * 4 * 3


@pytest.mark.parametrize("ends_together", [True, False])
def test_the_choice_is_the_best_by_plain_arithmetic(ends_together):
    """All rows have as much to come. The mean over them is harmonic if the batch ends with its last row."""
    arms = (*ARMS, Arm(2, True, 3, 2))
    auto = dataclasses.replace(AUTO, arms=arms, ends_together=ends_together)
    seconds = [1, 1.3, 1.7, 2.1, 1.4]
    given = parameters(seconds)
    state = start(TARGET, given, auto, PROMPTS, **SIZES)
    rates = np.random.default_rng(0).uniform(0.05, 0.95, (4, RATES)).astype(np.float32)
    state = certain(state, rates)
    seen = set()
    for matched in ([0, 0, 0, 0], [1, 6, 3, 2], [6, 0, 0, 0]):
        for done in ([False] * 4, [True, False, True, False]):
            value = []
            for arm, time in zip(arms, seconds):
                tokens = []
                for b in np.flatnonzero(~np.array(done)):
                    rate = rates[b, TREE if arm.nodes else CHAIN]
                    own = [rates[b, matched[b] - 1] if matched[b] else 0.0] + [rate] * arm.model
                    tokens.append(max(sum(alpha**i for i in range(arm.length + 1)) for alpha in own))
                mean = 1 / np.mean(1 / np.array(tokens)) if ends_together else sum(tokens)
                value.append(mean / time * (1.1 if arm.length == 0 else 1))
            chosen, is_near = choose_arm(auto, given, state.replace(done=jnp.array(done)), jnp.array(matched))
            assert int(chosen) == int(np.argmax(value))
            seen.add(int(chosen))
            assert bool(is_near) == (max(value[1:]) > 0.95 * max(value))
    assert 4 in seen and len(seen) > 1


@pytest.mark.parametrize("left", [24, 64])
def test_unread_tokens_make_the_model_slower(left):
    """The model drafts a token in 0.1 and reads one in 0.025. A quarter of the rounds of four tokens share that time."""
    given, tokens = parameters([1, 9, 1.6, 1.9]), sum(0.8**i for i in range(4))
    state = start(TARGET, given, AUTO, PROMPTS, **SIZES)
    sure = certain(state, jnp.full(RATES, 0.8))
    sure = sure.replace(request=sure.request.replace(limit=state.length + left))
    most = next(n for n in range(999) if tokens / (1.9 + n * 0.025 / (left / 16)) < 1.1)
    chosen = [int(choose_arm(AUTO, given, skip(sure, n), jnp.zeros(4, jnp.int32))[0]) for n in (0, most - 1, most, 999)]
    assert chosen == [3, 3, 0, 0] and most > 9


def test_a_batch_waits_for_its_last_row_and_slots_do_not():
    """Drafts help three rows and not the last. They pay if slots are filled again, or if all rows have as much to come."""
    state = start(TARGET, parameters([1, 9, 1.7, 9]), AUTO, PROMPTS, **SIZES)
    rates = np.full((4, RATES), 0.9, np.float32)
    rates[3] = 0.01
    state = certain(state, rates)
    slots, matched = dataclasses.replace(AUTO, ends_together=False), jnp.full(4, 2)
    choose = lambda auto, left: int(
        choose_arm(
            auto,
            parameters([1, 9, 1.7, 9]),
            state.replace(request=state.request.replace(limit=state.length + jnp.array(left))),
            matched,
        )[0]
    )
    assert choose(AUTO, [50, 50, 50, 50]) == choose(slots, [50, 50, 50, 50]) == choose(slots, [30, 30, 30, 50]) == 2
    assert choose(AUTO, [30, 30, 30, 50]) == 0


def skip(state, tokens):
    """The state if the model had not read the last tokens of the rows, so many."""
    (model,) = state.drafter.models
    model = model.replace(cache=model.cache.replace(length=state.cache.length - tokens))
    return state.replace(drafter=state.drafter.replace(models=(model,)))


def test_the_first_rate_is_that_of_the_rows_temperature():
    """At 0.9 a round of three drafts emits 3.4 tokens, at 0.5 1.9, and at 0.1 1.1 in the time of 1.6 plain rounds."""
    given = parameters([1, 9, 9, 1.6]).replace(rates=jnp.array([0.9, 0.1]))
    state = start(TARGET, given, AUTO, PROMPTS, **SIZES)
    chosen, rates = [], []
    for temperature in (0.0, 0.5, 1.0, 2.0):
        temperatures = jnp.full_like(state.request.sampling.temperature, temperature)
        sampling = state.request.sampling.replace(temperature=temperatures)
        warm = state.replace(request=state.request.replace(sampling=sampling))
        outlook = AUTO._outlook(given, warm, jnp.zeros(4, jnp.int32))
        chosen.append(int(choose_arm(AUTO, given, warm, jnp.zeros(4, jnp.int32))[0]))
        rates.append(float(outlook.chain[0]))
    first = np.array([0.9, 0.5, 0.1, 0.1])
    np.testing.assert_allclose(rates, first + 0.5 * np.sqrt(first * (1 - first) / 6 / 4), rtol=1e-5)
    assert chosen == [3, 3, 0, 0]


def test_a_rate_of_few_trials_is_taken_to_be_higher():
    """At a rate of 0.6 a round of three drafts emits 2.18 tokens and takes 2.02 times as long, below the margin."""
    given = parameters([1, 9, 9, 2.02])
    state = start(TARGET, given, AUTO, PROMPTS, **SIZES)
    choose = lambda state: int(choose_arm(AUTO, given, state, jnp.zeros(4, jnp.int32))[0])
    assert choose(state) == 3 and choose(certain(state)) == 0
    rates = lambda state: AUTO._outlook(given, state, jnp.zeros(4, jnp.int32)).chain.tolist()
    hope = 0.5 * np.sqrt(0.6 * 0.4 / 6)
    np.testing.assert_allclose(rates(state), 0.6 + hope / 2, rtol=1e-5)  # the errors of four rows partly cancel
    alone = state.replace(done=jnp.array([True, True, False, True]))
    np.testing.assert_allclose(rates(alone), 0.6 + hope, rtol=1e-5)
    np.testing.assert_allclose(rates(certain(state)), 0.6, rtol=1e-3)


def test_a_model_that_has_lost_is_tried_again_after_its_tests_have_faded():
    """At a rate of 0.6 and above a round of three drafts pays. Ten rounds without an accepted draft end the use."""
    given = parameters([1, 9, 9, 1.9])
    state = start(TARGET, given, AUTO, PROMPTS, **SIZES)
    lost = RunningAcceptance(jnp.zeros((4, RATES)), jnp.zeros((4, RATES)).at[:, CHAIN].set(6.5))
    waits = {}
    for rounds in (0, 50, 200, 500):
        weight = RunningAcceptance(lost.accepted, lost.tested * 0.99**rounds)
        before = state.replace(drafter=state.drafter.replace(acceptance=weight))
        waits[rounds] = int(choose_arm(AUTO, given, before, jnp.zeros(4, jnp.int32))[0])
    assert waits[0] == waits[50] == 0 and waits[500] == 3


def test_plain_decoding_holds_for_four_rounds_while_drafts_are_far_from_paying():
    """The last prompt repeats itself, so that a look-up finds a match."""
    far, near = parameters([1, 9, 9, 9]), parameters([1, 9, 9, 2.05])
    state = certain(start(TARGET, far, AUTO, PROMPTS, **SIZES))
    state = state.replace(request=state.request.replace(seeded=jnp.zeros(4, bool)))  # the program of ``decode_with``

    @jax.jit
    def begin(given, state):
        _, prepared, chosen = AUTO.choose(TARGET, given, state)
        return chosen, prepared.ran, prepared.matched

    one_round = lambda given, state: run(
        TARGET, given, state, state.round + 1, drafter=AUTO, rule=RULES["walk_if_seeded"]
    )

    def play(given, since_near, done=(False, False, False, False)):
        own = state.drafter.replace(since_near=jnp.array([0, 0, since_near, 1]))
        before = state.replace(drafter=own, done=jnp.array(done))
        chosen, ran, matched = begin(given, before)
        assert int(chosen) == 0 and not ran
        return bool(matched[3] > 0), one_round(given, before).drafter.since_near.tolist()

    for since_near in range(30):
        assert play(far, since_near) == (since_near < 4 or since_near % 4 == 0, [1, 1, since_near + 1, 2])
    assert play(far, 17, done=[False, False, True, False])[0]  # the row that was since_near has ended
    assert play(near, 3) == (True, [0, 0, 0, 0])
    state = run(TARGET, far, state, jnp.int32(17), drafter=AUTO, rule=RULES["walk_if_seeded"])
    assert np.asarray(state.counters.chosen)[:, 1:].sum() == 0
    state = run(TARGET, parameters(CHEAP), state, jnp.int32(21), drafter=AUTO, rule=RULES["walk_if_seeded"])
    assert np.asarray(state.counters.chosen)[:, 1:].sum() > 0  # four rounds later the method drafts


def test_a_call_of_many_rounds_ends_where_as_many_calls_of_one_round_end():
    """Rounds that hold a choice repeat inside of a call. They stop at its last round, as others do."""
    far = parameters([1, 9, 9, 9])
    begun = certain(start(TARGET, far, AUTO, PROMPTS, **SIZES))
    begun = begun.replace(request=begun.request.replace(seeded=jnp.zeros(4, bool)))  # the program of ``decode_with``
    rounds = 18  # a hold begins before the last round, and would go on after it
    at_once = run(TARGET, far, begun, jnp.int32(rounds), drafter=AUTO, rule=RULES["walk_if_seeded"])
    one_by_one = begun
    for until in range(1, rounds + 1):
        one_by_one = run(TARGET, far, one_by_one, jnp.int32(until), drafter=AUTO, rule=RULES["walk_if_seeded"])
    assert int(at_once.round) == rounds and not at_once.done.any()
    of = lambda state: (
        state.tokens,
        state.cache.length,
        state.drafter.since_near,
        state.drafter.acceptance,
        state.counters,
    )
    jax.tree.map(np.testing.assert_array_equal, of(at_once), of(one_by_one))


def test_times_interpolate_the_table_and_learn_from_runs():
    table = np.arange(12).reshape(2, 2, 3) + 1.0
    times = Times.of_table(table, [1, 5], [10, 20])
    rise = np.maximum(table[1, 0] - table[0, 0], 0)  # of four rows more
    falling = Times.of_table([[[5.0]], [[3.0]]], [1, 4], [1])
    apart = Times.of_table([[[[1.0, 2.0]]], [[[3.0, 9.0]]]], [1], [1])
    sizes = (times, 5, 10), (times, 3, 15), (times, 1, 99), (times, 13, 1), (falling, 64, 1)
    sizes += (apart, 1, 1, False), (apart, 1, 1, True)
    expected = table[1, 0], table.mean((0, 1)), table[0, 1], table[1, 0] + 2 * rise, [3], [1, 2], [3, 9]
    on_device = jax.jit(lambda: [times.at(*size) for times, *size in sizes])()
    on_host = [times.at(*size, xp=np) for times, *size in sizes]
    for own, host, value in zip(on_device, on_host, expected, strict=True):
        np.testing.assert_allclose(own, value, rtol=1e-5)
        np.testing.assert_allclose(host, value, rtol=1e-5)
    true, rng = table[0, 0] * [3.0, 2.0, 5.0], np.random.default_rng(0)
    for _ in range(60):
        rounds = rng.integers(0, 9, 3)
        times = times.correct(rounds, 1, 1, float(rounds @ true) * rng.normal(1, 0.02) + 1e-9)
    at = jax.jit(lambda times: (times.at(1, 1), times.at(5, 10), times.at(1, 1, True)))
    here, other_batch, sampled = at(times)  # another batch size has times of its own, and sampled rows too
    np.testing.assert_allclose(here, true, rtol=0.1)
    np.testing.assert_allclose(other_batch, table[1, 0], rtol=1e-5)
    np.testing.assert_allclose(sampled, table[0, 0], rtol=1e-5)
    runs = [(np.array([8, 0]), 8.0), (np.array([0, 8]), 48.0)] * 9  # arm 1 takes three times as long as in the table
    learnt = []
    for trust in (CONSTANTS.predicted_rounds, CONSTANTS.measured_rounds):
        found = Times.of_table([[[1.0, 2.0]]], [1], [1], trust)
        for rounds, seconds in runs:
            found = found.correct(rounds, 1, 1, seconds)
        learnt.append(found.at(1, 1, xp=np)[1] / found.at(1, 1, xp=np)[0])
    assert learnt[0] == pytest.approx(6, rel=0.2) and 2 < learnt[1] < 0.8 * learnt[0]  # a measured table gives way less
    once = Times.of_table([[[1.0, 2.0]]], [1], [1]).correct(np.array([7, 0]), 1, 1, 21.0)
    # An arm that has not run has the scale of the others.
    np.testing.assert_allclose(once.at(1, 1, xp=np), [3.0, 6.0], rtol=1e-5)


def test_a_run_counts_by_its_rounds_and_old_rounds_fade():
    """An engine's runs have few rounds, a Generator's many."""
    times, arm = Times.of_table([[[1.0, 2.0]]], [1], [1], CONSTANTS.predicted_rounds), np.array([1, 0])
    mixed = times.correct(64 * arm, 1, 1, 3.0 * 64).correct(arm, 1, 1, 1.0)
    assert float(mixed.at(1, 1)[0]) == pytest.approx(3, rel=0.15)
    together = times.correct(arm, 1, 1, 3.0)
    for _ in range(63):
        together = together.correct(arm, 1, 1, 3.0)
    assert float(together.correct(arm, 1, 1, 1.0).at(1, 1)[0]) == pytest.approx(float(mixed.at(1, 1)[0]), rel=0.02)
    later = mixed.correct(4000 * arm, 1, 1, 1.5 * 4000)
    assert float(later.at(1, 1)[0]) == pytest.approx(1.5, rel=0.02)


def test_a_slower_machine_changes_no_choice_and_a_slower_arm_does():
    plain, drafts = np.array([8, 0]), np.array([0, 8])
    drifting = Times.of_table([[[1.0, 2.0]]], [1], [1], CONSTANTS.measured_rounds)
    for seconds in np.geomspace(8, 40, 30):
        drifting = drifting.correct(plain, 1, 1, seconds)
    ratio = lambda times, *sampled: float(times.at(1, 1, *sampled)[1] / times.at(1, 1, *sampled)[0])
    assert ratio(drifting) == pytest.approx(2, rel=1e-5) and float(drifting.at(1, 1)[0]) == pytest.approx(5, rel=0.15)
    slower = drifting
    for _ in range(40):
        slower = slower.correct(drafts, 1, 1, 5 * 8 * 3.0).correct(plain, 1, 1, 5 * 8.0)
    assert ratio(slower) == pytest.approx(3, rel=0.06)
    assert ratio(slower, True) == pytest.approx(2, rel=1e-5)  # sampled rows have times of their own
    odd = slower.correct(drafts, 1, 1, 1e4)  # a pause of the machine
    assert ratio(odd) < 1.3 * ratio(slower)
    for _ in range(300):
        odd = odd.correct(plain, 1, 1, 5 * 8.0)
    assert 2 < ratio(odd) < 2.5  # an arm that does not run returns to the table


def test_predicted_times_grow_with_nodes_rows_and_the_draft():
    at = lambda batch, platform="tpu": predict([Arm(0), Arm(4), Arm(4, True), Arm(4, True, 20, 3)], 0.1, platform).at(
        batch, 9, xp=np
    )
    assert at(1)[0] == 1 and at(1)[1] == pytest.approx(1 + 4 / 200) and at(1)[2] == pytest.approx(1.42)
    assert at(1)[3] == pytest.approx(1 + 20 / 200 + 4 * 0.1 * (1 + 2 / 200))
    assert np.all(at(16) > at(1)) and at(1, "cpu")[1] == pytest.approx(1 + 4 / 12)


def test_auto_needs_no_draft_and_takes_one():
    assert [length for length, *_ in make_drafter("auto").shapes] == [0, 4, 12]
    alone = dataclasses.replace(AUTO).without_model()
    assert (
        [length for length, *_ in alone.choices] == [0, 1, 3]
        and alone.drawn == "chosen"
        and AUTO.drawn == "chain_or_chosen"
    )
    with pytest.raises(RequestError, match="belongs to another method"):
        make_drafter("auto", prompt_lookup_max=3)


LAYERS = TINY.replace(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16)
HEAD = random_head(Eagle3Head, Eagle3Config(LAYERS, 32, 1, taps=(0, 1), draft_vocab_size=V), seed=5, scale=0.4)
HEAD_ARMS = Arm(0), Arm(1), Arm(2, True), Arm(4, True)


def certain_of_the_model(rows):
    """Rates at which all rows take the model's tokens."""
    tested = jnp.full((rows, RATES), 1e3, jnp.float32)
    return RunningAcceptance(jnp.full_like(tested, 1e-3).at[:, MATCHES:].set(1e3 - 1), tested)


@pytest.mark.slow
def test_a_head_that_has_rested_drafts_like_one_that_reads_the_text_anew():
    """After rounds of other arms, its chains are those of method eagle3 with the text so far as its prompt."""
    auto = Auto(arms=HEAD_ARMS, head=HEAD.config)
    given, new = auto.parameters((HEAD,), V), CONSTANTS.waiting + 40
    force = lambda arm: given.replace(
        times=Times.of_table([[[1.0 if i == arm else 1e9 for i in range(len(HEAD_ARMS))]]], [1], [1])
    )
    sizes = dict(capacity=128, chunk=32)
    state = start(TARGET, given, auto, PROMPTS, **sizes, limit=[len(prompt) + new for prompt in PROMPTS])
    all_draw = certain_of_the_model(4)

    @jax.jit
    def draft_with(parameters, state):
        found = {}
        state, prepared, _ = auto.choose(TARGET, parameters, state)
        ready = auto.with_prepared(state, prepared)
        for length in (2, 4):
            tree, _ = auto.at_shape((length, 0, 0)).propose(TARGET, parameters, ready, None)
            found[length] = tree.tokens[:, : length + 1]
        return found, prepared.from_model

    compared = 0
    for arm, rounds in (
        (3, 2),
        (2, 2),
        (0, 3),
        (3, 1),
        (1, 4),
        (2, 1),
        (0, CONSTANTS.waiting + 5),
        (3, 1),
        (0, 1),
        (2, 1),
    ):
        state = state.replace(drafter=state.drafter.replace(acceptance=all_draw, since_near=jnp.zeros(4, jnp.int32)))
        if HEAD_ARMS[arm].model:
            length, going = HEAD_ARMS[arm].length, ~np.asarray(state.done)
            found, from_model = draft_with(force(arm), state)
            assert np.all(from_model) and going.any()
            fresh = Eagle3(num_speculative_tokens=length, head=HEAD.config)
            anew = start(TARGET, HEAD, fresh, spell(state), **sizes, limit=127)
            expected = propose(TARGET, HEAD, fresh, anew)[0].tokens
            np.testing.assert_array_equal(np.asarray(found[length])[going], np.asarray(expected)[going])
            compared += going.sum()
        until = state.round + rounds
        state = run(TARGET, force(arm), state, until, drafter=auto, rule=RULES["walk_if_seeded"])
    assert compared >= 20
    np.testing.assert_array_equal(np.asarray(state.counters.chosen).sum(0) > 0, True)


@pytest.mark.slow
def test_a_head_of_short_arms_has_room_for_the_features_of_a_held_choice():
    """Held plain rounds leave more features than a short chain needs. The head's next chain is that of eagle3."""
    auto = Auto(arms=(Arm(0), Arm(2, True)), head=HEAD.config)
    given, sizes = auto.parameters((HEAD,), V), dict(capacity=128, chunk=32)
    force = lambda *times: given.replace(times=Times.of_table([[times]], [1], [1]))
    state = start(TARGET, given, auto, PROMPTS, **sizes, limit=[len(prompt) + 100 for prompt in PROMPTS])
    fresh = Eagle3(num_speculative_tokens=2, head=HEAD.config)

    @jax.jit
    def draft(parameters, state):
        state, prepared, _ = auto.choose(TARGET, parameters, state)
        return auto.at_shape((2, 0, 0)).propose(TARGET, parameters, auto.with_prepared(state, prepared), None)[0]

    for until in range(2 * CONSTANTS.waiting, 2 * CONSTANTS.waiting + 8):  # one of them ends with all places taken
        state = run(TARGET, force(1.0, 1e9), state, jnp.int32(until), drafter=auto, rule=RULES["walk_if_seeded"])
        going = ~np.asarray(state.done)
        assert going.any() and state.counters.chosen[:, 1].sum() == 0
        awake = state.drafter.replace(acceptance=certain_of_the_model(4), since_near=jnp.zeros(4, jnp.int32))
        found = draft(force(1e9, 1.0), state.replace(drafter=awake)).tokens
        anew = start(TARGET, HEAD, fresh, spell(state), **sizes, limit=127)
        expected = propose(TARGET, HEAD, fresh, anew)[0].tokens
        np.testing.assert_array_equal(np.asarray(found)[going], np.asarray(expected)[going])


TREE_ARMS = Arm(0), Arm(2), Arm(3, True), Arm(3, True, 7, 2)
LONG_SIZES = dict(capacity=128, chunk=32)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "head"])
def test_a_draft_that_has_rested_grows_the_tree_of_one_that_reads_the_text_anew(kind):
    """After rounds of other arms, its trees are those of dynamic_tree, and of eagle3 for a head."""
    of_tree = dict(tree_nodes=7, tree_depth=3, tree_top_k=2)
    head, model = (HEAD.config, HEAD) if kind == "head" else (None, disturbed(TARGET, 0.3))
    fresh = Eagle3(**of_tree, head=head) if head else DynamicTree(**of_tree)
    auto = Auto(arms=TREE_ARMS, head=head)
    given = auto.parameters((model,), V)
    state = start(TARGET, given, auto, PROMPTS, **LONG_SIZES, limit=[len(prompt) + 60 for prompt in PROMPTS])
    compared, accepted = 0, 0

    @jax.jit
    def draft_tree(parameters, state):
        state, prepared, _ = auto.choose(TARGET, parameters, state)
        state = auto.with_prepared(state, prepared)
        return auto.at_shape(TREE_ARMS[3].shape).propose(TARGET, parameters, state, None)[0]

    for arm, rounds in ((3, 4), (0, 3), (3, 1), (1, 4), (3, 3), (2, 2), (3, 4), (3, 1)):
        times = Times.of_table([[[1.0 if i == arm else 1e9 for i in range(4)]]], [1], [1])
        forced, going = given.replace(times=times), ~np.asarray(state.done)
        all_draw, awake = certain_of_the_model(4), jnp.zeros(4, jnp.int32)
        state = state.replace(drafter=state.drafter.replace(acceptance=all_draw, since_near=awake))
        if arm == 3:
            found = draft_tree(forced, state)
            anew = start(TARGET, model, fresh, spell(state), **LONG_SIZES, limit=127)
            expected, _ = propose(TARGET, model, fresh, anew)
            for own, other in ((found.tokens, expected.tokens), (found.parent, expected.parent)):
                np.testing.assert_array_equal(np.asarray(own)[going], np.asarray(other)[going])
            compared += going.sum()
            read, anew_read = jax.device_get((state.drafter.models[0].cache, anew.drafter.cache))
            for b in np.flatnonzero(going):
                held = int(min(read.length[b], anew_read.length[b]))
                for own, other in zip(*map(jax.tree.leaves, (read.layers, anew_read.layers))):
                    np.testing.assert_allclose(own[b, :, :held], other[b, :, :held], atol=1e-4)
        before = state.length
        state = run(TARGET, forced, state, state.round + rounds, drafter=auto, rule=RULES["walk_if_seeded"])
        accepted += (state.length - before - rounds).sum() if arm == 3 else 0
    assert compared >= 12 and (accepted > 0 or head)


def test_the_rates_are_the_means_of_the_tests_and_of_a_first_guess():
    """A match's first guess counts as two tests, the model's as six. A test loses a tenth of its weight in each round."""
    rates = start_rates(2)
    first = jnp.array([0.6, 0.3])
    np.testing.assert_allclose(estimate(rates, first)[0], [FIRST, [*FIRST[:CHAIN], 0.3, 0.65]], rtol=1e-6)
    tokens, prepared = chain(jnp.arange(4)), Prepared(*[jnp.int32(0)] * 7)
    prepared = prepared.replace(
        looked_up=jnp.array([[1, 2, 3, 4], [9, 9, 9, 9]]), matched=jnp.array([2, 0]),
        ran=jnp.bool(True), from_model=jnp.array([False, True]), count=jnp.int32(3),
    )  # fmt: skip
    batched = jax.tree.map(lambda x: jnp.stack([x, x]), tokens)
    verdict = Verdict(jnp.array([[0, 1, 2, 2], [0, 1, 1, 1]]), jnp.array([3, 2]), jnp.array([9, 9]))
    update = jax.jit(partial(update_rates, depth=3), static_argnames="is_tree")
    for weight in (1, 1.9):
        rates = update(rates, prepared, batched, verdict, is_tree=False)
        accepted, tested = np.zeros((2, 2, RATES))
        accepted[0, 1], tested[0, 1] = 2 * weight, 3 * weight  # two looked-up tokens, and one that is wrong
        accepted[1, CHAIN], tested[1, CHAIN] = 1 * weight, 2 * weight
        np.testing.assert_allclose(rates.accepted, accepted, rtol=1e-6)
        np.testing.assert_allclose(rates.tested, tested, rtol=1e-6)
    np.testing.assert_allclose(estimate(rates, first)[0][1, CHAIN], (6 * 0.3 + 1.9) / (6 + 3.8), rtol=1e-6)
    rested = update(
        rates, prepared.replace(ran=jnp.bool(False), from_model=jnp.zeros(2, bool)), batched, verdict, is_tree=False
    )
    np.testing.assert_allclose(rested.tested[1, CHAIN], 0.99 * 3.8, rtol=1e-6)
    tree = update(rates, prepared, batched, verdict, is_tree=True)
    np.testing.assert_allclose(tree.tested[1, [CHAIN, TREE]], [3.8, 2], rtol=1e-6)


@pytest.mark.slow
def test_a_tree_that_emits_little_loses_value():
    """A tree and a chain have a rate each."""
    auto = Auto(arms=TREE_ARMS)
    given = auto.parameters((disturbed(TARGET, 0.3),), V)
    at_times = lambda *times: given.replace(times=Times.of_table([[times]], [1], [1]))
    state = start(TARGET, given, auto, PROMPTS, **LONG_SIZES, limit=60)  # the program of the test above
    after = run(TARGET, at_times(1, 9, 9, 0.1), state, jnp.int32(1), drafter=auto, rule=RULES["walk_if_seeded"])
    assert np.all(np.asarray(after.counters.chosen) == [0, 0, 0, 1])
    drafted, kept = np.asarray(after.counters.emitted)[:, 3] - 1, after.drafter.acceptance
    np.testing.assert_allclose(kept.accepted[:, TREE], drafted)
    np.testing.assert_allclose(kept.tested[:, TREE], np.minimum(drafted + 1, 3))
    np.testing.assert_array_equal(kept.tested[:, CHAIN], 0)
    choose = lambda chains, trees, *times: int(
        choose_arm(
            auto,
            at_times(*times),
            certain(state, jnp.array([0.0] * MATCHES + [chains, trees])),
            jnp.zeros(4, jnp.int32),
        )[0]
    )
    assert choose(0.9, 0.9, 1, 9, 9, 2.5) == 3 and choose(0.9, 0.5, 1, 9, 9, 2.5) == 0
    assert choose(0.9, 0.9, 1, 9, 2.5, 9) == choose(0.9, 0.5, 1, 9, 2.5, 9) == 2


def test_a_resting_model_commits_any_path_of_its_tree_and_nothing_of_a_tree_that_was_not_taken():
    grower = DynamicTree(tree_nodes=10, tree_depth=3, tree_top_k=2)
    state = start(TARGET, DRAFT, grower, PROMPTS, **SIZES)
    tree, drafted = propose(TARGET, DRAFT, grower, state)
    before = state.replace(drafter=drafted)

    @jax.jit
    def accept(tree):
        """The verdict that accepts the last of the deepest nodes."""
        last = jnp.argmax(jax.vmap(ancestors)(tree).sum(-1)[:, ::-1], 1)
        node = tree.tokens.shape[1] - 1 - last
        return jax.vmap(lambda node, tree: verdict_at(node, jnp.int32(9), tree, ancestors(tree)))(node, tree)

    verdict = accept(tree)
    assert (verdict.path[:3, 2] > 3).any()  # not the first node of its level
    commit = TARGET, DRAFT, before, tree, None, verdict
    taken = jax.jit(RestingModel(grower).commit)(*commit, jnp.array([True, True, True, False])).cache
    expected = jax.jit(grower.commit)(*commit).cache
    for own, other in zip(jax.tree.leaves(taken), jax.tree.leaves(expected)):
        np.testing.assert_array_equal(own[:3], other[:3])
    assert taken.length[3] == state.cache.length[3] < expected.length[3]


def test_auto_takes_a_head_and_refuses_heads_that_cannot_rest():
    target = language_model(TARGET, "target")
    head = Head(HEAD, HEAD.config, "head")
    plain = Generator(target, "none")([3, 1, 4, 1, 5] * 4, max_new_tokens=24)
    generator = Generator(target, draft=head)
    assert generator.method == "auto" and Generator(target, draft=head, tree_nodes=9).method == "eagle3"
    result = generator([3, 1, 4, 1, 5] * 4, max_new_tokens=24)
    assert result.token_ids == plain.token_ids
    assert {choice.name for choice in result.stats.choices} <= {"none", "n-grams, 4", "n-grams, 12", "draft, 4"}
    config = MedusaConfig(32, 1, V, num_heads=2)
    with pytest.raises(RequestError, match="of kind 'medusa' is none"):
        Generator(target, "auto", Head(random_head(MedusaHeads, config), config, "medusa"))
    assert Generator(target, draft=Head(random_head(MedusaHeads, config), config, "medusa")).method == "medusa"
