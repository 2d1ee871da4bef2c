"""Texts to learn from: prompts, and what the target writes after them."""

import contextlib
import dataclasses
import itertools
import json
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...engine.engine import Engine
from ...errors import RequestError
from ...requests.chat import render_chat
from ...text.result import Result
from ...training.saving import report_failure
from .ordered import write_in_order
from .questions import share_of_new, word_sequences, write_questions

TEMPERATURES = (0.0, 0.7, 0.0, 1.0)
"""The temperatures of answers, in turn."""

_BLOCK = 64
"""The prompts whose answers are written to the files together."""

_USUAL = 64
"""The tokens that a prompt is expected to bring. Many bring none."""

_LEAST_NEW = 0.3
"""The least share of an answer's four-word sequences that occur once. A loop has less."""

_OVERLAP = 8
"""A question is left out if it shares so many words in a row with a prompt of the suite."""

_PATIENCE = 4
"""The blocks without an answer after which the target is refused."""


@dataclasses.dataclass(frozen=True)
class Asking:
    """The prompts of a gathering, and the form of its answers.

    Attributes:
      prompts: questions; token ids of beginnings where ``chat`` is false; None for questions that
        the target writes, see ``questions``.
      chat: whether prompts are turns of a user. Otherwise the target continues them.
      longest: the most tokens of an answer. A longer answer is cut there.
      held_out: the answers, from the first on, that are held out.
      suite: prompts of a suite. Questions that share words with them are left out.
      seed: draws questions and answers.
    """

    prompts: Sequence | None = None
    chat: bool = True
    longest: int = 384
    held_out: int = 64
    suite: Sequence[str] = ()
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Gathered:
    """The texts so far.

    Attributes:
      tokens: answered tokens to train on.
      answers: answers, those held out too.
      in_suite: questions that were left out because the suite has them.
      prompts: prompts that were read or written.
    """

    tokens: int = 0
    answers: int = 0
    in_suite: int = 0
    prompts: int = 0


class TextFiles:
    """The files ``training.jsonl`` and ``held_out.jsonl`` of a directory.

    A line has the "number" of its prompt, the "temperature" and the "tokens" of its answer, and
    both texts: as "messages", or as "prompt" and the whole "text". A block of answers is appended
    as a whole. ``state.json`` has the bytes of each file that count, so an interrupted gathering
    goes on with the same result.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.training = directory / "training.jsonl"
        self.held_out = directory / "held_out.jsonl"
        self._state = directory / "state.json"
        directory.mkdir(parents=True, exist_ok=True)
        state = json.loads(self._state.read_text()) if self._state.exists() else {}
        self.gathered = Gathered(**state.get("gathered", {}))
        for file in (self.training, self.held_out):
            file.touch()
            os.truncate(file, state.get(file.name, 0))

    def append(self, held_out: Iterable[dict], learnt: Iterable[dict], gathered: Gathered) -> None:
        """Appends a block. Raises StorageError for a full disk."""
        with report_failure(self.directory, "the block of texts", "the texts before it are whole; "):
            for path, rows in ((self.held_out, held_out), (self.training, learnt)):
                with path.open("a") as file:
                    file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            sizes = {file.name: file.stat().st_size for file in (self.training, self.held_out)}
            half = self._state.with_suffix(".half")
            half.write_text(json.dumps(sizes | {"gathered": dataclasses.asdict(gathered)}))
            os.replace(half, self._state)
        self.gathered = gathered


def gather(
    engine: Engine,
    directory: Path,
    asking: Asking,
    tokens: int,
    progress: Callable[[Gathered], None] = lambda gathered: None,
    goes_on: Callable[[], bool] = lambda: True,
) -> TextFiles:
    """Lets the target of ``engine`` write until its answers have ``tokens`` tokens.

    Answers that loop are left out, and so are prompts that leave an answer no room. The texts
    depend on the prompts, the seed and the target, and not on the engine's method or on
    interruptions.

    Args:
      directory: the directory of ``TextFiles``. Texts in it count.
      progress: called after each block.
      goes_on: whether to begin another block.

    Raises RequestError where the target gives no answer that is kept.
    """
    files = TextFiles(directory)
    expect = lambda: max((tokens - files.gathered.tokens) // _USUAL, _BLOCK)
    prompts = _read_prompts(engine, asking, files.gathered.prompts, expect)
    empty = 0
    with contextlib.closing(_answer(engine, asking, prompts)) as answers:
        while files.gathered.tokens < tokens and goes_on():
            before = files.gathered
            block = list(itertools.islice(answers, _BLOCK))
            if not block:
                break
            rows = [answer.row for answer in block if answer.row is not None]
            apart = max(asking.held_out - before.answers, 0)
            learnt = rows[apart:]
            empty = 0 if rows else empty + 1
            if empty == _PATIENCE:
                raise RequestError(
                    f"{engine.target.name}: none of {_PATIENCE * len(block)} prompts got an answer that does not "
                    "repeat itself; give conversations with --data"
                )
            files.append(
                rows[:apart],
                learnt,
                Gathered(
                    before.tokens + sum(row["tokens"] for row in learnt),
                    before.answers + len(rows),
                    before.in_suite + sum(answer.in_suite for answer in block),
                    before.prompts + len(block),
                ),
            )
            progress(files.gathered)
    return files


def _read_prompts(engine: Engine, asking: Asking, start: int, expect: Callable[[], int]) -> Iterator[tuple[int, Any]]:
    """Prompts with their numbers, from ``start`` on. A question that was written badly is None.

    ``expect`` bounds the questions that are written ahead: it gives the number of prompts that are
    still needed, as far as one knows.
    """
    if asking.prompts is not None:
        yield from list(enumerate(asking.prompts))[start:]
        return
    while True:
        count = expect()
        yield from write_questions(engine, asking.seed, start, count)
        start += count


class _Answer(NamedTuple):
    """The row of a prompt, or None, and whether the prompt was left out because a suite has it."""

    row: dict | None
    in_suite: bool = False


def _answer(engine: Engine, asking: Asking, prompts: Iterable[tuple[int, Any]]) -> Generator[_Answer, None, None]:
    """The answer of each prompt, in order. The engine writes many at once, and questions ahead."""
    in_suite = {sequence for prompt in asking.suite for sequence in word_sequences(prompt, _OVERLAP)}
    asked: deque[tuple[int, Any, bool]] = deque()  # numbers, submitted prompts or None, in_suite

    def requests() -> Iterator[dict]:
        for number, prompt in prompts:
            known = prompt is not None and _is_in(prompt, in_suite)
            fits = prompt is not None and not known and _fits(engine, asking, prompt)
            asked.append((number, prompt if fits else None, known))
            if fits:
                yield _request(asking, number, prompt)

    for result in write_in_order(engine, requests()):
        while asked[0][1] is None:
            yield _Answer(None, asked.popleft()[2])
        number, prompt, _ = asked.popleft()
        yield _Answer(_row(engine, asking, number, prompt, result))
    for _, _, known in asked:
        yield _Answer(None, known)


def _is_in(prompt, sequences: set) -> bool:
    return isinstance(prompt, str) and not sequences.isdisjoint(word_sequences(prompt, _OVERLAP))


def _fits(engine: Engine, asking: Asking, prompt) -> bool:
    """Whether a slot of the engine has room for the prompt and its longest answer."""
    tokenizer = engine.target.tokenizer
    ids = render_chat(tokenizer, [{"role": "user", "content": prompt}]) if asking.chat else prompt
    return len(ids) + asking.longest < engine.capacity


def _request(asking: Asking, number: int, prompt) -> dict:
    """The arguments of ``Engine.submit`` for a prompt."""
    text = {"messages": [{"role": "user", "content": prompt}]} if asking.chat else {"prompt": prompt}
    return text | dict(temperature=_temperature(number), max_new_tokens=asking.longest, seed=asking.seed + number)


def _row(engine: Engine, asking: Asking, number: int, prompt, result: Result) -> dict | None:
    """The row of an answer. It is None if the answer is empty or repeats itself."""
    if not result.text.strip() or share_of_new(result.text, 4) < _LEAST_NEW:
        return None
    row = {"number": number, "temperature": _temperature(number), "tokens": len(result.token_ids)}
    if asking.chat:
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": result.text}]
        return row | {"messages": turns}
    beginning = str(engine.target.tokenizer.decode(prompt, skip_special_tokens=True))
    return row | {"prompt": beginning, "text": beginning + result.text}


def _temperature(number: int) -> float:
    return TEMPERATURES[number % len(TEMPERATURES)]
