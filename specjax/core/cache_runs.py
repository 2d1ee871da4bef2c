"""Runs of neighbouring positions, read from the arrays of a cache."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from ..parallel import each_part_of_heads
from .cache import POSITIONS


def take_runs(leaf: jax.Array, starts: jax.Array, size: int) -> jax.Array:
    """Runs of ``size`` positions, [B, K, N * size, D], from an array [B, K, T, D] of a cache.

    Args:
      starts: int32 [B, K or 1, N], the first position of each run; with 1 all key heads have the
        same runs. A run must not reach beyond T.
    """
    in_parts = partial(each_part_of_heads, partial(_take_run_by_run, size=size))
    return lax.platform_dependent(leaf, starts, tpu=in_parts, default=partial(_take_at_once, size=size))


def _take_at_once(leaf: jax.Array, starts: jax.Array, *, size: int) -> jax.Array:
    places = (starts[..., None] + jnp.arange(size)).reshape(*starts.shape[:2], -1)
    return jnp.take_along_axis(leaf, places[..., None], POSITIONS, mode="clip")


def _take_run_by_run(leaf: jax.Array, starts: jax.Array, *, size: int) -> jax.Array:
    """Reads one slice for each run, in a loop. XLA:TPU copies the cache for a gather."""
    B, K, _, D = leaf.shape
    _, heads, N = starts.shape

    def take(run):
        b = run // (heads * N)
        head = run // N % heads
        start = starts[b, head, run % N]
        return lax.dynamic_slice(leaf, (b, head, start, 0), (1, K // heads, size, D))[0]

    runs = lax.map(take, jnp.arange(B * heads * N)).reshape(B, heads, N, K // heads, size, D)
    return jnp.moveaxis(runs, 3, 2).reshape(B, K, N * size, D)
