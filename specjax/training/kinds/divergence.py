"""The losses between a target's and a drafter's distribution that recipes weigh."""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax

from .. import losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Divergence:
    """A weighted sum of losses (DistillSpec, 2310.08461, section 3; LK losses, 2602.23881).

    Attributes:
      ce: the weight of the cross-entropy with the text.
      forward_kl, reverse_kl, tv, lk_alpha, lk_lambda: the weights of the losses of these names.
      lk_scale, lk_fall: the options of ``losses.lk_lambda``.
    """

    ce: float = 0.0
    forward_kl: float = 1.0
    reverse_kl: float = 0.0
    tv: float = 0.0
    lk_alpha: float = 0.0
    lk_lambda: float = 0.0
    lk_scale: float = 1.0
    lk_fall: float = 3.0

    @property
    def terms(self) -> list[tuple[float, Callable[[jax.Array, jax.Array], jax.Array]]]:
        """The losses of both distributions that have a weight, with it."""
        lk_lambda = partial(losses.lk_lambda, scale=self.lk_scale, fall=self.lk_fall)
        terms = [
            (self.forward_kl, losses.forward_kl),
            (self.reverse_kl, losses.reverse_kl),
            (self.tv, losses.total_variation),
            (self.lk_alpha, losses.lk_alpha),
            (self.lk_lambda, lk_lambda),
        ]
        return [(weight, loss) for weight, loss in terms if weight]

    def of_logits(self, p: jax.Array, q: jax.Array, label: jax.Array) -> jax.Array:
        """The loss [B, N] of the drafter's logits q [B, N, V].

        Args:
          p: the target's logits [B, N, V]. Without ``terms`` they are not read.
          label: the tokens of the text, int32 [B, N]. A label below 0 has no cross-entropy.
        """
        total = jnp.zeros(label.shape)
        if self.ce:
            nats = optax.softmax_cross_entropy_with_integer_labels(q, jnp.maximum(label, 0))
            total += self.ce * jnp.where(label < 0, 0, nats)
        for weight, loss in self.terms:
            total += weight * loss(p, q)
        return total
