"""Examines a target with a method: the expected speed, and the reasons of a loss."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...checkpoints.load import LanguageModel
from ...core.checks import per_row, pop_fields, whole
from ...drafters import default_method
from ...errors import RequestError
from ...requests.chat import render_chat
from ...requests.prompts import encode_prompts
from ...text.drafts import load_drafts
from ...text.generator import Generator, Prompt
from ...text.machine import machine
from . import texts
from .forecast import forecast
from .measurements import MOST_TEXTS, Evidence, draft_of, read, write_own
from .reasons import find_reasons
from .round_time import RoundTimes, count_nodes, plan_rounds, room_for, time_rounds, without_draft


@dataclasses.dataclass(frozen=True)
class ExamineSettings:
    """The settings of an examination.

    Attributes:
      batches: the numbers of rows that are decoded together.
      temperatures: the temperatures of later requests.
      max_new_tokens: the number of new tokens after each prompt.
      device: a device that is not at hand, see ``plan.devices.parse_device``; by default this
        device.

    Raises RequestError for values out of bounds.
    """

    batches: Sequence[int] = (1, 8)
    temperatures: Sequence[float] = (0.0, 1.0)
    max_new_tokens: int = 64
    device: str | None = None

    def __post_init__(self):
        for batch in self.batches:
            whole("batch", batch)
        for temperature in self.temperatures:
            per_row("temperature", temperature, 1, np.float32)
        whole("max_new_tokens", self.max_new_tokens, 8)


def examine(
    target: LanguageModel,
    prompts: Sequence[Prompt] = (),
    method: str | None = None,
    draft=None,
    *,
    conversations: Sequence[list[dict]] | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    **options,
) -> dict:
    """Predicts the speed-up of a method, and tests why it is low.

    The target continues each prompt at each temperature. Where the method allows it, target and
    draft read these texts, and the rounds are replayed. Other methods decode the prompts once. Then
    rounds are timed at each batch, or planned for a device that is not at hand.

    Args:
      target: the model to decode with.
      prompts: strings or token ids.
      method, draft: as in ``Generator``.
      conversations: lists of messages in place of prompts. Each ends with a turn of the user.
      progress: called with the number of finished steps and of all steps.
      options: fields of ``ExamineSettings``, and options of ``Generator``.

    Returns an object for JSON: "machine", "settings", "forecasts" (see ``forecast.forecast``), and
    "reasons" (see ``measurements.Reason``).

    Raises RequestError for bad input.
    """
    # 1. The generators, and the prompts.
    target.config.refuse_encoder("doctor")
    settings = ExamineSettings(**pop_fields(ExamineSettings, options))
    check(method)
    if method is None:
        draft = load_drafts(target, draft)
        method = default_method(draft)
    generator = Generator(target, method, draft, **options)
    check(generator.method)
    if conversations is not None:
        prompts = [render_chat(target.tokenizer, messages) for messages in conversations]
    trial = _prepare(generator, encode_prompts(list(prompts), target.tokenizer, target.config), settings)
    # 2. Texts of the target, and the rounds in which the method writes them.
    steps = itertools.count(1)
    of = len(trial.controls) + len(settings.temperatures) * len(settings.batches) + 1
    texts_at: dict[float, list] = {}
    rounds: dict[float, dict[int, np.ndarray]] = {}
    for temperature in trial.controls:
        texts_at[temperature], rounds[temperature] = _write(trial, temperature)
        progress(next(steps), of)
    # 3. The times of rounds, and forecasts.
    planned = {batch: _plan(trial, batch) for batch in settings.batches if settings.device}
    forecasts = []
    for temperature, batch in itertools.product(settings.temperatures, settings.batches):
        counted = rounds[temperature][batch]
        times = planned[batch] if settings.device else _time(trial, counted, batch, temperature)
        cast = forecast(counted, settings.max_new_tokens, times, batch, generator.drafter.depth)
        forecasts.append({"temperature": temperature} | cast)
        progress(next(steps), of)
    # 4. The reasons.
    evidence = _collect(trial, conversations, texts_at[0.0], rounds, forecasts)
    reasons = find_reasons(evidence)
    progress(next(steps), of)
    return {
        "machine": machine(target),
        "settings": _describe(trial),
        "forecasts": forecasts,
        "reasons": [dataclasses.asdict(reason) for reason in reasons],
    }


def check(method: str | None) -> None:
    """Raises RequestError for a method that ``examine`` cannot use, before any loading."""
    if method == "none":
        raise RequestError("nothing drafts here; name a draft with --draft, or a --method that needs none")


@dataclasses.dataclass(frozen=True, eq=False)
class _Trial:
    """The generators of an examination, with caches of one size, so that they share programs.

    Attributes:
      generator: the method.
      plain: plain decoding.
      blank: rounds that score as many nodes as the method's, see ``round_time.without_draft``.
      nodes: the number of these nodes.
      prompts: token ids.
      settings: the settings of the examination.
    """

    generator: Generator
    plain: Generator
    blank: Generator
    nodes: int
    prompts: list[list[int]]
    settings: ExamineSettings

    @property
    def controls(self) -> list[float]:
        """The temperatures at which texts are written: those of the settings, and 0."""
        return sorted({0.0, *self.settings.temperatures})


def _prepare(generator: Generator, prompts: list[list[int]], settings: ExamineSettings) -> _Trial:
    tokens = settings.max_new_tokens
    texts.check_room(generator, prompts, tokens)
    generator.session.capacity = room_for(generator, prompts, tokens)
    nodes = count_nodes(generator, prompts[0])
    plain = Generator(generator.target, "none")
    plain.session.capacity = generator.session.capacity
    return _Trial(generator, plain, without_draft(generator, nodes), nodes, prompts, settings)


def _write(trial: _Trial, temperature: float) -> tuple[list, dict[int, np.ndarray]]:
    """The target's texts at a temperature, and the rounds of the method for them, by batch."""
    settings = trial.settings
    generator = trial.generator
    rows = max(settings.batches)
    longest = settings.max_new_tokens + generator.drafter.depth
    written = texts.write_texts(trial.plain, trial.prompts, longest, temperature, rows)
    count = partial(texts.count_rounds, generator, written, settings.max_new_tokens, temperature)
    if generator.drafter.chooser:  # its choices depend on the batch
        return written, {batch: count(batch) for batch in settings.batches}
    return written, dict.fromkeys(settings.batches, count(rows))


def _time(trial: _Trial, rounds: np.ndarray, batch: int, temperature: float) -> RoundTimes:
    tokens = trial.settings.max_new_tokens
    return time_rounds(
        trial.plain,
        trial.blank,
        trial.generator,
        trial.prompts,
        batch,
        temperature,
        tokens,
        tokens / float(rounds.mean()),
    )


def _plan(trial: _Trial, batch: int) -> RoundTimes:
    device = trial.settings.device
    assert device is not None
    length = max(map(len, trial.prompts)) + trial.settings.max_new_tokens
    return plan_rounds(trial.generator, trial.blank, device, batch, length)


def _collect(trial: _Trial, conversations, written: list, rounds: dict, forecasts: list[dict]) -> Evidence:
    """The evidence, with the places of all texts if a draft reads texts."""
    settings = trial.settings
    generator = trial.generator
    tokens = settings.max_new_tokens
    least = min(settings.batches)
    means = {temperature: tokens / float(rounds[temperature][least].mean()) for temperature in trial.controls}
    evidence = Evidence(
        generator, draft_of(generator), forecasts, means, written[:MOST_TEXTS],
        conversations=conversations, nodes=trial.nodes,
    )  # fmt: skip
    if evidence.draft is None:
        return evidence
    own_texts = write_own(trial.plain, tokens, max(settings.batches))
    user = read(generator, evidence.draft, evidence.texts)
    own = read(generator, evidence.draft, own_texts)
    return dataclasses.replace(evidence, user=user, own=own)


def _describe(trial: _Trial) -> dict:
    generator = trial.generator
    return {
        "model": generator.target.name,
        "draft": ", ".join(draft.name for draft in generator.drafts) or None,
        "method": generator.method,
        "depth": generator.drafter.depth,
        "nodes": trial.nodes,
        "device": trial.settings.device,
        "prompts": len(trial.prompts),
        "max_new_tokens": trial.settings.max_new_tokens,
    }
