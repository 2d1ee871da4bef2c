"""Examines a target with a method: the expected speed, and the reasons of a loss."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...checkpoints.load import LanguageModel
from ...checks import per_row, whole
from ...drafters import default_method
from ...drafts import load_drafts
from ...errors import RequestError
from ...evaluation.comparison import machine
from ...generate import Generator, Prompt
from ...requests.chat import render_chat
from ...requests.prompts import encode_prompts
from . import texts
from .elsewhere import plan_rounds
from .evidence import MOST_TEXTS, Evidence, draft_of, read, write_own
from .forecast import forecast
from .reasons import find_reasons
from .rounds import RoundTimes, count_nodes, room_for, time_rounds, without_draft

BATCHES, TEMPERATURES = (1, 8), (0.0, 1.0)
"""The batches and temperatures that are examined by default."""


def examine(
    target: LanguageModel,
    prompts: Sequence[Prompt] = (),
    method: str | None = None,
    draft=None,
    *,
    conversations: Sequence[list[dict]] | None = None,
    batches: Sequence[int] = BATCHES,
    temperatures: Sequence[float] = TEMPERATURES,
    max_new_tokens: int = 64,
    device: str | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    **drafting,
) -> dict:
    """Predicts the speed-up of a method, and tests why it is low.

    The target continues each prompt at each temperature. Where the method allows it, target and
    draft read these texts, and the rounds are replayed. Other methods decode the prompts once. Then
    rounds are timed at each batch, or planned for a device that is not at hand.

    Args:
      target: the model to decode with.
      prompts: strings or token ids.
      method, draft, drafting: as in ``Generator``.
      conversations: lists of messages in place of prompts. Each ends with a turn of the user.
      batches: the numbers of rows that are decoded together.
      temperatures: the temperatures of later requests.
      max_new_tokens: the number of new tokens after each prompt.
      device: a device that is not at hand, see ``devices.parse_device``.
      progress: called with the number of finished steps and of all steps.

    Returns an object for JSON: "machine", "settings", "forecasts" (see ``forecast.forecast``), and
    "reasons" (see ``evidence.Reason``).

    Raises RequestError for bad input.
    """
    target.config.refuse_encoder("doctor")
    check(method, batches, temperatures, max_new_tokens)
    if method is None:
        draft = load_drafts(target, draft)
        method = default_method(draft)
    generator = Generator(target, method, draft, **drafting)
    check(generator.method, batches, temperatures, max_new_tokens)
    if conversations is not None:
        prompts = [render_chat(target.tokenizer, messages) for messages in conversations]
    trial = _prepare(generator, encode_prompts(list(prompts), target.tokenizer, target.config), max_new_tokens)
    controls, rows = sorted({0.0, *temperatures}), max(batches)
    done, of = itertools.count(1), len(controls) + len(temperatures) * len(batches) + 1
    written, rounds = {}, {}
    for temperature in controls:
        long = max_new_tokens + generator.drafter.depth
        written[temperature] = texts.write_texts(trial.plain, trial.prompts, long, temperature, rows)
        count = partial(texts.count_rounds, generator, written[temperature], max_new_tokens, temperature)
        # The choices of a method that chooses depend on the batch.
        found = {batch: count(batch) for batch in batches} if generator.drafter.shapes else {}
        rounds[temperature] = found or dict.fromkeys(batches, count(rows))
        progress(next(done), of)
    planned = {batch: _plan(trial, device, batch) for batch in batches if device}
    forecasts = []
    for temperature, batch in itertools.product(temperatures, batches):
        counted = rounds[temperature][batch]
        times = planned[batch] if device else _time(trial, counted, batch, temperature)
        cast = forecast(counted, max_new_tokens, times, batch, generator.drafter.depth)
        forecasts.append({"temperature": temperature} | cast)
        progress(next(done), of)
    means = {temperature: max_new_tokens / float(rounds[temperature][min(batches)].mean()) for temperature in controls}
    shown = written[0.0][:MOST_TEXTS]
    evidence = Evidence(
        generator, draft_of(generator), forecasts, means, shown, conversations=conversations, nodes=trial.nodes
    )
    reasons = find_reasons(_read_texts(evidence, trial, rows))
    progress(next(done), of)
    return {
        "machine": machine(target),
        "settings": _settings(trial, device),
        "forecasts": forecasts,
        "reasons": [dataclasses.asdict(reason) for reason in reasons],
    }


def check(method: str | None, batches: Sequence[int], temperatures: Sequence[float], max_new_tokens: int) -> None:
    """Raises RequestError for settings that ``examine`` cannot use. It runs before a model is loaded."""
    if method == "none":
        raise RequestError("nothing drafts here; name a draft with --draft, or a --method that needs none")
    for batch in batches:
        whole("batch", batch)
    for temperature in temperatures:
        per_row("temperature", temperature, 1, np.float32)
    whole("max_new_tokens", max_new_tokens, 8)


@dataclasses.dataclass(frozen=True, eq=False)
class _Trial:
    """The generators of an examination, with caches of one size, so that they share programs.

    Attributes:
      generator: the method.
      plain: plain decoding.
      blank: rounds that score as many nodes as the method's, see ``rounds.without_draft``.
      nodes: the number of these nodes.
      prompts: token ids.
      tokens: the number of new tokens after each prompt.
    """

    generator: Generator
    plain: Generator
    blank: Generator
    nodes: int
    prompts: list[list[int]]
    tokens: int


def _prepare(generator: Generator, prompts: list[list[int]], tokens: int) -> _Trial:
    texts.check_room(generator, prompts, tokens)
    generator.session.capacity = room_for(generator, prompts, tokens)
    nodes, plain = count_nodes(generator, prompts[0]), Generator(generator.target, "none")
    plain.session.capacity = generator.session.capacity
    return _Trial(generator, plain, without_draft(generator, nodes), nodes, prompts, tokens)


def _time(trial: _Trial, rounds: np.ndarray, batch: int, temperature: float) -> RoundTimes:
    generators, mean = (trial.plain, trial.blank, trial.generator), trial.tokens / float(rounds.mean())
    return time_rounds(*generators, trial.prompts, batch, temperature, trial.tokens, mean)


def _plan(trial: _Trial, device: str | None, batch: int) -> RoundTimes:
    assert device is not None
    length = max(map(len, trial.prompts)) + trial.tokens
    return plan_rounds(trial.generator, trial.blank, device, batch, length)


def _read_texts(evidence: Evidence, trial: _Trial, rows: int) -> Evidence:
    """The evidence with the places of the user's texts and of the target's own, if a draft reads."""
    if evidence.draft is None:
        return evidence
    own = write_own(trial.plain, trial.tokens, rows)
    user, own = (read(trial.generator, evidence.draft, some) for some in (evidence.texts, own))
    return dataclasses.replace(evidence, user=user, own=own)


def _settings(trial: _Trial, device: str | None) -> dict:
    generator = trial.generator
    return {
        "model": generator.target.name,
        "draft": ", ".join(draft.name for draft in generator.drafts) or None,
        "method": generator.method,
        "depth": generator.drafter.depth,
        "nodes": trial.nodes,
        "device": device,
        "prompts": len(trial.prompts),
        "max_new_tokens": trial.tokens,
    }
