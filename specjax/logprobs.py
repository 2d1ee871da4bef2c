"""Log-probabilities of the emitted tokens, recorded round by round."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from .selection import likeliest


class Logprobs(struct.PyTreeNode):
    """Log-probabilities of the emitted tokens under the target, before any option is applied.

    vLLM calls them raw_logprobs.

    Attributes:
      chosen: float32 [B, T], the log-probability of the token at the same place of
        ``DecodeState.tokens``; 0 in the prompt.
      top_ids, top: int32 and float32 [B, T, n], the n likeliest tokens at each place and their
        log-probabilities.
    """

    chosen: jax.Array
    top_ids: jax.Array
    top: jax.Array


def empty_logprobs(B: int, T: int, n: int) -> Logprobs:
    """Log-probabilities for B rows of T places and n likeliest tokens at each, all zero."""
    return Logprobs(jnp.zeros((B, T)), jnp.zeros((B, T, n), jnp.int32), jnp.zeros((B, T, n)))


def record(old: Logprobs, logits: jax.Array, path: jax.Array, emitted: jax.Array, start: jax.Array) -> Logprobs:
    """``old`` with the tokens of one round written from place ``start`` [B] on.

    Places after the last emitted token are void.

    Args:
      logits: [B, N, V], the target's logits after each node, before any option is applied.
      path, emitted: int32 [B, P], the accepted nodes, and the token emitted after each of them.
    """
    after = jax.nn.log_softmax(jnp.take_along_axis(logits, path[..., None], 1).astype(jnp.float32))
    chosen = jnp.take_along_axis(after, emitted[..., None], 2)[..., 0]
    top, top_ids = likeliest(after, old.top.shape[-1])
    write = jax.vmap(lambda buffer, new, at: lax.dynamic_update_slice_in_dim(buffer, new, at, 0))
    return Logprobs(write(old.chosen, chosen, start), write(old.top_ids, top_ids, start), write(old.top, top, start))
