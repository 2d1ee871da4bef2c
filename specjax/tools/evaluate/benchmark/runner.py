"""Asks a question of several methods, and times their answers.

For each turn of a question the methods alternate in one process, in an order that rotates, so drift
of the machine affects all methods equally.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ....checkpoints.load import LanguageModel
from ....requests.chat import render_chat
from ....text.generator import Generator
from ....text.result import Result, results_of
from ..fidelity import difference
from ..suites import Question
from .answers import Turn

COUNTERS = Path("/sys/class/powercap")
"""The directory in which Linux shows the counters, as a rule only to the administrator."""


class Timed(NamedTuple):
    """A result, the seconds until its first round was done, and its joules."""

    result: Result
    first_token_seconds: float
    joules: float | None


@dataclasses.dataclass(frozen=True)
class Asker:
    """Asks questions of generators.

    Attributes:
      target: the model of the generators, which owns the tokenizer.
      chat: True for prompts in the tokenizer's chat template. Otherwise each turn follows the text
        before it on a new line.
      max_new_tokens: the most new tokens of an answer.
      room: the most tokens of prompt and answer.
      options: further options of a request, see ``requests.options.Options``.
      warm: the sizes of prompts whose programs are compiled.
    """

    target: LanguageModel
    chat: bool
    max_new_tokens: int
    room: int
    options: Mapping = dataclasses.field(default_factory=dict)
    warm: set[int] = dataclasses.field(default_factory=set)

    def measure(self, question: Question) -> tuple[int, int]:
        """The tokens of the first prompt with its answer, and those of the whole conversation."""
        encode = self.target.tokenizer.encode
        first, *later = question.turns
        prompt = len(self.encode([{"role": "user", "content": first}]))
        around = prompt - len(encode(first)) + 1  # the tokens of the template, or a new line
        turns = sum(len(encode(turn)) + around for turn in later)
        return prompt + self.max_new_tokens, prompt + turns + len(question.turns) * self.max_new_tokens

    def encode(self, history: Sequence[Mapping]) -> list[int]:
        """The token ids of a conversation that ends with the user's turn."""
        tokenizer = self.target.tokenizer
        if self.chat:
            return render_chat(tokenizer, history)
        texts = [message["content"] for message in history] + [""]
        return tokenizer.encode("\n".join(a + b for a, b in zip(texts[::2], texts[1::2])))

    def ask(self, generators: dict[str, Generator], question: Question, number: int) -> dict[str, list[Turn]]:
        """The answers of each method. Later turns follow plain decoding's answers."""
        history = []
        answers = {name: [] for name in generators}
        names = list(generators)
        for i, text in enumerate(question.turns):
            history.append({"role": "user", "content": text})
            ids = self.encode(history)
            if len(ids) + self.max_new_tokens > self.room:
                break
            prompt = dict(messages=history) if self.chat else dict(prompts=ids)
            self._compile(generators, prompt, len(ids))
            start = (number + i) % len(names)
            timed = {name: self._time(generators[name], prompt) for name in names[start:] + names[:start]}
            plain = timed["none"].result
            for name, each in timed.items():
                answers[name].append(self._turn(each, plain, question.id))
            history.append({"role": "assistant", "content": plain.text})
        return answers

    def _compile(self, generators: dict[str, Generator], prompt: dict, length: int) -> None:
        """Compiles the programs for prompts of about this length, and writes a whole answer.

        A kind of round takes longer the first time, and method auto has several kinds.
        """
        size = (length - 1).bit_length()
        if size not in self.warm:
            self.warm.add(size)
            for generator in generators.values():
                self._time(generator, prompt)

    def _time(self, generator: Generator, prompt: dict) -> Timed:
        """The timed result. The generator does not learn from it for later questions."""
        before = read_joules()
        decoding = generator.start(**prompt, max_new_tokens=self.max_new_tokens, **self.options)
        generator.session.advance(decoding, 1)
        first = decoding.prefill_seconds + decoding.decode_seconds
        generator.session.advance(decoding)
        joules = joules_since(before)
        (result,) = results_of(decoding, self.target, generator.rule_name)
        return Timed(result, first, joules)

    def _turn(self, timed: Timed, plain: Result, id: int | str) -> Turn:
        result = timed.result
        stats = result.stats
        text = result.text.strip()
        differs = None if self.options["temperature"] else difference(0, result, plain, self.target)
        pairs = list(zip(result.logprobs or (), result.from_draft))
        return Turn(
            text=text,
            token_ids=result.token_ids,
            retokenised=len(self.target.tokenizer(text).input_ids),
            prompt_tokens=len(result.prompt_token_ids),
            target_calls=stats.target_calls,
            drafted=stats.drafted,
            accept_lengths=lengths_of_rounds(result.from_draft),
            accepted_at=list(stats.accepted_at),
            prefill_seconds=stats.prefill_seconds,
            first_token_seconds=timed.first_token_seconds,
            decode_seconds=stats.decode_seconds,
            information=-sum(logprob for logprob, _ in pairs),
            accepted_information=-sum(logprob for logprob, is_draft in pairs if is_draft),
            joules=timed.joules,
            difference=differs and {**differs, "prompt": id},
        )


def lengths_of_rounds(from_draft: Sequence[bool]) -> list[int]:
    """The new tokens of each round. A round ends with the target's own token, or with the text."""
    ends = [i + 1 for i, is_draft in enumerate(from_draft) if not is_draft]
    ends += [len(from_draft)] * (bool(from_draft) and from_draft[-1])
    return [end - start for start, end in zip([0, *ends], ends)]


def read_joules(counters: Path | None = None) -> float | None:
    """The joules on the counters of all processor packages; None where no counter can be read."""
    try:
        paths = (counters or COUNTERS).glob("intel-rapl:*")
        packages = [path for path in paths if path.name.count(":") == 1]  # a second colon names a part of a package
        if not packages:
            return None
        return sum(int((path / "energy_uj").read_text()) for path in packages) / 1e6
    except (OSError, ValueError):
        return None


def joules_since(before: float | None, counters: Path | None = None) -> float | None:
    """The joules used since the counters showed ``before``.

    None if no counter can be read, or if a counter has wrapped around, as it does after some 10^5
    joules.
    """
    after = read_joules(counters)
    if before is None or after is None or after < before:
        return None
    return after - before
