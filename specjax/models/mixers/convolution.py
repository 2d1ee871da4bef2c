"""The short causal convolution along the paths of a tree, which mixers with a state have."""

import jax
import jax.numpy as jnp

from ...core.recurrence import lags
from ..attention import Seen


def convolve(inputs: jax.Array, mask: jax.Array, weights: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """The convolution over the last W tokens of the path to each of N nodes.

    Args:
      inputs: float32 [B, K, W - 1 + M, C / K], those of the state and of all rows.
      mask: bool [B, N, M], the uncommitted rows that each node sees.
      weights, bias: [C, 1, W] and [C].

    Returns float32 [B, K, N, C / K].
    """
    B, N, _ = mask.shape
    K, W = inputs.shape[1], weights.shape[2]
    mask = jnp.concatenate([jnp.ones((B, N, W - 1), bool), mask], -1)  # all nodes see the state's inputs
    lag = jnp.where(mask, lags(mask), -1)
    place = jnp.argmax(lag[:, :, None] == jnp.arange(W - 1, -1, -1)[:, None], -1)
    window = jnp.take_along_axis(inputs, place.reshape(B, 1, -1, 1), 2).reshape(B, K, N, W, -1)
    y = jnp.einsum("bknwc,kcw->bknc", window, weights.reshape(K, -1, W).astype(jnp.float32))
    return y if bias is None else y + bias.astype(jnp.float32).reshape(K, 1, -1)


def as_mask(mask: jax.Array | Seen, B: int, N: int, M: int) -> jax.Array:
    """Bool [B, N, M], the uncommitted rows that each node sees."""
    if isinstance(mask, Seen):
        assert mask.inner is None  # groups of nodes belong to trained heads, which have attention alone
        at = jnp.arange(M)
        first = 0 if mask.first is None else mask.first[..., None]
        mask = (at >= first) & (at < mask.limit[..., None])
    return jnp.broadcast_to(mask, (B, N, M))
