"""Suites of problems whose answer is a number or a term: GSM8K and MATH-500."""

from .suite import Question, Row, Suite, text_of


def ask_gsm8k(row: Row, number: int) -> Question:
    """The question of a row, and its worked answer, which ends with the number."""
    turn = f"Question: {text_of(row, 'question')}\nAnswer:"
    return Question(number, "gsm8k", "gsm8k", (turn,), (text_of(row, "answer"),))


def ask_math(row: Row, number: int) -> Question:
    """The problem of a row, with the usual request to box the answer."""
    turn = f"{text_of(row, 'problem')}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
    subject = row.get("subject")
    category = subject if isinstance(subject, str) and subject else "math-500"
    return Question(row.get("unique_id") or number, category, "math-500", (turn,), (text_of(row, "answer"),))


SUITES = (
    Suite(
        "gsm8k",
        source="https://github.com/openai/grade-school-math, grade_school_math/data/test.jsonl",
        licence="MIT",
        form="'Question: ', the question, and a line that begins 'Answer:', without worked examples",
        columns=("question", "answer"),
        ask=ask_gsm8k,
        files=("test.jsonl", "test-*.parquet"),
        hub=("openai/gsm8k", "main", "test"),
        scores={"gsm8k": "number"},
    ),
    Suite(
        "math-500",
        source="https://huggingface.co/datasets/HuggingFaceH4/MATH-500, test.jsonl",
        licence="MIT",
        form="the problem, and the request to reason step by step and to box the answer",
        columns=("problem", "answer"),
        ask=ask_math,
        files=("test.jsonl", "math500.jsonl"),
        hub=("HuggingFaceH4/MATH-500", None, "test"),
        scores={"math-500": "boxed"},
    ),
)
