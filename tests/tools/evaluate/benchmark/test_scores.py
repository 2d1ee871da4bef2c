"""Scores against values computed by hand."""

import pytest

from specjax.tools.evaluate.benchmark.answers import Answer
from specjax.tools.evaluate.benchmark.scores import SCORES, last_boxed, last_number, rouge
from specjax.tools.evaluate.suites import Question

from .test_figures import turn


def score(name, text, *references, **changes) -> dict:
    """The score of one answer."""
    question = Question(1, "t", "t", ("?",), references, **changes.pop("question", {}))
    return SCORES[name]([Answer(1, "t", [turn([1], [], 1.0, text=text)], **{"options": [], **changes})], [question])


ROUGE = [
    # "the cat" and "cat": no; shared words the, cat, mat: 2 * 3 / (4 + 5); bigrams the-cat: 2 * 1 / (3 + 4); LCS the cat mat
    ("the cat sat mat", "The cat, on a mat.", (6 / 9, 2 / 7, 6 / 9)),
    # a repeated word counts as often as both have it; the order breaks the subsequence: LCS "b" or "a a"
    ("a a b", "b a a", (1.0, 2 / 4, 4 / 6)),
    ("a", "a a", (2 / 3, 0.0, 2 / 3)),  # one word matches once
    ("x y", "p q", (0.0, 0.0, 0.0)),
    ("same words here", "same words here", (1.0, 1.0, 1.0)),
    ("", "", (1.0, 1.0, 1.0)),
    ("", "word two", (0.0, 0.0, 0.0)),
]


@pytest.mark.parametrize("text, reference, expected", ROUGE)
def test_rouge_by_hand(text, reference, expected):
    assert rouge(text, reference) == pytest.approx(expected)
    assert rouge(reference, text) == pytest.approx(expected)  # F is symmetric


def test_the_mean_of_rouge_is_against_the_reference():
    assert score("rouge", "x y", "x z") == pytest.approx({"rouge-1": 0.5, "rouge-2": 0.0, "rouge-l": 0.5})


@pytest.mark.parametrize(
    "text, number",
    [("It is 1,234.50.", 1234.5), ("from 3 to -7", -7), ("#### 72", 72), ("none", None), ("5.", 5), ("$18", 18)],
)
def test_the_last_number(text, number):
    assert last_number(text) == number


def test_gsm8k_counts_the_last_number():
    assert score("number", "She has 3 apples, so 1,000.", "Sum.\n#### 1000") == {"accuracy": 1}
    assert score("number", "3 is all", "#### 4") == {"accuracy": 0}
    assert score("number", "no number", "no number") == {"accuracy": 0}


@pytest.mark.parametrize(
    "text, term",
    [
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{1", None),
        ("2", None),
    ],
)
def test_the_last_box(text, term):
    assert last_boxed(text) == term


def test_math_counts_the_boxed_term():
    assert score("boxed", r"\boxed{ \frac{1}{2} }", r"\frac{1}{2}") == {"accuracy": 1}
    assert score("boxed", r"\frac{1}{2}", r"\frac{1}{2}") == {"accuracy": 0}


def test_squad_takes_the_best_reference_and_leaves_out_articles_and_stops():
    assert score("overlap", "The Blue.\nMore text", "green", "a blue") == {"exact": 1, "f1": 1}
    assert score("overlap", "deep blue sea", "blue", "sky") == pytest.approx({"exact": 0, "f1": 2 / 4})


@pytest.mark.parametrize("name", ["rouge", "number", "boxed", "overlap"])
def test_questions_without_reference_have_no_score(name):
    assert score(name, "1") == {}


def test_a_choice_is_right_by_sum_or_by_character():
    """Option 0 is likelier in all, option 1 by character."""
    options = dict(options=("ab", "abcdefgh"), right=1)
    assert score("choice", "", options=[-4.0, -8.0], question=options) == {"accuracy": 0, "accuracy_by_character": 1}
