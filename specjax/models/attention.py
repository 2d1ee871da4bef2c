"""Attention in two parts, merged by their log-sum-exp: the committed past, and the nodes that are not committed yet.

The past needs no mask but a length per row, so its cost can follow what the cache holds; the nodes are few, and a dense mask
gives them any tree. This file and ``cache.py`` alone know how the cache is laid out: keys and values [B, K, T, D].
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

BLOCK = 128
"""Positions of the past that one turn of the loop reads, on platforms that read it in turns."""

_NEVER = -1e30  # finite: an empty past must not make NaN


@struct.dataclass
class Partial:
    """A softmax-weighted sum that is not normalised yet: values float32 [B, K, M, D], largest score and weight sum [B, K, M]."""

    values: jax.Array
    top: jax.Array
    weight: jax.Array


def attend(
    q: jax.Array, past: tuple | None, length: jax.Array, rows: tuple, mask: jax.Array, positions: jax.Array, window: int | None
) -> jax.Array:
    """Attention of N nodes over the cache and over uncommitted rows.

    Args:
      q: [B, N, K, G, D], G query heads to a key head.
      past: keys and values [B, K, T, D] of the cache, or None where there is none (training, scoring).
      length: int32 [B], valid positions of the past.
      rows: keys and values [B, K, M, D] that are not in the cache, the nodes' own last.
      mask: bool [B, N, M] or [N, M]: which rows a node sees.
      positions: int32 [B, N] of the nodes.
      window: how many positions back a node sees, itself included; None for all. Applied to the past only: the mask is the
        caller's to restrict.

    Returns float32 [B, N, K * G * D].
    """
    B, N, K, G, D = q.shape
    q = (q * D**-0.5).astype(rows[0].dtype).transpose(0, 2, 1, 3, 4).reshape(B, K, N * G, D)
    out = _partial(q, *rows, jnp.repeat(jnp.broadcast_to(mask, (B, *mask.shape[-2:])), G, 1)[:, None])
    if past is not None:
        out = _merge(out, _attend_past(q, *past, length, jnp.repeat(positions, G, 1), window))
    out = out.values / out.weight[..., None]
    return out.reshape(B, K, N, G, D).transpose(0, 2, 1, 3, 4).reshape(B, N, K * G * D)


def _attend_past(q, k, v, length, positions, window) -> Partial:
    """Over the valid part of the cache. On CPU in blocks up to the longest row, so that capacity costs nothing; elsewhere in
    one masked product, whose capacity the caller keeps near the content by buckets: a loop would wait for the host there."""
    return lax.platform_dependent(
        q, k, v, length, positions,
        cpu=lambda *args: _past_in_blocks(*args, window),
        default=lambda *args: _past_at_once(*args, window),
    )  # fmt: skip


def _past_at_once(q, k, v, length, positions, window) -> Partial:
    return _partial(q, k, v, _visible(jnp.arange(k.shape[2]), length, positions, window))


def _past_in_blocks(q, k, v, length, positions, window) -> Partial:
    size = min(BLOCK, k.shape[2])

    def block(i, out):
        start = jnp.minimum(i * size, k.shape[2] - size)  # the last block may overlap the one before: mask what was seen
        at = start + jnp.arange(size)
        fresh = (at >= i * size) & _visible(at, length, positions, window)
        part = lambda leaf: lax.dynamic_slice_in_dim(leaf, start, size, axis=2)
        return _merge(out, _partial(q, part(k), part(v), fresh))

    first = 0 if window is None else jnp.maximum(jnp.min(length) - window + 1, 0) // size
    last = (jnp.max(length) + size - 1) // size
    nothing = Partial(jnp.zeros(q.shape, jnp.float32), jnp.full(q.shape[:-1], _NEVER), jnp.zeros(q.shape[:-1]))
    return lax.fori_loop(first, last, block, nothing)


def _visible(at: jax.Array, length: jax.Array, positions: jax.Array, window: int | None) -> jax.Array:
    """Bool [B, 1, M or 1, T]: which positions ``at`` [T] of the past a query sees."""
    seen = (at < length[:, None])[:, None, None]
    if window is not None:
        seen = seen & (at > positions[:, :, None] - window)[:, None]
    return seen


def _partial(q, k, v, mask) -> Partial:
    scores = jnp.einsum("bkmd,bktd->bkmt", q, k.astype(q.dtype), preferred_element_type=jnp.float32)
    scores = jnp.where(mask, scores, _NEVER)
    top = scores.max(-1)
    weights = jnp.exp(scores - top[..., None])
    values = jnp.einsum("bkmt,bktd->bkmd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return Partial(values, top, weights.sum(-1))


def _merge(a: Partial, b: Partial) -> Partial:
    top = jnp.maximum(a.top, b.top)
    scale_a, scale_b = jnp.exp(a.top - top), jnp.exp(b.top - top)
    values = a.values * scale_a[..., None] + b.values * scale_b[..., None]
    return Partial(values, top, a.weight * scale_a + b.weight * scale_b)
