"""Figures: by hand from made answers, and anew from the answer files by the description of Spec-Bench."""

import json

import numpy as np
import pytest

from specjax.tools.evaluate.benchmark.answers import Answer, Turn
from specjax.tools.evaluate.benchmark.figures import ALL, figures, figures_by_task
from specjax.tools.evaluate.suites import Question

from .conftest import METHODS, QUESTIONS


def turn(lengths, accepted_at, seconds, drafted=0, text="a", **changes) -> Turn:
    """The turn of rounds with so many new tokens."""
    tokens, prefill, first = sum(lengths), 0.5, 0.75
    given = dict(information=10.0, accepted_information=0.0, joules=None, difference=None)
    costs = (prefill, first, seconds)
    made = Turn(text, [7] * tokens, tokens + 1, 3, len(lengths), drafted, lengths, accepted_at, *costs, **given)
    return Turn(**{**made.__dict__, **changes})


def answers(*turns) -> list[Answer]:
    return [Answer(i, "qa", [each], []) for i, each in enumerate(turns)]


PLAIN = answers(turn([1] * 6, [], 6.0), turn([1] * 4, [], 4.0, text="b"))
DRAFTED = answers(
    turn([3, 2, 1], [2, 1], 2.0, drafted=6, accepted_information=5.0, joules=3.0),
    turn([2, 2], [2, 0], 2.0, drafted=4, accepted_information=1.0, joules=1.0, text="c c"),
)
ASKED = [Question(i, "qa", "qa", ("?",)) for i in range(2)]


def test_figures_by_hand():
    found = figures(DRAFTED, PLAIN, ASKED)
    assert (found["questions"], found["turns"], found["generated"], found["target_calls"]) == (2, 2, 10, 5)
    assert found["mean_acceptance_length"] == 2
    assert found["accepted_per_call"] == 1
    assert found["draft_acceptance_rate"] == 0.5
    assert found["acceptance_rate_per_position"] == [0.8, 0.2]
    assert found["acceptance_by_information"] == 6 / 20
    assert found["tokens_per_second"] == 10 / 4
    assert found["speedup"] == (10 / 4) / (10 / 10)
    assert found["speedup_interval"] == [2, 3]
    assert found["first_token"] == [0.75, 0.75]
    assert found["token"] == pytest.approx([np.mean([2 / 6, 2 / 4]), 2 / 4 - 0.05 * (2 / 4 - 2 / 6)])
    assert found["round"] == pytest.approx([np.mean([2 / 3, 1]), 1 - 0.05 / 3])
    assert found["joules_per_token"] == 0.4
    assert found["rouge"] == [0.5, 0.5 + 0.0, 0.5]
    assert found["differences"] == [] and found["score"] is None


def test_speed_counts_tokens_a_second_where_a_tie_ended_a_text():
    """Half the tokens in half the time are no speed-up."""
    short = answers(turn([1] * 3, [], 3.0), turn([1] * 2, [], 2.0))
    assert figures(short, PLAIN, ASKED)["speedup"] == 1


def spec_bench(lines: list[dict], baseline: list[dict], count) -> tuple[float, float, float, bool]:
    """Speed, speed-up, mean accepted tokens and equality, as the reports of Spec-Bench define them.

    The speed of a method is the mean over questions of new tokens over seconds; that of the baseline counts the tokens of
    its text, less one. Texts are compared line by line.
    """
    choices, plain = ([line["choices"][0] for line in each] for each in (lines, baseline))
    speed = np.mean([sum(c["new_tokens"]) / sum(c["wall_time"]) for c in choices])
    base = np.mean([sum(count(text) - 1 for text in c["turns"]) / sum(c["wall_time"]) for c in plain])
    accepted = np.mean([length for c in choices for length in c["accept_lengths"]])
    return speed, speed / base, accepted, all(a["turns"] == b["turns"] for a, b in zip(choices, plain))


def test_the_answer_files_give_the_figures_of_spec_bench(finished, model):
    run, directory = finished
    lines = {m: [json.loads(line) for line in (directory / f"{m}.jsonl").read_text().splitlines()] for m in METHODS}
    keys = {"question_id", "category", "answer_id", "model_id", "choices", "tstamp"}
    choice = {"index", "turns", "decoding_steps", "new_tokens", "wall_time", "accept_lengths"}
    assert all(keys < line.keys() and line["choices"][0].keys() == choice for line in lines["draft_model"])
    count = lambda text: len(model.tokenizer(text).input_ids)
    tasks = figures_by_task(run.answers, QUESTIONS, {})
    assert list(tasks) == ["mt_bench", "qa", "rag", ALL]
    categories = {"mt_bench": ("writing", "coding"), "qa": ("qa",), "rag": ("rag",)}
    for task, found in tasks.items():
        named = [
            [line for line in lines[m] if line["category"] in categories.get(task, (line["category"],))]
            for m in METHODS
        ]
        speed, speedup, accepted, equal = spec_bench(named[1], named[0], count)
        ours = found["draft_model"]
        assert ours["spec_bench_tokens_per_second"] == pytest.approx(speed)
        assert ours["spec_bench_speedup"] == pytest.approx(speedup)
        assert ours["mean_acceptance_length"] == pytest.approx(accepted)
        assert ours["spec_bench_equal"] == equal is True


def test_a_single_task_has_no_second_table():
    one = {"none": {a.question_id: a for a in PLAIN}}
    assert list(figures_by_task(one, ASKED, {})) == ["qa"]
