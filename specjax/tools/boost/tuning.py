"""Chooses a drafter and the length of its drafts by calls that alternate with plain decoding."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...checkpoints.load import LanguageModel
from ...drafters import own_options
from ...text.drafts import suits_auto
from ...text.generator import Generator
from ..evaluate.comparison import alternate_runs, interval, rate, seconds_of
from ..tune.auto import tune_auto
from .candidates import CANDIDATES
from .contest import MOST_DRAFTED, Measured

_FINALISTS = 3
"""The kinds whose lengths are timed."""


def choose(
    target: LanguageModel,
    drafts: Mapping[str, Any],
    measured: Mapping[str, Measured],
    prompts: Sequence[list[int]],
    tokens: int,
    costs,
) -> list[dict[str, Any]]:
    """The timed choices, the fastest first, each an object for JSON.

    "method" and "options" are arguments of ``Generator``, "draft" the name of a kind or None,
    "speedup" and "interval" the time of plain decoding over the choice's. The best kinds are timed
    at the best length and at those beside it. Method auto is timed with the best trained drafter,
    by times that are measured before.

    Args:
      drafts: the trained drafter of each kind that has one.
      measured: the acceptance of each kind.
      prompts: held-out prompts, token ids.
      tokens: the new tokens after each prompt.
      costs: the file for the times of auto.
    """
    best = sorted(measured, key=lambda name: -measured[name].speedup)[:_FINALISTS]
    choices = [choice for name in best for choice in _lengths(name, measured[name])]
    trained = [name for name in best if name in drafts]
    draft = drafts[trained[0]] if trained else None
    if suits_auto(target, [] if draft is None else [draft]):
        tune_auto(target, draft, file=costs, batches=(1,), anew=not costs.exists())
        auto = {"method": "auto", "draft": trained[0] if trained else None, "options": {"costs": str(costs)}}
        choices.append(auto)
    generators = {-1: Generator(target, "none")}
    for i, choice in enumerate(choices):
        draft = drafts.get(choice["draft"])
        generators[i] = Generator(target, choice["method"], draft, **choice["options"])
    _share_capacity(generators, prompts, tokens)
    runs = alternate_runs(generators, list(prompts), tokens, 1, lambda done, of: None)
    plain = seconds_of(runs[-1])
    for i, choice in enumerate(choices):
        seconds = seconds_of(runs[i])
        choice |= {"speedup": float(rate(plain, seconds)), "interval": interval(rate, plain, seconds)}
    return sorted(choices, key=lambda choice: -choice["speedup"])


def _lengths(name: str, measured: Measured) -> list[dict[str, Any]]:
    """The choices of a kind: its best length and those beside it."""
    candidate = CANDIDATES[name]
    draft = name if candidate.is_trained else None
    if "num_speculative_tokens" not in own_options(candidate.method):
        return [{"method": candidate.method, "draft": draft, "options": {}}]
    middle = max(measured.length, 1)
    lengths = sorted({max(middle - 1, 1), middle, min(middle + 1, MOST_DRAFTED)})
    options = [{"num_speculative_tokens": length} for length in lengths]
    return [{"method": candidate.method, "draft": draft, "options": each} for each in options]


def _share_capacity(generators: Mapping[Any, Generator], prompts: Sequence[list[int]], tokens: int) -> None:
    """Gives all generators caches of one size, so that they read and write as much."""
    path = max(generator.drafter.depth for generator in generators.values()) + 1
    room = max(map(len, prompts)) + tokens + path
    for generator in generators.values():
        generator.session.capacity = room
