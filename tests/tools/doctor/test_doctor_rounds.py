"""Replayed rounds against the real loop, and expected speeds against closed forms and plain counting."""

import itertools

import jax
import numpy as np
import pytest
from support.models import random_head, random_prompts

from specjax import Generator
from specjax.core.tree import from_paths
from specjax.heads import Head, MedusaConfig, MedusaHeads
from specjax.tools.doctor import examination, examine, texts
from specjax.tools.doctor import round_time as rounds
from specjax.tools.doctor.forecast import expected_longest, forecast
from specjax.tools.doctor.round_replay import count_rounds, tree_chances
from specjax.tools.doctor.round_time import RoundTimes, count_nodes, without_draft

TOKENS = 24
TREE = from_paths([(0,), (1,), (0, 0), (1, 0), (0, 0, 0)])


@pytest.fixture(scope="module", autouse=True)
def _unoptimised():
    """XLA's optimiser takes longer than these small programs run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize(("alpha", "depth"), [(0.0, 3), (0.6, 5), (0.9, 2), (1.0, 4)])
def test_rounds_of_equal_chances_are_those_of_the_formula(alpha: float, depth: int):
    """(1 - alpha^(depth + 1)) / (1 - alpha) tokens a round, Leviathan et al. 2023, eq. 1."""
    n = 20_000
    rounds = count_rounds(np.full((n, depth), alpha), np.random.default_rng(0))
    assert n / rounds == pytest.approx(sum(alpha**k for k in range(depth + 1)), rel=0.02)


def test_a_tree_keeps_the_paths_that_it_has():
    ranks = np.array([[0, 0, 0], [0, 1, 0], [1, 0, 0], [2, 0, 0]])
    np.testing.assert_array_equal(tree_chances(ranks, TREE), [[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["draft_model", "tree", "medusa"])
def test_greedy_replays_take_the_rounds_of_the_real_loop(target, draft, method: str):
    options = {"draft_model": dict(num_speculative_tokens=3)}.get(method, dict(tree=TREE))
    if method == "medusa":
        config = MedusaConfig(target.config.hidden_size, target.config.num_layers, 61, num_heads=3)
        draft = Head(random_head(MedusaHeads, config), config, "head")
    generator, prompts = Generator(target, method, draft, **options), [[5, 6, 7], *random_prompts(5, 20, seed=3)]
    prompts = [prompt for prompt in prompts if len(prompt) > 1]
    written = texts.write_texts(Generator(target, "none"), prompts, TOKENS + 3, 0.0, 3)
    assert texts.is_forced(generator, 0.0)
    replayed = texts.count_rounds(generator, written, TOKENS, 0.0, 3)
    real = generator(prompts, max_new_tokens=TOKENS, ignore_eos=True)
    assert replayed[:, 0].tolist() == [result.stats.target_calls for result in real]
    assert len(set(replayed[:, 0].tolist())) > 1


@pytest.mark.slow
def test_sampled_replays_take_the_rounds_of_the_real_loop(target, draft):
    generator = Generator(target, "draft_model", draft, num_speculative_tokens=3, rule="rejection")
    prompts = random_prompts(32, 20, seed=3)
    written = texts.write_texts(Generator(target, "none"), prompts, 67, 1.0, 32)
    replayed = texts.count_rounds(generator, written, 64, 1.0, 32)
    real = generator(prompts, max_new_tokens=64, temperature=1.0, ignore_eos=True)
    assert replayed.mean() == pytest.approx(np.mean([r.stats.target_calls for r in real]), rel=0.05)


@pytest.mark.slow
def test_a_method_with_a_table_is_run(target):
    generator = Generator(target, "ngram")
    assert not texts.is_forced(generator, 0.0)
    written = texts.write_texts(Generator(target, "none"), [[5, 6, 5, 6, 5]], 12, 0.0, 1)
    assert texts.count_rounds(generator, written, 12, 0.0, 1).shape == (1, 1)


def test_longest_of_a_batch_by_brute_force():
    values = np.array([3.0, 1.0, 4.0, 1.5])
    for batch in (1, 2, 3):
        every = np.mean([max(rows) for rows in itertools.product(values, repeat=batch)])
        assert expected_longest(values, batch) == pytest.approx(every)


def test_forecast_by_hand():
    """Ten tokens in 4 or 6 rounds. A batch of two has the slower of both rows in three of four cases."""
    times = RoundTimes(np.full(3, 2.0), np.full(3, 3.0), np.full(3, 4.0))
    cast = forecast(np.array([[4], [6]]), 10, times, batch=2, depth=2)
    assert cast["tokens_per_round"] == 2 and cast["break_even_tokens"] == 2
    assert cast["speedup"] == pytest.approx(10 / 5.5 * 2 / 4)
    assert cast["speedup_if_verification_were_free"] == pytest.approx(10 / 5.5 * 2 / 3)
    assert cast["speedup_if_drafting_were_free"] == pytest.approx(10 / 5.5 * 2 / 3)
    alpha = cast["break_even_acceptance"]
    assert (1 + alpha + alpha**2) * 2 / 4 == pytest.approx(1)
    low, high = cast["speedup_interval"]
    assert low == pytest.approx(10 / 6 * 2 / 4) and high == pytest.approx(10 / 4 * 2 / 4)


def test_a_machine_that_slows_down_during_the_runs_changes_no_forecast():
    """In the fourth of seven turns, between the plain run and the others, all runs begin to take twice as long."""
    pace = lambda turn: np.where(np.arange(7) < turn, 1.0, 2.0)
    times = RoundTimes(pace(4), 1.5 * pace(3), 2 * pace(3))
    cast = forecast(np.array([[5], [5]]), 10, times, batch=1, depth=2)
    assert cast["speedup"] == pytest.approx(1)
    assert cast["speedup_if_verification_were_free"] == pytest.approx(2 / 1.5)
    assert cast["speedup_if_drafting_were_free"] == pytest.approx(2 / 1.5)
    assert cast["break_even_tokens"] == pytest.approx(2)


def test_rounds_without_a_draft_score_the_same_nodes(target, draft):
    for options, nodes in (
        (dict(method="draft_model", num_speculative_tokens=3), 4),
        (dict(method="tree", tree=TREE), 6),
    ):
        generator = Generator(target, draft=draft, **options)
        assert count_nodes(generator, [5, 6]) == nodes
        assert len(without_draft(generator, nodes).drafter.tree.parent) == nodes


def of_batches(method: str, *groups: int) -> set:
    """The calls that time whole texts of plain decoding and of a method: five texts are 5 groups of 1, or 2 of 2."""
    return {(name, count) for name in ("none", method) for count in groups}


@pytest.mark.parametrize(
    ("method", "batches", "rows", "whole"),
    [
        pytest.param("auto", (1, 2), [1, 2], of_batches("auto", 5, 2), marks=pytest.mark.slow),
        pytest.param("layer_skip", (1, 2), [2], of_batches("layer_skip", 5, 2), marks=pytest.mark.slow),
        ("layer_skip", (2,), [2], of_batches("layer_skip", 2)),
        pytest.param("ngram", (2,), [2], set(), marks=pytest.mark.slow),
    ],
)
def test_rounds_that_vary_are_timed_over_whole_texts(method, batches, rows, whole, target, draft, monkeypatch):
    """The choices of ``auto`` depend on the batch, which needs a count each, and on the place in a text."""
    counted, timed, given = [], [], []
    count, run, time_rounds = texts.count_rounds, rounds._run, rounds.time_rounds
    monkeypatch.setattr(texts, "count_rounds", lambda *args: counted.append(args[-1]) or count(*args))
    monkeypatch.setattr(
        rounds, "_run", lambda *args: timed.append((args[0].method, len(args[1]), *args[2:])) or run(*args)
    )
    monkeypatch.setattr(examination, "time_rounds", lambda *args: given.append(args) or time_rounds(*args))
    monkeypatch.setattr(rounds, "_TEXT_SECONDS", 1e9)
    sizes = dict(batches=batches, temperatures=(0.0,), max_new_tokens=8)
    examine(target, random_prompts(5, 9), method, draft if method == "auto" else None, **sizes)
    assert counted == rows
    over_texts = lambda: {(name, groups) for name, groups, *rounds in timed if not rounds}
    assert over_texts() - {("none", 1)} == whole - {("none", 1)}
    assert (method, 1, 1) in timed or whole  # else in short runs
    timed.clear()
    monkeypatch.setattr(rounds, "_TEXT_SECONDS", 0)  # the texts would take too long
    time_rounds(*given[0])
    assert over_texts() == ({("none", 1), (method, 1)} if whole else set())
