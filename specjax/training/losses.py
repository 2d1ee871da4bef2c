"""Losses over windows of tokens, in nats.

Cross-entropies of language models, and divergences between the distributions of a target and a
draft.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax

from ..models.attention import Seen
from ..models.decoder import Decoder, Output

MOST_LOGITS = 1 << 25
"""The number of logits that ``map_pieces`` keeps in memory at a time."""


def forward(model: Decoder, tokens: jax.Array, taps: tuple[int, ...] = ()) -> Output:
    """The model's output for tokens int32 [B, S], without a cache."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return model(tokens, positions, Seen.causal(tokens.shape[1]), taps=taps)


def scores(model: Decoder, tokens: jax.Array) -> jax.Array:
    """Logits float32 [B, S, V] of tokens int32 [B, S], without a cache."""
    return model.logits(forward(model, tokens).hidden)


def next_token(model: Decoder, window: jax.Array) -> jax.Array:
    """The mean cross-entropy of each next token in ``window`` int32 [B, S + 1]."""
    return optax.softmax_cross_entropy_with_integer_labels(scores(model, window[:, :-1]), window[:, 1:]).mean()


def distillation(draft: Decoder, window: jax.Array, target: Decoder) -> jax.Array:
    """The mean forward KL from the target's next-token distribution to the draft's.

    DistillSpec, 2310.08461, section 3. No gradient flows into the target.
    """
    return forward_kl(jax.lax.stop_gradient(scores(target, window[:, :-1])), scores(draft, window[:, :-1])).mean()


def missed(target: Decoder, hidden: jax.Array, drafts: Sequence[Decoder], tokens: jax.Array) -> jax.Array:
    """Bool [B, S], True where the target's likeliest next token is the likeliest of no draft.

    SpecInfer, 2305.09781, section 3: collective boost-tuning.

    Args:
      hidden: the target's hidden states for ``tokens``, [B, S, E].
      tokens: int32 [B, S].
    """
    rows = (hidden, *(jax.lax.stop_gradient(forward(draft, tokens).hidden) for draft in drafts))

    def predicted(hidden, *rows):
        right = target.logits(hidden).argmax(-1)
        return jnp.any(jnp.stack([draft.logits(row).argmax(-1) == right for draft, row in zip(drafts, rows)]), 0)

    return ~map_pieces(predicted, target.config.vocab_size, *rows)


def cross_entropy(
    q: jax.Array, label: jax.Array, target: Decoder, target_hidden: jax.Array, teacher: float
) -> jax.Array:
    """The cross-entropy [B, N] of a drafter with the text and with the target's distribution.

    Args:
      q: the drafter's logits [B, N, V].
      label: the tokens of the text, int32 [B, N].
      target: the target, which turns its hidden states into logits.
      target_hidden: the target's hidden states that predict these tokens, [B, N, E].
      teacher: the weight of the target's distribution. The weight of the text is 1 - ``teacher``.
    """
    hard = optax.softmax_cross_entropy_with_integer_labels(q, label) if teacher < 1 else jnp.float32(0)
    soft = soft_cross_entropy(target.logits(target_hidden), q) if teacher > 0 else jnp.float32(0)
    return (1 - teacher) * hard + teacher * soft


# The functions below take logits p of the target and q of the draft, [..., V], and return [...].


def soft_cross_entropy(p: jax.Array, q: jax.Array) -> jax.Array:
    """The cross-entropy of Q under P: KL(P || Q) plus the entropy of P, which is constant in q."""
    return jax.nn.logsumexp(q, -1) - (jax.nn.softmax(p) * q).sum(-1)


def forward_kl(p: jax.Array, q: jax.Array) -> jax.Array:
    """KL(P || Q)."""
    log_p = jax.nn.log_softmax(p)
    return (jnp.exp(log_p) * (log_p - jax.nn.log_softmax(q))).sum(-1)


def reverse_kl(p: jax.Array, q: jax.Array) -> jax.Array:
    """KL(Q || P)."""
    return forward_kl(q, p)


def acceptance(p: jax.Array, q: jax.Array) -> jax.Array:
    """The probability that a token drawn from Q is accepted: the sum of min(P, Q).

    Leviathan et al., 2211.17192, theorem 3.5.
    """
    return jnp.minimum(jax.nn.softmax(p), jax.nn.softmax(q)).sum(-1)


def total_variation(p: jax.Array, q: jax.Array) -> jax.Array:
    """Half the sum of |P - Q|: the probability that a token drawn from Q is rejected."""
    return 0.5 * jnp.abs(jax.nn.softmax(p) - jax.nn.softmax(q)).sum(-1)


def lk_alpha(p: jax.Array, q: jax.Array) -> jax.Array:
    """Minus the logarithm of the acceptance probability (LK losses, 2602.23881)."""
    return -jnp.log(acceptance(p, q) + 1e-8)


def lk_lambda(p: jax.Array, q: jax.Array, scale: float, fall: float) -> jax.Array:
    """A mix: mostly forward KL where acceptance A is low, mostly total variation where it is high.

    It is w KL + (1 - w) (1 - A), with w = scale exp(-fall A). No gradient flows through w (LK
    losses, 2602.23881).
    """
    accepted = acceptance(p, q)
    w = scale * jnp.exp(-fall * jax.lax.stop_gradient(accepted))
    return w * forward_kl(p, q) + (1 - w) * (1 - accepted)


def top_kl(ids: jax.Array, log_p: jax.Array, q: jax.Array) -> jax.Array:
    """KL(P || Q) [...] over the likeliest tokens of P, with all other tokens as one outcome.

    It is at most the KL over the whole vocabulary.

    Args:
      ids, log_p: int32 and float32 [..., K], the tokens and their log-probabilities under P; minus
        infinity for entries that do not count.
      q: the draft's logits [..., V].
    """
    counts = log_p > -jnp.inf
    log_q = jnp.take_along_axis(jax.nn.log_softmax(q), ids, -1)
    p = jnp.exp(log_p)
    log_p = jnp.where(counts, log_p, 0.0)
    listed = jnp.where(counts, p * (log_p - log_q), 0.0).sum(-1)
    p_rest = jnp.maximum(1 - p.sum(-1), 1e-6)
    q_rest = jnp.maximum(1 - jnp.where(counts, jnp.exp(log_q), 0.0).sum(-1), 1e-6)
    return listed + p_rest * (jnp.log(p_rest) - jnp.log(q_rest))


def clipped_surrogate(q: jax.Array, action: jax.Array, old: jax.Array, advantage: jax.Array, clip: float) -> jax.Array:
    """-min(r A, clip(r, 1 - e, 1 + e) A) [...], with r the ratio of probabilities of ``action``.

    PPO, 1707.06347, equation 7.

    Args:
      q: the policy's logits [..., V].
      action: int32 [...], the tokens drawn.
      old: float32 [...], their log-probabilities under the policy that drew them.
      advantage: float32 [...], A.
      clip: e.
    """
    new = jnp.take_along_axis(jax.nn.log_softmax(q), action[..., None], -1)[..., 0]
    ratio = jnp.exp(new - old)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def weighted_mean(values: jax.Array, weights: jax.Array) -> jax.Array:
    """The mean of ``values`` with ``weights`` of the same shape; 0 where all weights are 0."""
    weights = weights.astype(jnp.float32)
    return (values * weights).sum() / jnp.maximum(weights.sum(), 1e-9)


def map_pieces(function: Callable[..., jax.Array], vocab_size: int, *arrays: jax.Array) -> jax.Array:
    """Computes ``function(*arrays)`` [B, N] of arrays [B, N, ...] with little memory.

    ``function`` makes ``vocab_size`` logits for each of the N places. Where these are more than
    ``MOST_LOGITS`` in all, the places are computed piece by piece, and the gradient computes their
    logits again.
    """
    B, N = arrays[0].shape[:2]
    size = max(1, min(N, MOST_LOGITS // (B * vocab_size)))
    if size == N:
        return function(*arrays)
    count = -(-N // size)

    def split(x):  # [count, B, size, ...]
        x = jnp.pad(x, [(0, count * size - N if axis == 1 else 0) for axis in range(x.ndim)])
        return jnp.moveaxis(x.reshape(B, count, size, *x.shape[2:]), 1, 0)

    values = jax.lax.map(jax.checkpoint(lambda part: function(*part)), tuple(map(split, arrays)))
    return jnp.moveaxis(values, 0, 1).reshape(B, count * size)[:, :N]
