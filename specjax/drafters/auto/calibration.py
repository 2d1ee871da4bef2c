"""The ratio of emitted to expected tokens in rounds with a tree, for ``Auto``.

Not all nodes of a tree have several children, so its expected tokens are too many.
"""

import jax
import jax.numpy as jnp
from flax import struct

from .constants import CONSTANTS


class Calibration(struct.PyTreeNode):
    """Decayed sums over the rounds of each arm.

    Attributes:
      emitted, expected: float32 [B, A], the emitted tokens, and the tokens that were expected.
    """

    emitted: jax.Array
    expected: jax.Array

    @staticmethod
    def start(batch: int, arms: int) -> "Calibration":
        """The sums before the first round."""
        full = lambda: jnp.full((batch, arms), CONSTANTS.calibration_tokens)
        return Calibration(full(), full())

    def ratio(self, done: jax.Array) -> jax.Array:
        """Float32 [A], emitted over expected tokens, at most 1.

        ``done``: bool [B], rows that do not count.
        """
        emitted, expected = (jnp.where(done[:, None], 0, x).sum(0) for x in (self.emitted, self.expected))
        return jnp.minimum(emitted / jnp.maximum(expected, 1e-9), 1)

    def after(self, arm: jax.Array, emitted: jax.Array, expected: jax.Array) -> "Calibration":
        """The sums after a round of number ``arm``; ``emitted`` and ``expected`` are [B].

        A round that was not chosen anew expects 0 tokens, and does not count.
        """
        ran = (jnp.arange(self.emitted.shape[1]) == arm) & (expected > 0)[:, None]
        add = lambda old, new: jnp.where(
            ran, CONSTANTS.calibration_memory * old + new[:, None].astype(jnp.float32), old
        )
        missing = jnp.where(ran, 0, self.expected - self.emitted)
        return Calibration(add(self.emitted, emitted) + CONSTANTS.forgiven * missing, add(self.expected, expected))
