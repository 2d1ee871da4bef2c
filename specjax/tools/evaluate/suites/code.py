"""Suites of programs to complete: HumanEval and ClassEval."""

from .suite import Question, Row, Suite, text_of


def ask_human_eval(row: Row, number: int) -> Question:
    """The head of a function and its docstring, as the beginning of a file."""
    references = (row["canonical_solution"],) if isinstance(row.get("canonical_solution"), str) else ()
    return Question(text_of(row, "task_id"), "humaneval", "humaneval", (text_of(row, "prompt"),), references)


def ask_class_eval(row: Row, number: int) -> Question:
    """The skeleton of a class, with the request to write the whole class."""
    turn = f"Complete the class {text_of(row, 'class_name')} in this code.\n\n{text_of(row, 'skeleton')}"
    references = (row["solution_code"],) if isinstance(row.get("solution_code"), str) else ()
    return Question(text_of(row, "task_id"), "class-eval", "class-eval", (turn,), references)


SUITES = (
    Suite(
        "humaneval",
        source="https://github.com/openai/human-eval, data/HumanEval.jsonl.gz",
        licence="MIT",
        form="the prompt as it is, which the model continues as a file",
        columns=("task_id", "prompt"),
        ask=ask_human_eval,
        files=("HumanEval.jsonl", "HumanEval.jsonl.gz", "*.parquet"),
        chat=False,
        hub=("openai/openai_humaneval", None, "test"),
    ),
    Suite(
        "class-eval",
        source="https://github.com/FudanSELab/ClassEval, data/ClassEval_data.json",
        licence="MIT",
        form="the request to complete the class, an empty line, and the skeleton (all methods at once)",
        columns=("task_id", "class_name", "skeleton"),
        ask=ask_class_eval,
        files=("ClassEval_data.json", "*.parquet"),
        hub=("FudanSELab/ClassEval", None, "test"),
    ),
)
