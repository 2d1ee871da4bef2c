"""The proof of a boost: its texts against plain decoding, and its speed by task and temperature."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...checkpoints.load import LanguageModel
from ..evaluate.benchmark.more_measurements import read_or_measure
from ..evaluate.benchmark.report import make_report
from ..evaluate.benchmark.run import run_suite
from ..evaluate.suites import Question, Suite
from ..evaluate.suites.suite import Row

TEMPERATURES = (0.0, 0.7, 1.0)
"""The temperatures of use."""

BATCHES = (1, 8)
"""The rows of batches whose speed is measured."""

_SAMPLES = 256
"""The draws after each prompt by which the law is tested."""

HELD_OUT = Suite(
    name="held-out",
    source="questions that the target wrote, and that no drafter has read",
    licence="the target's",
    form="the question",
    columns=("messages",),
    files=(),
    ask=lambda row, number: Question(number, "held-out", "held-out", (_question(row),)),
)
"""The held-out questions of a boost."""


def _question(row: Row) -> str:
    """The prompt of a row of ``texts.TextFiles``."""
    return row["messages"][0]["content"] if "messages" in row else row["prompt"]


def read_held_out(file: Path) -> list[Question]:
    """The questions of a file of held-out texts, see ``texts.TextFiles``."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [HELD_OUT.ask(row, row["number"]) for row in rows]


def prove(
    target: LanguageModel,
    choice: dict[str, Any],
    draft,
    suites: Sequence[tuple[Suite, Sequence[Question]]],
    directory: Path,
    tokens: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """The reports of ``evaluate.benchmark`` by suite and temperature, an object for JSON.

    A report has the speed-up of the choice by task with its interval. It lists greedy texts that
    differ from plain decoding. For the first suite it also has the p-value that sampled texts have
    the target's law, and the speed at the sizes of ``BATCHES``. An interrupted proof goes on in
    ``directory``.

    Args:
      choice: a choice of ``tuning.choose``.
      draft: its drafter, or None.
      suites: suites with their questions.
      tokens: the most new tokens of an answer.
    """
    reports: dict[str, Any] = {}
    for suite, questions in suites:
        for temperature in TEMPERATURES:
            where = directory / suite.name / f"{temperature:g}"
            options = dict(draft=draft, max_new_tokens=tokens, temperature=temperature) | choice["options"]
            run = run_suite(target, suite, questions, [choice["method"]], where, progress=progress, **options)
            is_first = suite is suites[0][0]
            measurements = read_or_measure(
                run,
                where,
                batches=BATCHES if is_first else (),
                samples=_SAMPLES if is_first and temperature else 0,
            )
            reports.setdefault(suite.name, {})[f"{temperature:g}"] = make_report(run, suite, questions, measurements)
    return reports
