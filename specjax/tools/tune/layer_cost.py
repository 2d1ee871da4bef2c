"""Measures the target's forward with and without sub-layers, for drafts by a part of the target."""

import dataclasses

import numpy as np

from ...models.decoder import Decoder, Skip
from .timers import alternate, forward_timer

_REPEATS = 7
"""The number of timed runs."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds of a forward: ``base + attentions * attention + mlps * mlp``.

    Attributes:
      base: the seconds of embedding, final norm and output matrix: at one node, and for each
        further node.
      attention, mlp: the same for one attention and one MLP.
    """

    base: tuple[float, float]
    attention: tuple[float, float]
    mlp: tuple[float, float]

    def __call__(self, nodes: int, attentions: int, mlps: int) -> float:
        one, more = (self.base[i] + attentions * self.attention[i] + mlps * self.mlp[i] for i in (0, 1))
        return one + (nodes - 1) * more


def measure_costs(model: Decoder, nodes: int, length: int, dtype) -> Costs:
    """Times forwards after ``length`` committed tokens, and solves for the ``Costs``.

    There are six programs: one node and ``nodes`` nodes, each with all sub-layers, without
    attentions, and without MLPs. They alternate, and the median of each counts.
    """
    L = model.config.num_layers
    every = tuple(range(L))
    timers = {
        (n, skip): forward_timer(model, length, dtype, nodes=n, skip=skip)
        for n in (1, nodes)
        for skip in (Skip(), Skip(attention=every), Skip(mlp=every))
    }
    seconds = alternate(timers, _REPEATS)
    return solve({key: float(np.median(times)) for key, times in seconds.items()}, nodes, L)


def solve(seconds: dict, nodes: int, L: int) -> Costs:
    """The costs of ``L`` layers from measured seconds by (nodes, skip).

    ``seconds`` has six entries: one node and ``nodes`` nodes, each with no sub-layer, all
    attentions or all MLPs skipped.
    """
    parts = []
    every = tuple(range(L))
    for n in (1, nodes):
        whole, *without = (seconds[n, skip] for skip in (Skip(), Skip(attention=every), Skip(mlp=every)))
        attention, mlp = (max(whole - less, 0) / L for less in without)
        parts.append((max(whole - L * (attention + mlp), 0), attention, mlp))
    return Costs(*((one, max(many - one, 0) / (nodes - 1)) for one, many in zip(*parts)))


def speedup(alpha: float, drafted: int, skip: Skip, costs: Costs, num_layers: int) -> float:
    """The expected speed-up of rounds with ``drafted`` tokens over plain decoding.

    As in theorem 3.8 of Leviathan et al. (2023), a round emits
    (1 - alpha^(drafted + 1)) / (1 - alpha) tokens if acceptances are independent. The theorem takes
    ``drafted * c + 1`` as the time of a round. Here the time is measured: the verify pass has more
    nodes than a plain step, and it reuses the layers below the first skipped layer.
    """
    L = num_layers
    first = min(skip.attention + skip.mlp)
    part = costs(1, L - len(skip.attention), L - len(skip.mlp))
    newest = costs(1, first, first) - costs(1, 0, 0)  # The last drafted token needs key/value rows but no logits.
    verify = costs(drafted + 1, L - first, L - first)
    tokens = sum(alpha**i for i in range(drafted + 1))
    return tokens * costs(1, L, L) / (drafted * part + newest + verify)
