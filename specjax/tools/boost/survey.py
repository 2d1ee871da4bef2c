"""The first step of a boost: the cost of nodes on this device, and the kinds that may pay there."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...checkpoints.load import LanguageModel
from ...core.tree import expansion
from ...drafters import Plain
from ...models.quantised_weights import scheme_of
from ..tune.cost import Blank, round_timers
from ..tune.timers import alternate
from .candidates import CANDIDATES

NODES = (1, 2, 3, 4, 5, 6, 8)
"""The nodes of the timed rounds."""

_LENGTH = 256
_REPEATS = 7
_GAIN = 1.05
"""The least speed-up for which a kind is tried."""


@dataclasses.dataclass(frozen=True)
class RoundCost:
    """The time of a round in plain rounds.

    Attributes:
      nodes: numbers of scored nodes.
      ratios: the time of a round that scores so many, over that of a plain round.
    """

    nodes: Sequence[int]
    ratios: Sequence[float]

    def speedup(self, reached: Sequence[float], cost: float) -> tuple[float, int]:
        """The best speed-up over lengths of a chain, and that length; (1, 0) where no length pays.

        Args:
          reached: for each place of the draft, the share of rounds that accept it.
          cost: the time of drafting a token, in plain rounds.
        """
        best = (1.0, 0)
        for length in range(1, min(len(reached), max(self.nodes) - 1) + 1):
            tokens = 1 + sum(reached[:length])
            time = float(np.interp(length + 1, self.nodes, self.ratios)) + length * cost
            if tokens / time > best[0]:
                best = tokens / time, length
        return best


def measure_rounds(target: LanguageModel) -> RoundCost:
    """Times rounds of the target that score chains, without a draft."""
    chains = {n: Blank(expansion((1,) * (n - 1))) for n in NODES[1:]}
    timers = round_timers(target, None, {1: Plain()} | chains, length=min(_LENGTH, target.config.context // 4))
    samples = alternate(timers, _REPEATS)
    ratios = [float(np.median(samples[n] / samples[1])) for n in NODES]
    return RoundCost(NODES, ratios)


def survey(target: LanguageModel, names: Sequence[str]) -> dict[str, Any]:
    """Which of the kinds in ``names`` may pay on this device.

    Returns an object for JSON: "nodes" and "ratios" of ``RoundCost``, "promising", the names of the
    kinds that may pay, and "reasons", a sentence for each kind.
    """
    rounds = measure_rounds(target)
    promising = []
    reasons = {}
    for name in names:
        candidate = CANDIDATES[name]
        if name == "quantized_self" and scheme_of(target.model):
            reasons[name] = "the target's weights are packed already"
            continue
        cost = candidate.cost(target.config)
        reached = np.cumprod([candidate.acceptance] * (max(NODES) - 1))
        speedup, length = rounds.speedup(list(reached), cost)
        if speedup >= _GAIN:
            promising.append(name)
            reasons[name] = f"may give {speedup:.2f} times with drafts of {length}"
        else:
            reasons[name] = f"would need more than {100 * candidate.acceptance:.0f} % of its tokens accepted"
    return {"nodes": list(rounds.nodes), "ratios": list(rounds.ratios), "promising": promising, "reasons": reasons}
