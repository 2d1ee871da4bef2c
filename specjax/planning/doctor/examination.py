"""Examines a target with a method: acceptance, costs, the expected speed, and the reasons of a loss."""

from collections.abc import Callable, Sequence

import numpy as np

from ...checkpoints.load import LanguageModel
from ...checks import per_row, whole
from ...errors import RequestError
from ...evaluation.comparison import machine
from ...generate import Generator, Prompt
from ...requests.prompts import encode_prompts
from . import texts
from .forecast import forecast
from .rounds import count_nodes, time_rounds, without_draft

BATCHES, TEMPERATURES = (1, 8), (0.0, 1.0)
"""The batches and temperatures that are examined by default."""


def examine(
    target: LanguageModel,
    prompts: Sequence[Prompt],
    method: str | None = None,
    draft=None,
    *,
    batches: Sequence[int] = BATCHES,
    temperatures: Sequence[float] = TEMPERATURES,
    max_new_tokens: int = 64,
    progress: Callable[[int, int], None] = lambda done, of: None,
    **drafting,
) -> dict:
    """Predicts the speed-up of a method.

    The target continues each of ``prompts`` at each temperature. Where the method allows it, target
    and draft read these texts, and the rounds are replayed. Other methods decode the prompts once.
    Then rounds are timed at each batch.

    Args:
      target: the model to decode with.
      prompts: strings or token ids.
      method, draft, drafting: as in ``Generator``.
      batches: the numbers of rows that are decoded together.
      temperatures: the temperatures of later requests.
      max_new_tokens: the number of new tokens after each prompt.
      progress: called with the number of finished steps and of all steps.

    Returns an object for JSON: "machine", "settings" and "forecasts", see ``forecast.forecast``.

    Raises RequestError for bad input.
    """
    check(method, batches, temperatures, max_new_tokens)
    generator, plain = Generator(target, method, draft, **drafting), Generator(target)
    check(generator.method, batches, temperatures, max_new_tokens)
    ids, rows = encode_prompts(list(prompts), target.tokenizer, target.config), max(batches)
    texts.check_room(generator, ids, max_new_tokens)
    nodes = count_nodes(generator, ids[0])
    blank = without_draft(generator, nodes)
    done, of = 0, len(temperatures) * (1 + len(batches))
    found = []
    for temperature in temperatures:
        rounds = _count_rounds(generator, plain, ids, max_new_tokens, temperature, rows)
        progress(done := done + 1, of)
        for batch in batches:
            given = temperature, max_new_tokens // 2, max_new_tokens / rounds.mean()
            times = time_rounds(plain, blank, generator, _spread(ids, batch), *given)
            cast = forecast(rounds, max_new_tokens, times, batch, generator.drafter.depth)
            found.append({"temperature": temperature} | cast)
            progress(done := done + 1, of)
    settings = {
        "model": target.name,
        "draft": ", ".join(draft.name for draft in generator.drafts) or None,
        "method": generator.method,
        "depth": generator.drafter.depth,
        "nodes": nodes,
        "prompts": len(ids),
        "max_new_tokens": max_new_tokens,
    }
    about = {"machine": machine(target), "settings": settings, "measured": "measured here"}
    return about | {"forecasts": found, "reasons": []}


def check(method: str | None, batches: Sequence[int], temperatures: Sequence[float], max_new_tokens: int) -> None:
    """Raises RequestError for settings that ``examine`` cannot use. It runs before a model is loaded."""
    if method == "none":
        raise RequestError("nothing drafts here; name a draft with --draft, or a --method that needs none")
    for batch in batches:
        whole("batch", batch)
    for temperature in temperatures:
        per_row("temperature", temperature, 1, np.float32)
    whole("max_new_tokens", max_new_tokens, 8)


def _count_rounds(generator: Generator, plain: Generator, ids, tokens: int, temperature: float, rows: int):
    if not texts.is_forced(generator, temperature):
        return texts.rounds_by_run(generator, ids, tokens, temperature, rows)
    written = texts.write_texts(plain, ids, tokens + generator.drafter.depth, temperature, rows)
    places = [texts.places_of(generator, text, temperature) for text in written]
    return texts.rounds_by_teacher(generator, written, places, tokens, temperature)


def _spread(prompts: Sequence[list[int]], batch: int) -> list[list[int]]:
    """``batch`` of the prompts, whose lengths are spread evenly; one prompt has the median length."""
    order = sorted(prompts, key=len)
    places = (np.arange(batch) + 0.5) / batch * len(order)
    return [order[int(place)] for place in places]
