"""Measurements beside the questions."""

import dataclasses

import pytest

from specjax.core.stats import Stats
from specjax.text.result import Result
from specjax.tools.evaluate.benchmark import more_measurements
from specjax.tools.evaluate.benchmark.more_measurements import measure_batches, measure_further


def test_batches_give_throughput_and_latency_of_the_median_run():
    """Method a takes 1, 2 and 9 seconds after its first run; a row gets 3 tokens."""
    calls, seconds = [], {"a": iter([99.0, 9.0, 1.0, 2.0]), "b": iter([99.0, 4.0, 4.0, 4.0])}

    def generator(name):
        def run(batch, **options):
            calls.append((name, [len(prompt) for prompt in batch], options))
            stats = Stats(3, 0, 0, (), 3, 0.0, next(seconds[name]), 0.0)
            return [Result("", [1] * 3, prompt, "length", stats, [False] * 3) for prompt in batch]

        return run

    found = measure_batches({name: generator(name) for name in "ab"}, [[5], [5, 5]], [3], dict(seed=1))
    assert found == {
        "a": [dict(batch=3, tokens_per_second=9 / 2, token_seconds=2 / 3)],
        "b": [dict(batch=3, tokens_per_second=9 / 4, token_seconds=4 / 3)],
    }
    assert [name for name, _, _ in calls] == ["a", "b"] * 4
    assert calls[0][1:] == ([1, 2, 1], dict(seed=1, ignore_eos=True))


def test_a_resumed_run_has_the_figures_of_the_first(finished, monkeypatch, tmp_path):
    measured = iter([{"none": {"batches": [1]}}, {"none": {"batches": [2]}}])
    monkeypatch.setattr(more_measurements, "measure_further", lambda run, **asked: next(measured))
    asked = dict(shares=False, batches=(1, 2), samples=0)
    first = more_measurements.read_or_measure(finished[0], tmp_path, **asked)
    assert more_measurements.read_or_measure(finished[0], tmp_path, **asked) == first == {"none": {"batches": [1]}}
    other = more_measurements.read_or_measure(finished[0], tmp_path, **asked | dict(batches=(4,)))
    assert other == {"none": {"batches": [2]}}


@pytest.mark.slow
def test_all_further_figures_of_a_run(finished):
    run = dataclasses.replace(finished[0], settings=finished[0].settings | {"temperature": 1.0})
    found = measure_further(run, shares=True, batches=(1, 2), samples=64)
    for method, figures in found.items():
        low, middle, high = figures["drafting_share"]
        assert 0 <= low <= middle <= high
        assert low < 1  # A run of milliseconds that is disturbed can take longer than the whole round.
        assert [point["batch"] for point in figures["batches"]] == [1, 2]
        assert method == "none" or figures["law_p_value"] >= 1e-3
