"""Losses over windows of tokens. Means are taken per token, in nats."""

import jax
import jax.numpy as jnp
import optax

from ..models.decoder import Decoder


def scores(model: Decoder, tokens: jax.Array) -> jax.Array:
    """Logits float32 [B, S, V] of tokens int32 [B, S], without a cache."""
    B, S = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(S), (B, S))
    return model.logits(model(tokens, positions, jnp.tril(jnp.ones((S, S), bool))).hidden)


def next_token(model: Decoder, window: jax.Array) -> jax.Array:
    """Cross-entropy of each token of ``window`` int32 [B, S + 1] given those before it."""
    return optax.softmax_cross_entropy_with_integer_labels(scores(model, window[:, :-1]), window[:, 1:]).mean()


def distillation(draft: Decoder, window: jax.Array, target: Decoder) -> jax.Array:
    """Forward KL from the target's next-token distribution to the draft's (DistillSpec, Zhou et al. 2024, section 3)."""
    p = jax.lax.stop_gradient(jax.nn.log_softmax(scores(target, window[:, :-1])))
    q = jax.nn.log_softmax(scores(draft, window[:, :-1]))
    return (jnp.exp(p) * (p - q)).sum(-1).mean()
