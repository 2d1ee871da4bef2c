"""Seconds of the target's forward with all or some of its sub-layers, and the speed-up of drafting
with a part of them.
"""

import dataclasses
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import cache as kv
from ..models.decoder import Decoder, Skip

_FORWARDS, _REPEATS = 8, 7
"""Forwards of one timed run, and timed runs."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds of a forward, linear in what it runs: ``base + attentions * attention + MLPs * mlp``.

    Attributes:
      base, attention, mlp: seconds at one node, and for each further node. ``base`` is embedding,
        final norm and head.
    """

    base: tuple[float, float]
    attention: tuple[float, float]
    mlp: tuple[float, float]

    def __call__(self, nodes: int, attentions: int, mlps: int) -> float:
        one, more = (self.base[i] + attentions * self.attention[i] + mlps * self.mlp[i] for i in (0, 1))
        return one + (nodes - 1) * more


def measure_costs(model: Decoder, nodes: int, length: int, dtype) -> Costs:
    """Times one node and ``nodes``, after ``length`` committed tokens, with all sub-layers, without
    attentions and without MLPs.

    The six programs alternate. Each call runs several forwards on the device, and the median of the
    calls counts.
    """
    L = model.config.num_layers
    every = tuple(range(L))
    skips = Skip(), Skip(attention=every), Skip(mlp=every)
    cache = kv.empty(model.config, 1, length + nodes, dtype).replace(length=jnp.full(1, length))
    programs = {
        (n, skip): jax.jit(partial(_forwards, nodes=n, skip=skip)).lower(model, cache).compile()
        for n in (1, nodes)
        for skip in skips
    }
    seconds = {key: [] for key in programs}
    for repeat in range(_REPEATS + 1):
        for key, program in programs.items():
            began = time.perf_counter()
            jax.block_until_ready(program(model, cache))
            if repeat:  # the first run warms up
                seconds[key].append((time.perf_counter() - began) / _FORWARDS)
    return solve({key: float(np.median(times)) for key, times in seconds.items()}, nodes, L)


def solve(seconds: dict, nodes: int, L: int) -> Costs:
    """The costs from seconds by (nodes, skip), for one node and ``nodes``, with nothing, all
    attentions or all MLPs skipped.
    """
    parts = []
    for n in (1, nodes):
        whole, *without = (
            seconds[n, skip] for skip in (Skip(), Skip(attention=tuple(range(L))), Skip(mlp=tuple(range(L))))
        )
        attention, mlp = (max(whole - less, 0) / L for less in without)
        parts.append((max(whole - L * (attention + mlp), 0), attention, mlp))
    return Costs(*((one, max(many - one, 0) / (nodes - 1)) for one, many in zip(*parts)))


def speedup(alpha: float, drafted: int, skip: Skip, costs: Costs, num_layers: int) -> float:
    """Expected speed-up of rounds of ``drafted`` tokens over plain decoding (Leviathan et al. 2023,
    theorem 3.8).

    A round emits (1 - alpha^(drafted + 1)) / (1 - alpha) tokens, as in the theorem, if acceptances
    are independent. Its time is measured; the theorem takes ``drafted * c + 1``. The verify pass
    has more nodes than a plain step, and reuses the layers below the first skipped one.
    """
    L, first = num_layers, min(skip.attention + skip.mlp)
    part = costs(1, L - len(skip.attention), L - len(skip.mlp))
    newest = costs(1, first, first) - costs(1, 0, 0)  # the last drafted token needs key/value rows, but no logits
    verify = costs(drafted + 1, L - first, L - first)
    tokens = sum(alpha**i for i in range(drafted + 1))
    return tokens * costs(1, L, L) / (drafted * part + newest + verify)


def _forwards(model: Decoder, cache: kv.KVCache, nodes: int, skip: Skip) -> jax.Array:
    """Several forwards of ``nodes`` nodes.

    Each reads the likeliest tokens of the forward before.
    """
    positions = cache.length[:, None] + jnp.arange(nodes)
    mask = jnp.tril(jnp.ones((nodes, nodes), bool))

    def forward(_, tokens):
        out = model(tokens, positions, mask, cache, skip=skip)
        return jnp.argmax(model.logits(out.hidden), -1).astype(jnp.int32)

    return lax.fori_loop(0, _FORWARDS, forward, jnp.zeros((1, nodes), jnp.int32))
