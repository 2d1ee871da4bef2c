"""The attention over a part of the rows, and the sum of two parts by log-sum-exp."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ..core.stored_rows import EightBitRows, HalfRows
from ..kernels.gpu.attention import NEVER


class Partial(struct.PyTreeNode):
    """The softmax-weighted sum over a part of the rows, not yet normalised.

    Attributes:
      values: float32 [B, K, M, D], the weighted sum.
      top: float32 [B, K, M], the largest score.
      weight: float32 [B, K, M], the sum of the weights.
    """

    values: jax.Array
    top: jax.Array
    weight: jax.Array


def attend_to_nothing(q: jax.Array) -> Partial:
    """The attention of q [B, K, M, D] to no rows."""
    zeros = jnp.zeros(q.shape[:-1])
    return Partial(jnp.zeros(q.shape), zeros + NEVER, zeros)


def attend_to_sink(score: jax.Array, like: Partial) -> Partial:
    """The attention to a row of zeros with these scores, [K, 1, G]."""
    top = like.top.reshape(*like.top.shape[:2], -1, score.shape[-1])
    top = jnp.broadcast_to(score, top.shape).reshape(like.top.shape)
    return Partial(jnp.zeros_like(like.values), top, jnp.ones_like(like.weight))


def attend_to_part(q, k, v, mask, softcap: float | None, bias: jax.Array | None = None) -> Partial:
    """Attention of q [B, K, M, D] over k and v [B, K, T, D].

    ``bias`` [B, K, M, T] is added to the scores; or None. Scales multiply scores and weights, not
    vectors.
    """
    k, key_scales = _numbers(k)
    v, value_scales = _numbers(v)
    scores = jnp.einsum("bkmd,bktd->bkmt", q, k.astype(q.dtype), preferred_element_type=jnp.float32)
    if key_scales is not None:
        scores = scores * key_scales
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    scores = jnp.where(mask, scores, NEVER)
    top = lax.stop_gradient(scores.max(-1))  # the result does not depend on this number
    weights = jnp.exp(scores - top[..., None])
    scaled = weights
    if value_scales is not None:
        scaled = weights * value_scales
        v = v.astype(q.dtype)
    values = jnp.einsum("bkmt,bktd->bkmd", scaled.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return Partial(values, top, weights.sum(-1))


def _numbers(rows: jax.Array | EightBitRows | HalfRows) -> tuple[jax.Array, jax.Array | None]:
    """Keys or values without their scales, and the scales float32 [B, K, 1, T].

    The scales are None for keys or values without scales.
    """
    if isinstance(rows, HalfRows):
        return rows.values, None
    if not isinstance(rows, EightBitRows):
        return rows, None
    return rows.values, rows.scales.swapaxes(2, 3).astype(jnp.float32)


def merge(a: Partial, b: Partial) -> Partial:
    """The attention over the rows of both parts."""
    top = jnp.maximum(a.top, b.top)
    scale_a = jnp.exp(a.top - top)
    scale_b = jnp.exp(b.top - top)
    values = a.values * scale_a[..., None] + b.values * scale_b[..., None]
    return Partial(values, top, a.weight * scale_a + b.weight * scale_b)
