"""Losses over windows of tokens, in nats: of language models, and the ways to compare a draft's scores with the target's."""

import jax
import jax.numpy as jnp
import optax

from ..models.attention import Seen
from ..models.decoder import Decoder, Output

_SCORES = 1 << 25
"""How many logits are in memory at a time; more rows than that go piece by piece, and are computed again for the gradient."""


def forward(model: Decoder, tokens: jax.Array, taps: tuple[int, ...] = ()) -> Output:
    """The forward of tokens int32 [B, S] without a cache."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return model(tokens, positions, Seen.causal(tokens.shape[1]), taps=taps)


def scores(model: Decoder, tokens: jax.Array) -> jax.Array:
    """Logits float32 [B, S, V] of tokens int32 [B, S], without a cache."""
    return model.logits(forward(model, tokens).hidden)


def next_token(model: Decoder, window: jax.Array) -> jax.Array:
    """Cross-entropy of each token of ``window`` int32 [B, S + 1] given those before it."""
    return optax.softmax_cross_entropy_with_integer_labels(scores(model, window[:, :-1]), window[:, 1:]).mean()


def distillation(draft: Decoder, window: jax.Array, target: Decoder) -> jax.Array:
    """Forward KL from the target's next-token distribution to the draft's (DistillSpec, Zhou et al. 2024, section 3)."""
    return forward_kl(jax.lax.stop_gradient(scores(target, window[:, :-1])), scores(draft, window[:, :-1])).mean()


# Each of the following takes logits p of the target and q of the draft, [..., V], and returns [...].


def soft_cross_entropy(p: jax.Array, q: jax.Array) -> jax.Array:
    """Cross-entropy of q under the target's distribution: forward KL and the target's entropy, of which q has no part."""
    return jax.nn.logsumexp(q, -1) - (jax.nn.softmax(p) * q).sum(-1)


def forward_kl(p: jax.Array, q: jax.Array) -> jax.Array:
    """KL(P || Q)."""
    log_p = jax.nn.log_softmax(p)
    return (jnp.exp(log_p) * (log_p - jax.nn.log_softmax(q))).sum(-1)


def reverse_kl(p: jax.Array, q: jax.Array) -> jax.Array:
    """KL(Q || P)."""
    return forward_kl(q, p)


def acceptance(p: jax.Array, q: jax.Array) -> jax.Array:
    """How probable it is that a token drawn from Q is accepted: the sum of min(P, Q) (Leviathan et al. 2023, theorem 3.5)."""
    return jnp.minimum(jax.nn.softmax(p), jax.nn.softmax(q)).sum(-1)


def total_variation(p: jax.Array, q: jax.Array) -> jax.Array:
    """Half the sum of |P - Q|, which is how probable it is that a token is rejected."""
    return 0.5 * jnp.abs(jax.nn.softmax(p) - jax.nn.softmax(q)).sum(-1)


def lk_alpha(p: jax.Array, q: jax.Array) -> jax.Array:
    """Minus the logarithm of the acceptance probability (LK losses, 2602.23881)."""
    return -jnp.log(acceptance(p, q) + 1e-8)


def lk_lambda(p: jax.Array, q: jax.Array, scale: float, fall: float) -> jax.Array:
    """From forward KL where little is accepted to total variation where much is: w KL + (1 - w) (1 - A), with w = scale exp(-fall A), of
    which no derivative is taken (LK losses, 2602.23881)."""
    accepted = acceptance(p, q)
    w = scale * jnp.exp(-fall * jax.lax.stop_gradient(accepted))
    return w * forward_kl(p, q) + (1 - w) * (1 - accepted)


def in_pieces(function, vocab_size: int, *arrays: jax.Array) -> jax.Array:
    """``function(*arrays)`` of arrays [B, N, ...], a value [B, N] for each row, with no more than ``_SCORES`` logits at a time."""
    B, N = arrays[0].shape[:2]
    size = max(1, min(N, _SCORES // (B * vocab_size)))
    if size == N:
        return function(*arrays)
    count = -(-N // size)

    def pieces(x):  # [count, B, size, ...]
        x = jnp.pad(x, [(0, count * size - N if axis == 1 else 0) for axis in range(x.ndim)])
        return jnp.moveaxis(x.reshape(B, count, size, *x.shape[2:]), 1, 0)

    values = jax.lax.map(jax.checkpoint(lambda part: function(*part)), tuple(map(pieces, arrays)))
    return jnp.moveaxis(values, 0, 1).reshape(B, count * size)[:, :N]
