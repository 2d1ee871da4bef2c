"""Examines a target with a method: the expected speed, and the reasons of a loss."""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from ...checkpoints.load import LanguageModel
from ...checks import per_row, whole
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
from .rounds import count_nodes, room_for, time_rounds, without_draft

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
    check(method, batches, temperatures, max_new_tokens)
    generator, plain = Generator(target, method, draft, **drafting), Generator(target)
    check(generator.method, batches, temperatures, max_new_tokens)
    if conversations is not None:
        prompts = [render_chat(target.tokenizer, messages) for messages in conversations]
    ids, rows = encode_prompts(list(prompts), target.tokenizer, target.config), max(batches)
    texts.check_room(generator, ids, max_new_tokens)
    nodes = count_nodes(generator, ids[0])
    blank = without_draft(generator, nodes)
    for each in (generator, plain, blank):
        each.session.capacity = room_for(generator, ids, max_new_tokens)
    steps = _Steps(progress, 2 + len({0.0, *temperatures}) + len(temperatures) * len(batches))
    tokens, written, rounds = max_new_tokens + generator.drafter.depth, {}, {}
    for temperature in sorted({0.0, *temperatures}):
        written[temperature] = texts.write_texts(plain, ids, tokens, temperature, rows)
        rounds[temperature] = texts.count_rounds(generator, written[temperature], max_new_tokens, temperature, rows)
        steps.finish()
    means = {temperature: max_new_tokens / float(counts.mean()) for temperature, counts in rounds.items()}
    length = max(map(len, ids)) + tokens
    planned = {batch: plan_rounds(generator, blank, device, batch, length) for batch in batches if device}
    found = []
    for temperature, batch in product(temperatures, batches):
        given = _spread(ids, batch), temperature, max_new_tokens // 2, means[temperature]
        times = planned[batch] if device else time_rounds(plain, blank, generator, *given)
        cast = forecast(rounds[temperature], max_new_tokens, times, batch, generator.drafter.depth)
        found.append({"temperature": temperature} | cast)
        steps.finish()
    shown = written[0.0][:MOST_TEXTS]
    evidence = Evidence(generator, draft_of(generator), found, means, shown, conversations=conversations)
    if evidence.draft is not None:
        own = write_own(plain, max_new_tokens, rows)
        steps.finish()
        places = {name: read(generator, evidence.draft, some) for name, some in (("user", shown), ("own", own))}
        evidence = dataclasses.replace(evidence, **places)
    reasons = [dataclasses.asdict(reason) for reason in find_reasons(evidence)]
    settings = {
        "model": target.name,
        "draft": ", ".join(draft.name for draft in generator.drafts) or None,
        "method": generator.method,
        "depth": generator.drafter.depth,
        "nodes": nodes,
        "device": device,
        "prompts": len(ids),
        "max_new_tokens": max_new_tokens,
    }
    return {"machine": machine(target), "settings": settings, "forecasts": found, "reasons": reasons}


def check(method: str | None, batches: Sequence[int], temperatures: Sequence[float], max_new_tokens: int) -> None:
    """Raises RequestError for settings that ``examine`` cannot use. It runs before a model is loaded."""
    if method == "none":
        raise RequestError("nothing drafts here; name a draft with --draft, or a --method that needs none")
    for batch in batches:
        whole("batch", batch)
    for temperature in temperatures:
        per_row("temperature", temperature, 1, np.float32)
    whole("max_new_tokens", max_new_tokens, 8)


@dataclasses.dataclass
class _Steps:
    progress: Callable[[int, int], None]
    of: int
    done: int = 0

    def finish(self) -> None:
        self.done += 1
        self.progress(self.done, self.of)


def _spread(prompts: Sequence[list[int]], batch: int) -> list[list[int]]:
    """``batch`` of the prompts, whose lengths are spread evenly; one prompt has the median length."""
    order = sorted(prompts, key=len)
    places = (np.arange(batch) + 0.5) / batch * len(order)
    return [order[int(place)] for place in places]
