"""Attention of few nodes over the past on CPU, as a kernel that LLVM compiles for this processor.

XLA:CPU reads the past in a loop of small steps, whose start costs a small model more than their
work. ``past_attention_llvm`` has the kernel's code.
"""

import jax
import jax.numpy as jnp

from ..gpu.attention import Scores
from .product import is_installed, threads

_PARTS = 16
"""The fewest parts of many queries. XLA shares nine or more waiting calls among threads."""

_MOST, _MOST_ALONE = 18, 9
"""Queries of a key head, on several threads and on one.

XLA multiplies more of them faster than the kernel does.
"""


def fits(q: jax.Array, k: jax.Array, scores: Scores) -> bool:
    """Whether the kernel computes attention of q [B, K, M, D] over keys k [B, K, T, D].

    The result is False where XLA is faster. XLA cannot split a kernel over devices, so a mesh of
    several devices has none.
    """
    return (
        q.shape[2] <= (_MOST if threads() > 1 else _MOST_ALONE)
        and q.dtype == k.dtype == jnp.float32
        and k.shape[2] >= 16
        and k.shape[3] % 16 == 0
        and scores.window is None
        and scores.chunk is None
        and scores.softcap is None
        and jax.sharding.get_abstract_mesh().size <= 1
        and is_installed()
    )


def attend(own: tuple, q: jax.Array, k: jax.Array, v: jax.Array, length: jax.Array) -> tuple:
    """Attention over the valid positions of the past, merged with ``own``.

    The sums of a query depend neither on the other queries nor on the capacity T.

    Args:
      own: the three arrays of a ``Partial``, [B, K, M, D], [B, K, M] and [B, K, M].
      q: float32 [B, K, M, D].
      k, v: float32 [B, K, T, D].
      length: int32 [B].

    Returns the three arrays over both.
    """
    from . import llvm, past_attention_llvm  # need llvmlite

    B, K, M, D = q.shape

    def flat(x):
        return x.reshape(B * K, *x.shape[2:])

    values, top, weight = own
    joined = jnp.concatenate([values, top[..., None], weight[..., None]], axis=-1)
    operands = *map(flat, (q, k, v)), jnp.repeat(length, K), flat(joined)
    name = llvm.register(past_attention_llvm.past, D)
    queries = B * K * M
    together = past_attention_llvm.TOGETHER
    groups = -(-queries // together)
    parts = min(max(_PARTS, 2 * threads()), groups) if threads() > 1 and groups > _PARTS // 2 else 1
    bounds = [min(groups * i // parts * together, queries) for i in range(parts + 1)]

    def part(first: int, end: int) -> jax.Array:
        # XLA gives results that nobody reads one buffer, and then waits for each call.
        # So a call has a single result.
        shape = jax.ShapeDtypeStruct((end - first, D + 2), jnp.float32)
        return jax.ffi.ffi_call(name, shape, vmap_method="sequential")(*operands, first=first)

    merged = jnp.concatenate([part(*ends) for ends in zip(bounds, bounds[1:])]).reshape(B, K, M, D + 2)
    return merged[..., :D], merged[..., D], merged[..., D + 1]
