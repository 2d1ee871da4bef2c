"""Probes of a drafter that has not paid.

They are seldom while it keeps losing, and come at once when the text changes.
"""

import jax
import jax.numpy as jnp
from flax import struct

from .constants import CONSTANTS


class Probing(struct.PyTreeNode):
    """The state of each row.

    Attributes:
      rest: float32 [B], rounds since the drafter last drafted.
      level: float32 [B], a probe is due after level / 0.02 rounds of its extra cost. The level
        doubles with each losing probe, is 1 after a winning probe, and falls after a change of
        the text.
      fast, slow: float32 [B], running means of the target's confidence: the probability of its
        likeliest token after each round. Plain decoding has it too, so it tells that a text has
        changed when nothing is drafted.
      observed: float32 [B], the rounds in these means.
    """

    rest: jax.Array
    level: jax.Array
    fast: jax.Array
    slow: jax.Array
    observed: jax.Array

    @staticmethod
    def start(batch: int) -> "Probing":
        """The state before the first round."""
        zeros = jnp.zeros(batch)
        return Probing(zeros, jnp.ones(batch), zeros, zeros, zeros)

    def is_due(self, extra: jax.Array) -> jax.Array:
        """Bool [B], whether to probe now.

        ``extra``: float32, the time that a probe loses, in best rounds.
        """
        return self.rest >= self.level * extra / CONSTANTS.probe_budget

    @property
    def changed(self) -> jax.Array:
        """Bool [B], whether the text has changed since the last probe."""
        return self.level < 1

    def tried(self, ran: jax.Array, won: jax.Array) -> "Probing":
        """The state after a round in which the drafter drafted for the rows ``ran``.

        ``won``: bool [B], whether all its drafts were accepted. A drafter that also ran in the
        round before was no probe.
        """
        probed = jnp.where(won, 1.0, jnp.clip(2 * self.level, 1, CONSTANTS.most_level))
        level = jnp.where(self.rest > 0, probed, 1.0)
        return self.replace(rest=jnp.where(ran, 0, self.rest + 1), level=jnp.where(ran, level, self.level))

    def observe(self, confidence: jax.Array) -> "Probing":
        """The state after a round whose last distribution had this ``confidence``, float32 [B]."""
        observed = self.observed + 1  # The first rounds weigh the same, so that the very first does not set the mean.
        mean = lambda old, memory: old + jnp.maximum(1 - memory, 1 / observed) * (confidence - old)
        fast = mean(self.fast, CONSTANTS.fast)
        slow = mean(self.slow, CONSTANTS.slow)
        changed = jnp.abs(fast - slow) > CONSTANTS.jump
        return self.replace(
            observed=observed,
            fast=fast,
            slow=jnp.where(changed, fast, slow),
            level=jnp.where(changed, jnp.minimum(self.level, CONSTANTS.changed_level), self.level),
        )


def confidence(logits: jax.Array, verdict) -> jax.Array:
    """Float32 [B], the target's highest probability at the end of the path, before any option."""
    after = logits[:, 0]
    if logits.shape[1] > 1:  # XLA:CPU copies the logits of a lookup, so a plain round has none
        last = jnp.take_along_axis(verdict.path, jnp.maximum(verdict.length - 1, 0)[:, None], 1)
        after = jnp.take_along_axis(logits, last[:, :, None], 1)[:, 0]
    after = after.astype(jnp.float32)
    return 1 / jnp.exp(after - after.max(-1, keepdims=True)).sum(-1)
