"""The file of method auto's times: measured once, read by a Generator, measured anew for another machine."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import disturbed
from support.one_layer import draft, target
from support.reference import continue_greedily

from specjax import Engine, Generator, RequestError
from specjax.drafters import Auto
from specjax.drafters.auto import Parameters
from specjax.drafters.auto.arms import ARMS, TREE, Arm
from specjax.drafters.auto.times import Times
from specjax.errors import SpecjaxWarning
from specjax.text import round_times
from specjax.text.session import Decoding, Session
from specjax.tools.tune import auto

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 8, 3]]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("costs") / "costs.json"


@pytest.fixture(scope="module")
def watched() -> SimpleNamespace:
    """What the measurement of ``record`` ran: the lengths and the temperature of each run, and the greedy texts."""
    return SimpleNamespace(starts=[], texts={})


@pytest.fixture(scope="module")
def record(target, draft, file, watched):
    """The record of the file. Each run is checked while it is measured."""
    advance = Session.advance

    def watch(session, decoding, rounds):
        state = decoding.state
        before, heat = np.array(state.length), np.array(state.request.sampling.temperature)
        watched.starts.append((tuple(before), heat[0]))
        assert len(set(np.array(state.root))) > 1 and len(set(heat)) == 1
        advance(session, decoding, rounds)
        count = np.array(decoding.state.length) - before
        assert (count >= rounds).all() and not np.array(decoding.state.done).any()
        for row, (tokens, n) in enumerate(zip(np.array(decoding.state.tokens), before)):
            if heat[0] == 0:
                text, known = tokens[n : n + rounds].tolist(), watched.texts.get((row, n), [])
                assert text[: len(known)] == known[: len(text)]
                watched.texts[row, n] = max(text, known, key=len)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "advance", watch)
        patch.setattr(auto, "CANDIDATES", (Arm(0), Arm(2, True)))
        patch.setattr(auto, "_SECONDS", 0.5)
        return auto.tune_auto(target, draft, file=file, batches=(4,), contexts=(12, 20))


def test_the_file_names_machine_versions_and_models(record, file, target, draft):
    kept = json.loads(file.read_text())
    assert {"jax", "cpu", "device"} <= kept["machine"].keys() and kept["model"]["name"] == "target"
    assert kept["drafts"][0]["name"] == "draft" and Arm(**kept["arms"][0]) == Arm(0)
    assert np.all(np.array(kept["seconds"]) > 0) and np.shape(kept["seconds"]) == (2, 1, 2, len(kept["arms"]))
    again = auto.tune_auto(target, draft, file=file, batches=(1, 2))
    assert again["seconds"] == kept["seconds"] and "before" in again["note"]


def test_a_file_of_smaller_batches_is_measured_anew(record, file, target, draft, tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "measure", lambda *_: np.ones((2, 1, 1, 2)))
    monkeypatch.setattr(auto, "CANDIDATES", (Arm(0), Arm(2)))
    copy = tmp_path / "costs.json"
    copy.write_text(file.read_text())
    again = auto.tune_auto(target, draft, file=copy, batches=(8,), contexts=(20,))
    assert "smaller batches" in again["note"] and json.loads(copy.read_text())["batches"] == [8]


@pytest.fixture(scope="module")
def generator(record, file, target, draft) -> Generator:
    """Method auto with the times of the file."""
    return Generator(target, "auto", draft, costs=str(file))


def test_a_generator_reads_the_file_and_tells_its_choices(record, generator, target):
    assert [str(arm) for arm in generator.drafter.arms] == [str(Arm(**arm)) for arm in record["arms"]]
    given = np.asarray(generator.session.parameters.times.at(2, 20))
    results = generator(PROMPTS, max_new_tokens=20, ignore_eos=True)
    assert [r.token_ids for r in results] == continue_greedily(target.model, PROMPTS, 20)
    for result in results:
        choices = result.stats.choices
        assert sum(c.rounds for c in choices) == result.stats.target_calls
        assert sum(c.tokens for c in choices) == 20 and choices[0].time == 1
        assert "times the time of a plain round" in str(choices[0])
        assert result.as_dict()["stats"]["choices"][0]["name"] == "none"
    assert not np.array_equal(generator.session.parameters.times.at(2, 20), given)  # the run corrected them


def test_the_file_serves_models_of_the_same_sizes(file, target, draft, monkeypatch):
    moved = dataclasses.replace(draft, name="elsewhere")
    assert Generator(target, "auto", moved, costs=str(file)).session.parameters.times is not None
    with pytest.warns(SpecjaxWarning, match="of another draft"):
        Generator(target, "auto", costs=str(file))


def test_the_file_may_have_the_first_rates(file, target, draft, tmp_path):
    own = tmp_path / "costs.json"
    for rates, right in (([0.7, 0.2], [0.7, 0.2]), (None, [0.6, 0.6])):
        own.write_text(json.dumps(json.loads(file.read_text()) | ({"rates": rates} if rates else {})))
        found = Generator(target, "auto", draft, costs=str(own)).session.parameters.rates
        np.testing.assert_allclose(found, right, rtol=1e-6)
    for wrong in ([0.7], [0.7, 1.0], [0.7, "x"], [-0.1, 0.5], 3):
        own.write_text(json.dumps(json.loads(file.read_text()) | {"rates": wrong}))
        with pytest.raises(RequestError, match="is no file of specjax tune --auto"):
            Generator(target, "auto", draft, costs=str(own))


def test_another_draft_keeps_the_times_that_were_learnt(generator, target):
    generator(PROMPTS, max_new_tokens=20, ignore_eos=True)
    learnt = generator.session.parameters.times
    assert learnt.rounds.sum() > 0
    generator.update(draft=disturbed(target.model, 0.2))
    jax.tree.map(np.testing.assert_array_equal, generator.session.parameters.times, learnt)


@pytest.mark.slow
def test_told_times_are_those_of_batch_and_temperature(record, file, target, draft, tmp_path):
    kept = json.loads(file.read_text())
    times = np.ones((2, 2, 1, len(kept["arms"])))
    times[:, :, :, 1:] = np.array([[3, 30], [300, 3000]])[:, :, None, None]  # greedy and sampled, batch 1 and 4
    own = tmp_path / "costs.json"
    own.write_text(json.dumps(kept | {"batches": [1, 4], "contexts": [9], "seconds": times.tolist()}))
    generator = Generator(target, "auto", draft, costs=str(own))
    told = lambda result: round(np.log10(result.stats.choices[1].time / 3))
    assert [told(r) for r in generator(PROMPTS[:1], max_new_tokens=3)] == [0]
    assert [told(r) for r in generator(PROMPTS[:1] * 4, max_new_tokens=3)] == [1] * 4
    assert [told(r) for r in generator(PROMPTS[:1] * 4, max_new_tokens=3, temperature=1.0)] == [3] * 4
    with Engine(target, "auto", draft, costs=str(own), slots=4, capacity=64) as engine:
        assert told(engine.submit(PROMPTS[0], max_new_tokens=3).result()) == 1
        assert told(engine.submit(PROMPTS[0], max_new_tokens=3, temperature=1.0).result()) == 3


def test_a_file_of_another_machine_is_not_used_and_measured_anew(record, file, target, draft, tmp_path, monkeypatch):
    other = json.loads(file.read_text())
    other["machine"]["jax"] = "0.0"
    own = tmp_path / "costs.json"
    own.write_text(json.dumps(other))
    with pytest.warns(UserWarning, match=r"another machine or version \(jax\)"):
        Generator(target, "auto", draft, costs=str(own))
    own.write_text(json.dumps(json.loads(file.read_text()) | {"mesh": {"data": 2}}))
    with pytest.warns(UserWarning, match="another mesh"):
        Generator(target, "auto", draft, costs=str(own))
    own.write_text(json.dumps(other))
    monkeypatch.setattr(auto, "measure", lambda *_: np.ones((2, 1, 1, 6)))
    found = auto.tune_auto(target, draft, file=own, batches=(1,), contexts=(9,))
    assert "measured anew: the file was of another machine or version (jax)" in found["note"]
    assert round_times.read_costs(own)["machine"]["jax"] != "0.0"


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "specjax costs 4"}', None, "a tree of look-ups"])
def test_a_file_that_is_none_is_refused_in_one_line(text, target, draft, tmp_path, record, file):
    wrong = tmp_path / "costs.json"
    kept = json.loads(file.read_text())
    if text == "a tree of look-ups":
        kept["arms"][1] |= {"model": False, "nodes": 9}
        text = json.dumps(kept)
    kept["seconds"][1][0][0][0] = -1.0
    wrong.write_text(json.dumps(kept) if text is None else text)
    with pytest.raises(RequestError, match="costs .*measure") as error:
        Generator(target, "auto", draft, costs=str(wrong))
    assert "\n" not in str(error.value)
    with pytest.raises(RequestError, match="cannot be read"):
        Generator(target, "auto", draft, costs=str(tmp_path / "missing.json"))


def test_arms_that_never_win_are_dropped():
    arms = [Arm(0), Arm(4), Arm(8), Arm(4, True), Arm(8, True)]
    seconds = np.array([[[1, 1.2, 1.25, 1.5, 9.0]]])
    assert [arms[i] for i in auto.choose_arms(arms, seconds)] == [Arm(0), Arm(4), Arm(8), Arm(4, True)]
    seconds = np.array([[[1, 50, 60, 70, 90.0]]])
    assert [arms[i] for i in auto.choose_arms(arms, seconds)] == [Arm(0), Arm(4), Arm(4, True)]
    arms = [Arm(0), Arm(4), Arm(4, True), Arm(5, True, 15)]
    for seconds, kept in (([1, 1.2, 1.5, 2.0], arms), ([1, 1.2, 1.5, 3.5], arms[:3])):
        assert [arms[i] for i in auto.choose_arms(arms, np.array([[seconds]]))] == kept


def test_without_a_file_a_tree_is_an_arm_except_on_a_cpu(target, draft, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    find = lambda drafts, arms=ARMS: round_times.find_costs(Auto(arms=arms), target, drafts)[0].arms
    assert find([draft]) == ARMS
    monkeypatch.setattr("jax.default_backend", lambda: "tpu")
    assert find([draft]) == (*ARMS, TREE) and find([draft], ARMS[:2]) == ARMS[:2]
    assert not any(arm.model for arm in find([]))


def test_all_rounds_are_timed_from_the_same_state(record, watched):
    """Whatever ran before, rows have the given numbers of tokens, and all greedy rounds write the same text."""
    assert np.all(np.array(record["seconds"]) > 0)
    assert {(length, heat) for lengths, heat in watched.starts for length in lengths} == {
        (12, 0.0), (12, 1.0), (20, 0.0), (20, 1.0)
    }  # fmt: skip
    assert max(map(len, watched.texts.values())) > 2 and len({tuple(text) for text in watched.texts.values()}) > 4


@pytest.mark.parametrize("budget, rounds, calls_of_arms", [(0.04, 1, 6), (0.05, 1, 15), (1.0, 5, 18), (100.0, 30, 21)])
def test_the_time_of_a_call_is_no_part_of_a_round(budget, rounds, calls_of_arms):
    """Calls take 4 ms beside their rounds. Without the subtraction the plain round would take 5.5 ms or more.

    A quarter of a second is enough for 5 rounds of all arms. With more time the runs have 30 rounds. Rounds
    that take more than the time that is there run twice.
    """
    seconds, calls = [0.005, 0.009, 0.03], []

    class Told:
        parameters = Parameters((), Times.of_table([[[1.0] * 3]], [1], [1]), np.full(2, 0.6))

        def advance(self, decoding, rounds):
            arm = int(np.argmin(self.parameters.times.table))
            calls.append(rounds)
            decoding.decode_seconds += 0.004 + rounds * seconds[arm]

    told = Told()
    begun = Decoding(jnp.zeros(1), [], None)
    np.testing.assert_allclose(auto._time_arms(told, begun, 3, budget), seconds, rtol=1e-6)
    assert 0 in calls and max(calls) == rounds and sum(call > 0 for call in calls) == calls_of_arms
