"""Log-probabilities of the emitted tokens, recorded round by round."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from .selection import likeliest


class Logprobs(struct.PyTreeNode):
    """Log-probabilities of the emitted tokens, under the model and under the sampling policy.

    Those of the model are the target's before any option is applied; vLLM calls them raw_logprobs.
    Those of the policy are the target's after all options: the law of the drawn token. vLLM calls
    them processed_logprobs.

    Attributes:
      chosen: float32 [B, T], the log-probability under the model of the token at the same place of
        ``DecodeState.tokens``; 0 in the prompt.
      policy: float32 [B, T], the same under the policy.
      top_ids, top: int32 and float32 [B, T, n], the n likeliest tokens of the model at each place
        and their log-probabilities.
    """

    chosen: jax.Array
    policy: jax.Array
    top_ids: jax.Array
    top: jax.Array


def empty_logprobs(B: int, T: int, n: int) -> Logprobs:
    """Log-probabilities for B rows of T places and n likeliest tokens at each, all zero."""
    return Logprobs(jnp.zeros((B, T)), jnp.zeros((B, T)), jnp.zeros((B, T, n), jnp.int32), jnp.zeros((B, T, n)))


def record(
    old: Logprobs, logits: jax.Array, p: jax.Array, path: jax.Array, emitted: jax.Array, start: jax.Array
) -> Logprobs:
    """``old`` with the tokens of one round written from place ``start`` [B] on.

    Places after the last emitted token are void.

    Args:
      logits: [B, N, V], the target's logits after each node, before any option is applied.
      p: float32 [B, N, V], the distributions after each node, after all options.
      path, emitted: int32 [B, P], the accepted nodes, and the token emitted after each of them.
    """
    after = jax.nn.log_softmax(jnp.take_along_axis(logits, path[..., None], 1).astype(jnp.float32))
    chosen = jnp.take_along_axis(after, emitted[..., None], 2)[..., 0]
    policy = jnp.log(jnp.take_along_axis(jnp.take_along_axis(p, path[..., None], 1), emitted[..., None], 2)[..., 0])
    top, top_ids = likeliest(after, old.top.shape[-1])
    write = jax.vmap(lambda buffer, new, at: lax.dynamic_update_slice_in_dim(buffer, new, at, 0))
    new = Logprobs(chosen, policy, top_ids, top)
    return jax.tree.map(lambda buffer, values: write(buffer, values, start), old, new)
