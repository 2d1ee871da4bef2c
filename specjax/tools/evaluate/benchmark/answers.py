"""The answer files of an evaluation: one JSON line a question, one file a method.

A line has the keys of Spec-Bench's answer files, so its scripts read it. The key "specjax" has the
figures that Spec-Bench does not record. All figures of a report come from these files.
"""

import dataclasses
import json
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from ....core.checks import shorten
from ....core.read_files import parse_json, read_json, read_text
from ....errors import RequestError

_SETTINGS = "settings.json"


@dataclasses.dataclass(frozen=True)
class Turn:
    """The answer to one turn, and its cost. Times are seconds without compilation.

    Attributes:
      text: the answer, without white space around it, as Spec-Bench writes it.
      token_ids: the new tokens.
      retokenised: the tokens that the tokenizer makes of ``text``, by which Spec-Bench measures
        plain decoding.
      prompt_tokens: tokens of the prompt.
      target_calls: rounds, each with one forward of the target.
      drafted: drafted tokens that the target scored.
      accept_lengths: the new tokens of each round.
      accepted_at: for each depth, the number of drafted tokens at this depth that were emitted.
      prefill_seconds, decode_seconds: the reading of the prompt, and all rounds.
      first_token_seconds: the reading of the prompt and the first round.
      information: the sum of -log p over the new tokens, p under the target, in nats.
      accepted_information: the part of ``information`` that accepted drafts have.
      joules: the energy of the turn; None where no counter can be read.
      difference: the first difference from plain decoding, see ``fidelity.difference``; None for
        an equal answer, and above temperature 0.
    """

    text: str
    token_ids: list[int]
    retokenised: int
    prompt_tokens: int
    target_calls: int
    drafted: int
    accept_lengths: list[int]
    accepted_at: list[int]
    prefill_seconds: float
    first_token_seconds: float
    decode_seconds: float
    information: float
    accepted_information: float
    joules: float | None
    difference: dict | None


@dataclasses.dataclass(frozen=True)
class Answer:
    """A method's answer to a question, turn by turn.

    ``options`` has the log-probabilities of the question's options under the target.
    """

    question_id: int | str
    category: str
    turns: list[Turn]
    options: list[float]


def check_directory(directory: Path) -> None:
    """Raises RequestError for a directory that holds files, but no evaluation."""
    if directory.exists() and not (directory / _SETTINGS).exists():
        if not directory.is_dir() or any(directory.iterdir()):
            raise RequestError(f"--output {directory}: exists and holds no evaluation; name a new directory")


def begin(directory: Path, settings: dict, methods: Collection[str]) -> dict[str, dict[int | str, Answer]]:
    """Prepares the directory of an evaluation, or resumes the evaluation that it holds.

    Answers to questions that some method has not answered are dropped, and so is a half-written
    last line.

    Returns the finished answers by method and question id.

    Raises RequestError for a directory with other files or with an evaluation of other settings.
    Nothing is changed then.
    """
    # 1. The settings of the directory.
    settings = json.loads(json.dumps(settings))
    file = directory / _SETTINGS
    check_directory(directory)
    if not file.exists():
        directory.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps(settings, indent=2) + "\n")
    else:
        _check_settings(directory, settings, read_json(file, str(file)))
    # 2. The answers that all methods have.
    lines = {method: _read_lines(answer_file(directory, method)) for method in methods}
    common = set.intersection(*(set(answers) for answers in lines.values()))
    for method, answers in lines.items():
        text = "".join(line for id, (_, line) in answers.items() if id in common)
        if answer_file(directory, method).exists():
            replace_text(answer_file(directory, method), text)
    return {method: {id: answers[id][0] for id in answers if id in common} for method, answers in lines.items()}


def append(directory: Path, method: str, answer: Answer, model: str) -> None:
    """Appends a line to the file of a method. ``model``: the name of the model in the line."""
    turns = answer.turns
    choice = {
        "index": 0,
        "turns": [turn.text for turn in turns],
        "decoding_steps": [turn.target_calls for turn in turns],
        "new_tokens": [len(turn.token_ids) for turn in turns],
        "wall_time": [turn.prefill_seconds + turn.decode_seconds for turn in turns],
        "accept_lengths": [length for turn in turns for length in turn.accept_lengths],
    }
    line = {
        "question_id": answer.question_id,
        "category": answer.category,
        "answer_id": f"{answer.question_id}-{method}",
        "model_id": f"{model}-{method}",
        "choices": [choice],
        "tstamp": time.time(),
        "specjax": {"turns": [dataclasses.asdict(turn) for turn in turns], "options": answer.options},
    }
    with answer_file(directory, method).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def answer_file(directory: Path, method: str) -> Path:
    """The answer file of a method."""
    return directory / f"{method}.jsonl"


def replace_text(file: Path, text: str) -> None:
    """Writes a file anew. A reader, and the next run, never see half of it."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, file)


def _read_lines(file: Path) -> dict[int | str, tuple[Answer, str]]:
    """The whole lines of an answer file, by question id."""
    if not file.exists():
        return {}
    *lines, _ = read_text(file, str(file)).split("\n")  # The text after the last line end is half a line.
    answers = {}
    for number, line in enumerate(lines, 1):
        place = f"{file}, line {number}"
        record = parse_json(place, line)
        try:
            id = record["question_id"]
            turns = [Turn(**turn) for turn in record["specjax"]["turns"]]
            answers[id] = (Answer(id, record["category"], turns, record["specjax"]["options"]), line + "\n")
        except (KeyError, TypeError):
            raise RequestError(f"{place}: no answer of specjax evaluate; name another --output") from None
    return answers


def _check_settings(directory: Path, new: dict, old: Mapping) -> None:
    """Raises RequestError for the first setting that differs from those of the directory."""
    for key in {**new, **old}:
        if new.get(key) != old.get(key):
            raise RequestError(
                f"--output {directory}: has an evaluation with {key} {shorten(old.get(key))}, not "
                f"{shorten(new.get(key))}; name another directory, or give the settings of the first run"
            )
