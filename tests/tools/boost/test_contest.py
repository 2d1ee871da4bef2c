"""The forecast and the contest of a boost, against brute force and by hand."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from specjax import RequestError
from specjax.tools.boost import budget, contest
from specjax.tools.boost.budget import check_tokens, plan_steps
from specjax.tools.boost.candidates import CANDIDATES
from specjax.tools.boost.contest import Measured, gain_of_doubling, hold_contest
from specjax.tools.boost.journal import open_journal
from specjax.tools.boost.survey import RoundCost


def test_the_best_length_by_simulation():
    rounds = RoundCost((1, 2, 4, 8), (1.0, 1.1, 1.3, 1.7))
    reached = [0.8, 0.5, 0.3, 0.1]
    speedup, length = rounds.speedup(reached, 0.1)
    rng = np.random.default_rng(0)
    alive = rng.random((200_000, 1)) < reached  # nested: a place is reached only if those before are
    times = {1: 1.1, 2: 1.2, 3: 1.3, 4: 1.4}  # of rounds of two to five nodes, between the measured ones
    simulated = {k: (1 + alive[:, :k].sum(1)).mean() / (times[k] + 0.1 * k) for k in times}
    assert length == max(simulated, key=simulated.__getitem__)
    assert speedup == pytest.approx(simulated[length], rel=0.01)


def test_nothing_pays_where_nodes_cost_as_much_as_rounds():
    assert RoundCost((1, 2, 8), (1.0, 2.0, 8.0)).speedup([1.0] * 5, 0.0) == (1.0, 0)


def test_costs_of_kinds_by_counting_weights(target):
    config = target.config  # 2 layers, 61 tokens, width 32, tied or not
    matrix = config.vocab_size * config.hidden_size
    tables = 1 if config.tie_embeddings else 2
    layer = (config.num_weights - tables * matrix) / 2
    read = 2 * layer + matrix
    assert CANDIDATES["eagle3"].cost(config) == pytest.approx((layer + matrix) / read)
    assert CANDIDATES["medusa"].cost(config) == pytest.approx(matrix / read)
    assert CANDIDATES["ngram"].cost(config) == 0


@pytest.fixture
def played(monkeypatch):
    """Candidates whose speed-up is known for each number of steps. Returns the list of trainings."""
    speedups = {"a": lambda n: 1.1, "b": lambda n: 1.0 + n / 900, "c": lambda n: 1.05}
    trained = []

    def train(trial, name, steps):
        trained.append((name, steps))
        return name, steps

    monkeypatch.setattr(contest, "train_candidate", train)
    monkeypatch.setattr(contest, "CANDIDATES", {name: name for name in speedups})
    monkeypatch.setattr(contest, "measure", lambda trial, name, draft, n: Measured(n, [0.5], speedups[name](n), 1))
    return trained


def test_the_worse_half_is_stopped_after_each_part(played):
    lines = []
    curves = hold_contest(None, ["a", "b", "c"], lambda name: 900, lines.append)
    assert played == [("a", 100), ("b", 100), ("c", 100), ("b", 300), ("a", 300), ("b", 900)]
    assert {name: [point.tokens for point in curve] for name, curve in curves.items()} == {
        "a": [100, 300],
        "b": [100, 300, 900],
        "c": [100],
    }
    assert sum("stopped" in line for line in lines) == 2


def test_texts_that_are_too_few_are_refused_with_the_number_that_would_do(target):
    least = 60 * 8 * min(256, target.config.context - 1) // 3  # steps, windows, tokens, passes
    check_tokens(["eagle3"], target.config, least, "")
    check_tokens(["ngram"], target.config, 1, "")
    with pytest.raises(RequestError, match=f"train eagle3, which needs {least:,}; more"):
        check_tokens(["ngram", "eagle3"], target.config, least - 1, "more")


def test_time_that_is_too_short_is_refused_with_the_time_that_would_do(monkeypatch):
    recipe = SimpleNamespace(batch=8, length=256)
    monkeypatch.setattr(budget, "recipe_of", lambda trial, name, steps: recipe)
    monkeypatch.setattr(budget, "time_step", lambda trial, name: 12.0)
    texts = 3 * 10**5
    seconds = lambda hours: hours * 3600 * budget.TRAINING
    with pytest.raises(RequestError, match=r"give --hours 0\.5 or more"):
        plan_steps(None, ["eagle3"], texts, seconds(0.2))  # 60 steps of 12 s are 0.2 hours, and 0.4 of the whole
    assert plan_steps(None, ["eagle3"], texts, seconds(0.5)) == {"eagle3": 60}
    assert plan_steps(None, ["eagle3"], texts, None) == {"eagle3": 3 * texts // (8 * 256)}


def test_the_gain_of_doubling_is_the_slope_of_the_curve():
    curve = [Measured(n, [0.1 + 0.2 * k], 1.0, 1) for k, n in enumerate((100, 200, 400))]
    assert gain_of_doubling(curve) == pytest.approx(0.2)
    assert gain_of_doubling(curve[:1]) is None


def test_a_journal_does_each_step_once(tmp_path):
    calls = []
    for _ in range(2):
        with open_journal(tmp_path / "boost", {"seed": 1}) as journal:
            assert journal.do("one", lambda: calls.append(1) or {"value": (1, 2)}) == {"value": [1, 2]}
    assert calls == [1]


def test_a_step_that_failed_is_done_again_and_its_time_counts(tmp_path):
    with open_journal(tmp_path / "boost", {}) as journal, pytest.raises(KeyboardInterrupt):
        journal.do("one", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with open_journal(tmp_path / "boost", {}) as journal:
        before = journal.seconds["one"]
        assert journal.do("one", lambda: 3) == 3
        assert journal.seconds["one"] > before > 0


def test_a_directory_of_another_boost_is_refused_and_untouched(tmp_path):
    with open_journal(tmp_path / "boost", {"model": "a", "seed": 1}) as journal:
        journal.do("one", lambda: 1)
    before = (tmp_path / "boost" / "journal.json").read_text()
    with pytest.raises(RequestError, match="holds a boost with model 'a', not 'b'"):
        with open_journal(tmp_path / "boost", {"model": "b", "seed": 1}):
            pass
    assert (tmp_path / "boost" / "journal.json").read_text() == before


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RequestError, match="exists and holds no boost"):
        with open_journal(tmp_path, {}):
            pass
    (tmp_path / "journal.json").write_text(json.dumps({"year": 1999}))
    with pytest.raises(RequestError, match="no journal of a boost"):
        with open_journal(tmp_path, {}):
            pass
