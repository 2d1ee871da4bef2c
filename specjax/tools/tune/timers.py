"""Times compiled programs that alternate, so that drift of the machine affects all equally."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...core import cache as kv
from ...core.selection import argmax
from ...models.decoder import Decoder, Skip

Name = TypeVar("Name")

_FORWARDS = 8
"""The number of forwards in a timed run."""

_NOTHING = Skip()


def alternate(
    timers: Mapping[Name, Callable[[], float]],
    repeats: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[Name, np.ndarray]:
    """Seconds [repeats] of each timer, in an order that rotates. A first run does not count.

    ``progress`` is called with the number of runs done and of all runs.
    """
    names = list(timers)
    runs = (repeats + 1) * len(timers)
    samples: dict[Name, list[float]] = {name: [] for name in names}
    for run in range(runs):
        turn, place = divmod(run, len(names))
        name = names[(turn + place) % len(names)]
        samples[name].append(timers[name]())
        progress(run + 1, runs)
    return {name: np.array(seconds[1:]) for name, seconds in samples.items()}


def forward_timer(
    model: Decoder, length: int, dtype, *, batch: int = 1, nodes: int = 1, skip: Skip = _NOTHING
) -> Callable[[], float]:
    """A function that runs compiled forwards of a model alone, and returns the seconds of one.

    Each forward reads the likeliest tokens of the forward before.

    Args:
      length: the number of committed tokens in each row of the cache.
      dtype: the type of the cache.
      batch, nodes: the number of rows, and of nodes in each row.
      skip: the sub-layers that the forwards skip.
    """
    cache = kv.empty(model.config, batch, length + nodes, dtype).replace(length=jnp.full(batch, length))
    program = jax.jit(partial(_forwards, nodes=nodes, skip=skip)).lower(model, cache).compile()

    def timed() -> float:
        start = time.perf_counter()
        jax.block_until_ready(program(model, cache))
        return (time.perf_counter() - start) / _FORWARDS

    return timed


def _forwards(model: Decoder, cache: kv.KVCache, nodes: int, skip: Skip) -> jax.Array:
    positions = cache.length[:, None] + jnp.arange(nodes)
    mask = jnp.tril(jnp.ones((nodes, nodes), bool))

    def forward(_, tokens):
        out = model(tokens, positions, mask, cache, skip=skip)
        return argmax(model.logits(out.hidden))

    return lax.fori_loop(0, _FORWARDS, forward, jnp.zeros((cache.length.size, nodes), jnp.int32))
