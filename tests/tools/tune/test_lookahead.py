"""The search for the sizes of lookahead against a time that is known for all sizes."""

import tomllib
from types import SimpleNamespace

import pytest
from support.models import language_model, tiny_model

from specjax.drafters import Lookahead
from specjax.tools.tune import lookahead as tune

TARGET = language_model(tiny_model(0, num_layers=1), "target")
PLAIN, TOKENS, CALLS = 10.0, 60, 20


@pytest.fixture
def measured(monkeypatch):
    """The sizes of each step. A run takes the time of ``seconds``, least at the sizes that the test wants."""
    steps, wanted = [], {}

    def seconds(size) -> float:
        return PLAIN if size is None else 4 + sum(abs(a - b) for a, b in zip(size, wanted["best"]))

    def alternate(generators, ids, max_new_tokens, repeats, progress, **options):
        steps.append([size for size in generators if size])
        run = lambda size: SimpleNamespace(
            stats=SimpleNamespace(generated=TOKENS, target_calls=CALLS, decode_seconds=seconds(size), prefill_seconds=0)
        )
        return {size: [[run(size)] for _ in ids] for size in generators}

    monkeypatch.setattr(tune, "alternate_runs", alternate)
    monkeypatch.setattr(tune, "Generator", lambda target, *method, **sizes: Lookahead(**sizes) if sizes else None)
    return steps, wanted


@pytest.mark.parametrize("best", [(10, 4, 20), (5, 3, 5), (2, 2, 1), (40, 3, 10)])
def test_the_search_climbs_to_the_fastest_sizes(measured, best):
    steps, wanted = measured
    wanted["best"], calls = best, []
    report = tune.tune_lookahead(TARGET, ["a", "b"], budget=60, progress=lambda done, of: calls.append((done, of)))
    found = report["best"]
    assert (found["window"], found["ngram_size"], found["guesses"]) == best
    assert found["speedup"] == pytest.approx(PLAIN / 4) and found["tokens"] == TOKENS / CALLS
    assert found["nodes"] == (best[0] + best[2]) * (best[1] - 1)
    tried = [size for step in steps for size in step]
    assert steps[0] == [tune.START] and len(tried) == len({*tried}) == len(report["tried"]) and calls[-1] == (60, 60)
    options = tomllib.loads(tune.toml(report))
    assert options.pop("method") == "lookahead" and Lookahead(**options) == Lookahead(*best)


def test_the_budget_ends_the_search_and_slow_sizes_are_named(measured):
    steps, wanted = measured
    wanted["best"] = (40, 5, 40)
    report = tune.tune_lookahead(TARGET, ["a"], budget=4)
    assert sum(map(len, steps)) == 4 and report["flags"] is None and "no size of lookahead beats" in report["note"]
