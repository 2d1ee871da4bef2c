"""Suites of multiple choice: MMLU and HellaSwag."""

from ....core.checks import shorten
from ....errors import RequestError
from .suite import Question, Row, Suite, number_of, text_of, texts_of

_LETTERS = "ABCD"


def ask_mmlu(row: Row, number: int) -> Question:
    """The question of a row with its four options, in the form of the benchmark's authors.

    A row of the published CSV has the options in columns A to D and a letter as its answer. A row
    of Parquet has a list of choices and a number.
    """
    subject = row.get("subject") or row["file"].removesuffix("_test")
    if "choices" in row:
        choices = texts_of(row, "choices")
        right = number_of(row, "answer", len(_LETTERS))
    else:
        choices = tuple(text_of(row, letter) for letter in _LETTERS)
        right = _letter(row["answer"])
    if len(choices) != len(_LETTERS):
        raise RequestError(f"choices must have {len(_LETTERS)} texts, not {len(choices)}")
    lines = [
        f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n",
        text_of(row, "question"),
        *(f"{letter}. {choice}" for letter, choice in zip(_LETTERS, choices)),
        "Answer:",
    ]
    options = tuple(f" {letter}" for letter in _LETTERS)
    return Question(f"{subject}/{number}", subject, "mmlu", ("\n".join(lines),), options=options, right=right)


def ask_hellaswag(row: Row, number: int) -> Question:
    """The beginning of a text, and four ways to end it."""
    endings = texts_of(row, "endings")
    turn = f"{text_of(row, 'activity_label')}: {text_of(row, 'ctx')}"
    options = tuple(f" {ending}" for ending in endings)
    right = number_of(row, "label", len(endings))
    return Question(row.get("ind", number), "hellaswag", "hellaswag", (turn,), options=options, right=right)


def _letter(value) -> int:
    if not isinstance(value, str) or len(value) != 1 or value not in _LETTERS:
        raise RequestError(f"answer must be one of the letters {', '.join(_LETTERS)}, not {shorten(value)}")
    return _LETTERS.index(value)


SUITES = (
    Suite(
        "mmlu",
        source="https://github.com/hendrycks/test, test/*_test.csv",
        licence="MIT",
        form="the line with the subject, the question, the options A to D, and 'Answer:', without worked examples",
        columns=("question", "answer"),
        ask=ask_mmlu,
        files=("*_test.csv", "test-*.parquet"),
        chat=False,
        header=("question", *_LETTERS, "answer"),
        hub=("cais/mmlu", "all", "test"),
        scores={"mmlu": "choice"},
    ),
    Suite(
        "hellaswag",
        source="https://github.com/rowanz/hellaswag, data/hellaswag_val.jsonl",
        licence="MIT",
        form="the activity, a colon, and the beginning of the text, which the model continues",
        columns=("activity_label", "ctx", "endings", "label"),
        ask=ask_hellaswag,
        files=("hellaswag_val.jsonl", "validation-*.parquet"),
        chat=False,
        hub=("Rowan/hellaswag", None, "validation"),
        scores={"hellaswag": "choice"},
    ),
)
