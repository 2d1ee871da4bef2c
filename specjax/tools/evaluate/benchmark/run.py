"""Runs methods over the questions of a suite, and resumes a run that was interrupted."""

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ....checkpoints.load import LanguageModel
from ....core.checks import pop_fields
from ....errors import RequestError
from ....loop.prefill import pad_prompts
from ....text.generator import Generator
from ..comparison import machine, make_generators
from ..suites import Question, Suite
from .answers import Answer, append, begin
from .runner import Asker


@dataclasses.dataclass(frozen=True)
class AnswerOptions:
    """The options of the answers of a run.

    Attributes:
      max_new_tokens: the most new tokens of an answer.
      temperature: divides the logits; 0 is greedy.
      seed: seed of the random numbers. See ``requests.options.Options``.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Run:
    """The answers of a run.

    Attributes:
      settings: everything that the answers depend on, an object for JSON.
      generators: the generator of each method. "none" is plain decoding, the first.
      answers: by method, then by question id, in the order of the questions.
      resumed: the number of questions that an earlier run had finished.
      left_out: the ids of the questions that are too long for the model's context.
      prompts: the token ids of each question's first prompt.
    """

    settings: dict
    generators: dict[str, Generator]
    answers: dict[str, dict[int | str, Answer]]
    resumed: int
    left_out: list[int | str]
    prompts: list[list[int]]


def run_suite(
    target: LanguageModel,
    suite: Suite,
    questions: Sequence[Question],
    methods: Sequence[str],
    directory: Path,
    *,
    draft=None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    **options,
) -> Run:
    """Answers each question with each method, at batch 1, and writes the answer files.

    A question whose first prompt and answer exceed the model's context is left out. A later turn
    for which no room is left ends the conversation.

    Args:
      methods: the names of the methods. "none" is added where it is missing.
      directory: the directory of the answer files. A run of the same settings is resumed there.
      draft: see ``Generator``.
      progress: called with the number of finished questions and of all questions.
      options: fields of ``AnswerOptions``, and options of methods. Each method gets its own
        options.

    Raises RequestError for bad input.
    """
    # 1. The questions that fit, and caches of one size.
    answer_options = AnswerOptions(**pop_fields(AnswerOptions, options))
    generators = make_generators(target, list(dict.fromkeys(["none", *methods])), draft, options)
    asker = Asker(
        target,
        suite.chat and bool(getattr(target.tokenizer, "chat_template", None)),
        answer_options.max_new_tokens,
        target.config.context,
    )
    lengths = {question.id: asker.measure(question) for question in questions}
    fit = [question for question in questions if lengths[question.id][0] <= target.config.context]
    if not fit:
        raise RequestError(
            f"every question and {answer_options.max_new_tokens} new tokens exceed "
            f"the model's context of {target.config.context}; lower --max-new-tokens"
        )
    room = min(target.config.context, max(lengths[question.id][1] for question in fit))
    sampling = dict(temperature=answer_options.temperature, seed=answer_options.seed, logprobs=0)
    asker = dataclasses.replace(asker, room=room, options=sampling)
    path = max(generator.drafter.depth for generator in generators.values()) + 1
    for generator in generators.values():
        generator.session.capacity = room + 2 * path  # The measurement of shares needs room for a second round.
    # 2. The answers, written one by one.
    settings = _describe(asker, suite, fit, generators)
    answers = begin(directory, settings, generators)
    resumed = len(answers["none"])
    for number, question in enumerate(fit):
        if question.id not in answers["none"]:
            logprobs = option_logprobs(target, question.turns[0], question.options)
            for method, turns in asker.ask(generators, question, number).items():
                answers[method][question.id] = Answer(question.id, question.category, turns, logprobs)
                append(directory, method, answers[method][question.id], target.name)
        progress(number + 1, len(fit))
    # 3. The run.
    ordered = {method: {each.id: by_id[each.id] for each in fit} for method, by_id in answers.items()}
    left_out = [id for id, (first, _) in lengths.items() if first > target.config.context]
    prompts = [asker.encode([{"role": "user", "content": question.turns[0]}]) for question in fit]
    return Run(settings, generators, ordered, resumed, left_out, prompts)


def _describe(asker: Asker, suite: Suite, questions: Sequence[Question], generators: dict[str, Generator]) -> dict:
    """Everything that the answers depend on."""
    drafts = [draft.name for generator in generators.values() for draft in generator.drafts]
    form = "the model's chat template" if asker.chat else "plain text, without a chat template"
    return {
        "suite": suite.name,
        "source": suite.source,
        "licence": suite.licence,
        "form": f"{suite.form}; {form}",
        "questions": len(questions),
        "checksum": zlib.crc32(repr(questions).encode()),
        "model": asker.target.name,
        "drafts": list(dict.fromkeys(drafts)),
        "methods": {name: dataclasses.asdict(generator.drafter) for name, generator in generators.items()},
        "max_new_tokens": asker.max_new_tokens,
        "temperature": asker.options["temperature"],
        "seed": asker.options["seed"],
        "machine": machine(asker.target),
    }


def option_logprobs(target: LanguageModel, prompt: str, options: Sequence[str]) -> list[float]:
    """The log-probability of each option after the prompt: the sum over its tokens.

    The tokens of an option are those that it adds to the prompt. Lengths are padded to powers of
    two, which saves compilations.
    """
    start = len(target.tokenizer.encode(prompt))
    return [_logprob(target, target.tokenizer.encode(prompt + option), start) for option in options]


def _logprob(target: LanguageModel, ids: list[int], start: int) -> float:
    size, width = (1 << (n - 1).bit_length() for n in (len(ids), len(ids) - start))
    tokens, _ = pad_prompts([ids], size + width)
    logprobs = _after(target.model, tokens, jnp.int32(start), width)
    return float(np.sum(np.asarray(logprobs)[: len(ids) - start]))


@jax.jit(static_argnums=3)
def _after(model, tokens, start, width: int):
    """The log-probabilities [width] of the tokens from place ``start`` on."""
    positions = jnp.arange(tokens.shape[1])[None]
    mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
    hidden = model(tokens, positions, mask).hidden
    before = lax.dynamic_slice_in_dim(hidden, start - 1, width, axis=1)
    chosen = lax.dynamic_slice_in_dim(tokens, start, width, axis=1)
    logprobs = jax.nn.log_softmax(model.logits(before).astype(jnp.float32))
    return jnp.take_along_axis(logprobs, chosen[..., None], 2)[0, :, 0]
