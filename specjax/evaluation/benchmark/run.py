"""Runs methods over the questions of a suite, and resumes a run that was interrupted.

For each turn of a question the methods alternate in one process, in an order that rotates, so drift
of the machine affects all methods equally.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...checkpoints.load import LanguageModel
from ...errors import RequestError
from ...generate import Generator
from ...requests.chat import render_chat
from ...result import Result, results_of
from ..comparison import difference, machine, make_generators
from ..suites import Question, Suite
from .answers import Answer, Turn, append, begin
from .choices import option_logprobs
from .energy import joules_since, read_joules


@dataclasses.dataclass(frozen=True)
class Run:
    """The answers of a run.

    Attributes:
      settings: everything that the answers depend on, an object for JSON.
      generators: the generator of each method. "none" is plain decoding, the first.
      answers: by method, then by question id, in the order of the questions.
      resumed: the number of questions that an earlier run had finished.
      left_out: the ids of the questions that are too long for the model's context.
      first_prompt: the token ids of the first question's prompt.
    """

    settings: dict
    generators: dict[str, Generator]
    answers: dict[str, dict[int | str, Answer]]
    resumed: int
    left_out: list[int | str]
    first_prompt: list[int]


def run_suite(
    target: LanguageModel,
    suite: Suite,
    questions: Sequence[Question],
    methods: Sequence[str],
    directory: Path,
    *,
    draft=None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, of: None,
    **drafting,
) -> Run:
    """Answers each question with each method, at batch 1, and writes the answer files.

    A question whose first prompt and answer exceed the model's context is left out. A later turn
    for which no room is left ends the conversation.

    Args:
      methods: the names of the methods. "none" is added where it is missing.
      directory: the directory of the answer files. A run of the same settings is resumed there.
      draft: see ``Generator``.
      max_new_tokens: the most new tokens of an answer.
      temperature, seed: see ``requests.options.Options``.
      progress: called with the number of finished questions and of all questions.
      drafting: options of methods. Each method gets its own options.

    Raises RequestError for bad input.
    """
    generators = make_generators(target, list(dict.fromkeys(["none", *methods])), draft, drafting)
    asker = Asker(target, suite.chat and bool(target.tokenizer.chat_template), max_new_tokens, target.config.context)
    lengths = {question.id: asker.measure(question) for question in questions}
    fit = [question for question in questions if lengths[question.id][0] <= target.config.context]
    if not fit:
        raise RequestError(
            f"every question and {max_new_tokens} new tokens exceed the model's context of {target.config.context}; "
            "lower --max-new-tokens"
        )
    room = min(target.config.context, max(lengths[question.id][1] for question in fit))
    asker = dataclasses.replace(asker, room=room, options=dict(temperature=temperature, seed=seed, logprobs=0))
    for generator in generators.values():
        generator.session.capacity = room + max(each.drafter.depth for each in generators.values()) + 1
    settings = _describe(asker, suite, fit, generators)
    answers = begin(directory, settings, generators)
    resumed = len(answers["none"])
    for number, question in enumerate(fit):
        if question.id not in answers["none"]:
            options = option_logprobs(target, question.turns[0], question.options)
            for method, turns in asker.ask(generators, question, number).items():
                answers[method][question.id] = Answer(question.id, question.category, turns, options)
                append(directory, method, answers[method][question.id], target.name)
        progress(number + 1, len(fit))
    ordered = {method: {each.id: found[each.id] for each in fit} for method, found in answers.items()}
    left_out = [question.id for question in questions if question not in fit]
    first = asker.encode([{"role": "user", "content": fit[0].turns[0]}])
    return Run(settings, generators, ordered, resumed, left_out, first)


@dataclasses.dataclass(frozen=True)
class Asker:
    """Puts questions to generators.

    Attributes:
      chat: whether prompts have the tokenizer's chat template. Otherwise each turn follows the text
        before it on a new line.
      room: the most tokens of prompt and answer.
      options: options of a request, see ``requests.options.Options``.
    """

    target: LanguageModel
    chat: bool
    max_new_tokens: int
    room: int
    options: Mapping = dataclasses.field(default_factory=dict)
    warm: set = dataclasses.field(default_factory=set)

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
        history, answers, names = [], {name: [] for name in generators}, list(generators)
        for i, text in enumerate(question.turns):
            history.append({"role": "user", "content": text})
            ids = self.encode(history)
            if len(ids) + self.max_new_tokens > self.room:
                break
            prompt = dict(messages=history) if self.chat else dict(prompts=ids)
            self._compile(generators, prompt, len(ids))
            start = (number + i) % len(names)
            timed = {name: self._time(generators[name], prompt) for name in names[start:] + names[:start]}
            plain = timed["none"][0]
            for name, (result, *costs) in timed.items():
                answers[name].append(self._turn(result, plain, question.id, *costs))
            history.append({"role": "assistant", "content": plain.text})
        return answers

    def _compile(self, generators: dict[str, Generator], prompt: dict, length: int) -> None:
        """Compiles, and runs once, the programs for prompts of about this length."""
        size = (length - 1).bit_length()
        if size not in self.warm:
            self.warm.add(size)
            for generator in generators.values():
                self._time(generator, prompt, max_new_tokens=2)

    def _time(self, generator: Generator, prompt: dict, **options) -> tuple[Result, float, float | None]:
        """The result, the seconds to the first tokens, and the joules of the whole.

        The generator remembers no text, so that an answer does not depend on earlier questions.
        """
        before = read_joules()
        decoding = generator.start(**prompt, **{"max_new_tokens": self.max_new_tokens, **self.options, **options})
        generator.session.advance(decoding, 1)
        first = decoding.prefill_seconds + decoding.decode_seconds
        generator.session.advance(decoding)
        joules = joules_since(before)
        (result,) = results_of(decoding, self.target, generator.rule_name)
        return result, first, joules

    def _turn(self, result: Result, plain: Result, id: int | str, first: float, joules: float | None) -> Turn:
        stats, text = result.stats, result.text.strip()
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
            first_token_seconds=first,
            decode_seconds=stats.decode_seconds,
            information=-sum(logprob for logprob, _ in pairs),
            accepted_information=-sum(logprob for logprob, is_draft in pairs if is_draft),
            joules=joules,
            difference=differs and {**differs, "prompt": id},
        )


def lengths_of_rounds(from_draft: Sequence[bool]) -> list[int]:
    """The new tokens of each round. A round ends with the target's own token, or with the text."""
    ends = [i + 1 for i, is_draft in enumerate(from_draft) if not is_draft]
    ends += [len(from_draft)] * (bool(from_draft) and from_draft[-1])
    return [end - start for start, end in zip([0, *ends], ends)]


def _describe(asker: Asker, suite: Suite, questions: Sequence[Question], generators: dict[str, Generator]) -> dict:
    """Everything that the answers depend on."""
    drafts = {draft.name: draft for generator in generators.values() for draft in generator.drafts}
    form = "the model's chat template" if asker.chat else "plain text, without a chat template"
    return {
        "suite": suite.name,
        "source": suite.source,
        "licence": suite.licence,
        "form": f"{suite.form}; {form}",
        "questions": len(questions),
        "checksum": zlib.crc32(repr(questions).encode()),
        "model": asker.target.name,
        "drafts": list(drafts),
        "methods": {name: dataclasses.asdict(generator.drafter) for name, generator in generators.items()},
        "max_new_tokens": asker.max_new_tokens,
        "temperature": asker.options["temperature"],
        "seed": asker.options["seed"],
        "machine": machine(asker.target),
    }
