"""Chooses a drafter, the shape of its drafts and the temperature at which it draws them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...checkpoints.load import LanguageModel
from ...core.stats import total
from ...drafters import own_options
from ...text.drafts import suits_auto
from ...text.generator import Generator
from ...text.round_times import read_costs, write_costs
from ..evaluate.comparison import alternate_runs, interval, rate, seconds_of
from ..tune.auto import tune_auto
from .candidates import CANDIDATES
from .contest import MOST_DRAFTED, Measured

_PLAIN = -1
"""The key of plain decoding among the choices."""

_FINALISTS = 3
"""The kinds whose lengths are timed."""

_TREE = {"tree_nodes": 8, "tree_top_k": 2, "tree_depth": 3}
"""A small tree, at least three levels deep. A round that scores more nodes costs a CPU much."""

_BATCHES = (1, 8)
"""The rows for which method auto knows the times of rounds."""

_TESTED = 3
"""The drafted tokens of a chain by which acceptance rates are measured."""

_SUREST = 0.99
"""The highest acceptance rate with which method auto begins."""

_NEAR = 0.95
"""Method auto is preferred from this share of the best speed-up on. It drafts less where drafts do
not pay: for many rows, and on texts that the draft does not know."""

_DRAFT_TEMPERATURES = (0.6, 0.8)
_TEMPERATURES = (0.7, 1.0)
_BETTER = 1.02
"""The least gain in accepted tokens for which a draft temperature is set."""


def choose(
    target: LanguageModel,
    drafts: Mapping[str, Any],
    measured: Mapping[str, Measured],
    prompts: Sequence[list[int]],
    tokens: int,
    costs,
) -> list[dict[str, Any]]:
    """The timed choices, the best first, each an object for JSON.

    "method" and "options" are arguments of ``Generator``, "draft" the name of a kind or None,
    "speedup" and "interval" the time of plain decoding over the choice's. The best kinds are timed
    at the best length and at those beside it, and with a tree where they draft trees. Method auto
    is timed with the best trained drafter, by times that are measured before. ``best_first`` orders
    the choices.

    Args:
      drafts: the trained drafter of each kind that has one.
      measured: the acceptance of each kind.
      prompts: held-out prompts, token ids.
      tokens: the new tokens after each prompt.
      costs: the file for the times of auto.
    """
    best = sorted(measured, key=lambda name: -measured[name].speedup)[:_FINALISTS]
    choices = [choice for name in best for choice in _shapes(name, measured[name])]
    trained = [name for name in best if name in drafts]
    draft = drafts[trained[0]] if trained else None
    if suits_auto(target, [] if draft is None else [draft]):
        tune_auto(target, draft, file=costs, batches=_BATCHES, anew=not costs.exists())
        if draft is not None:
            rates = measure_rates(target, CANDIDATES[trained[0]].method, draft, prompts, tokens)
            write_costs(costs, read_costs(costs) | {"rates": rates})
        auto = {"method": "auto", "draft": trained[0] if trained else None, "options": {"costs": str(costs)}}
        choices.append(auto)
    generators = {_PLAIN: Generator(target, "none")}
    for i, choice in enumerate(choices):
        draft = drafts.get(choice["draft"])
        generators[i] = Generator(target, choice["method"], draft, **choice["options"])
    _share_capacity(generators, prompts, tokens)
    runs = alternate_runs(generators, list(prompts), tokens, 1, lambda done, of: None)
    plain = seconds_of(runs[_PLAIN])
    for i, choice in enumerate(choices):
        seconds = seconds_of(runs[i])
        choice |= {"speedup": float(rate(plain, seconds)), "interval": interval(rate, plain, seconds)}
    return best_first(choices)


def measure_rates(target: LanguageModel, method: str, draft, prompts: Sequence[list[int]], tokens: int) -> list[float]:
    """The acceptance rates of chains at the temperatures 0 and 1, with which method auto begins.

    A token is tested if all tokens before it are accepted.
    """
    generator = Generator(target, method, draft, num_speculative_tokens=_TESTED)
    rates = []
    for temperature in (0.0, 1.0):
        results = [generator(p, max_new_tokens=tokens, temperature=temperature, seed=7) for p in prompts]
        stats = total([result.stats for result in results])
        tested = stats.target_calls + sum(stats.accepted_at[: _TESTED - 1])
        rates.append(min(stats.accepted / max(tested, 1), _SUREST))
    return rates


def best_first(choices: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The timed choices, the fastest first. Method auto comes before it if it is nearly as fast."""
    fastest = max(choice["speedup"] for choice in choices)

    def rank(choice: dict[str, Any]) -> tuple[bool, float]:
        is_steady = choice["method"] == "auto" and choice["speedup"] >= _NEAR * fastest
        return not is_steady, -choice["speedup"]

    return sorted(choices, key=rank)


def choose_draft_temperature(
    target: LanguageModel, choice: dict[str, Any], draft, prompts: Sequence[list[int]], tokens: int
) -> dict[str, Any]:
    """The choice, with the "draft_temperature" by which most drafted tokens are accepted.

    It stays as it is where the method draws no drafts, or where the requests' own temperature is as
    good.
    """
    if "draft_temperature" not in own_options(choice["method"]):
        return choice

    def measure(options: dict[str, Any]) -> float:
        generator = Generator(target, choice["method"], draft, **choice["options"], **options)
        temperatures = [_TEMPERATURES[i % len(_TEMPERATURES)] for i in range(len(prompts))]
        calls = zip(prompts, temperatures)
        stats = [generator(p, max_new_tokens=tokens, temperature=t, seed=7).stats for p, t in calls]
        return total(stats).mean_acceptance_length

    usual = measure({})
    lengths = {t: measure({"draft_temperature": t}) for t in _DRAFT_TEMPERATURES}
    best = max(lengths, key=lengths.__getitem__)
    if lengths[best] < _BETTER * usual:
        return choice
    return choice | {"options": choice["options"] | {"draft_temperature": best}}


def _shapes(name: str, measured: Measured) -> list[dict[str, Any]]:
    """The choices of a kind: its best length and those beside it, and a tree."""
    candidate = CANDIDATES[name]
    draft = name if candidate.is_trained else None
    known = own_options(candidate.method)
    if "num_speculative_tokens" not in known:
        return [{"method": candidate.method, "draft": draft, "options": {}}]
    middle = max(measured.length, 1)
    lengths = sorted({max(middle - 1, 1), middle, min(middle + 1, MOST_DRAFTED)})
    options: list[dict[str, int]] = [{"num_speculative_tokens": length} for length in lengths]
    if draft and _TREE.keys() <= set(known):
        options.append(_TREE | {"tree_depth": max(lengths[-1], _TREE["tree_depth"])})
    return [{"method": candidate.method, "draft": draft, "options": each} for each in options]


def _share_capacity(generators: Mapping[Any, Generator], prompts: Sequence[list[int]], tokens: int) -> None:
    """Gives all generators caches of one size, so that they read and write as much."""
    path = max(generator.drafter.depth for generator in generators.values()) + 1
    room = max(map(len, prompts)) + tokens + path
    for generator in generators.values():
        generator.session.capacity = room
