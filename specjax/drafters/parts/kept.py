"""The part of their expected tokens that rounds with a tree have emitted, for ``Auto``.

Not all nodes of a tree have several children, so its expected tokens are too many.
"""

import jax
import jax.numpy as jnp
from flax import struct

_WEIGHT = 16.0
"""The tokens of each row and arm before the first round, all of them emitted."""

_MEMORY = 0.97
"""The factor by which a round of an arm reduces the weight of its earlier rounds."""

_FORGIVEN = 0.01
"""The part of an arm's missing tokens that a round of another arm forgives."""


class Kept(struct.PyTreeNode):
    """Decayed sums over the rounds of each arm.

    Attributes:
      emitted, expected: float32 [B, A], the emitted tokens, and the tokens that were expected.
    """

    emitted: jax.Array
    expected: jax.Array

    @staticmethod
    def start(batch: int, arms: int) -> "Kept":
        """The sums before the first round."""
        return Kept(jnp.full((batch, arms), _WEIGHT), jnp.full((batch, arms), _WEIGHT))

    def part(self, done: jax.Array) -> jax.Array:
        """Float32 [A], the emitted part of the expected tokens, at most 1.

        ``done``: bool [B], rows that do not count.
        """
        emitted, expected = (jnp.where(done[:, None], 0, x).sum(0) for x in (self.emitted, self.expected))
        return jnp.minimum(emitted / jnp.maximum(expected, 1e-9), 1)

    def after(self, arm: jax.Array, emitted: jax.Array, expected: jax.Array) -> "Kept":
        """The sums after a round of number ``arm``; ``emitted`` and ``expected`` are [B].

        A round that was not chosen anew expects 0 tokens, and does not count.
        """
        ran = (jnp.arange(self.emitted.shape[1]) == arm) & (expected > 0)[:, None]
        add = lambda old, new: jnp.where(ran, _MEMORY * old + new[:, None].astype(jnp.float32), old)
        missing = jnp.where(ran, 0, self.expected - self.emitted)
        return Kept(add(self.emitted, emitted) + _FORGIVEN * missing, add(self.expected, expected))
