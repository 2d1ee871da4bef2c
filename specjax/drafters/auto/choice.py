"""The choice of an arm: the most expected tokens over time."""

import dataclasses

import jax
import jax.numpy as jnp

from .arms import Arm, expected_tokens
from .constants import CONSTANTS


@dataclasses.dataclass(frozen=True)
class Outlook:
    """What the rows of a batch may expect of the arms.

    Attributes:
      arms: the arms, plain decoding first.
      ends_together: see ``Auto``.
      looked_up: float32 [B], the acceptance rate of the tokens looked up, 0 for none.
      chain, tree: float32 [B], the acceptance rates of the model's chains and trees.
      left: float32 [B], the tokens to come, 0 for a row that has ended.
      unread: float32, the most tokens of a row that the model has not read.
      seconds: float32 [A], the time of a round of each arm.
    """

    arms: tuple[Arm, ...]
    ends_together: bool
    looked_up: jax.Array
    chain: jax.Array
    tree: jax.Array
    left: jax.Array
    unread: jax.Array
    seconds: jax.Array

    def _of_sources(self) -> tuple[jax.Array, jax.Array]:
        """Float32 [B, A], the tokens expected of look-ups alone, and of the model alone."""
        looked_up = [expected_tokens(self.looked_up, arm.length) for arm in self.arms]
        rates = [
            self.tree if arm.nodes else self.chain if arm.model else jnp.zeros_like(self.chain) for arm in self.arms
        ]
        drawn = [expected_tokens(rate, arm.length) for rate, arm in zip(rates, self.arms)]
        return jnp.stack(looked_up, 1), jnp.stack(drawn, 1)

    def draws(self) -> jax.Array:
        """Bool [B, A], whether a row takes the model's tokens in each arm, not looked-up ones."""
        looked_up, drawn = self._of_sources()
        return drawn > looked_up

    def expected(self) -> jax.Array:
        """Float32 [B, A], the tokens that a round of each arm is expected to emit."""
        return jnp.minimum(jnp.maximum(*self._of_sources()), self.left[:, None])

    def reading_time(self) -> jax.Array:
        """Float32 [A], the time by which unread tokens make a round of each arm slower.

        Before the model drafts, it reads the tokens of the rounds that it has skipped. A part of
        the rounds to come share this time.
        """
        first = next((i for i, arm in enumerate(self.arms) if arm.model), 0)
        length = max(self.arms[first].length, 1)
        without = self.arms.index(Arm(length)) if Arm(length) in self.arms else 0
        step = jnp.maximum(self.seconds[first] - self.seconds[without], 0) / length
        rounds = jnp.maximum(CONSTANTS.stays * self.left.max() / (length + 1), 1)
        models = jnp.array([arm.model for arm in self.arms])
        return jnp.where(models, CONSTANTS.reading * self.unread * step / rounds, 0)

    def values(self) -> jax.Array:
        """Float32 [A], the tokens a second of each arm.

        That of plain decoding is multiplied by a margin in a batch of several rows.

        Where the batch ends with its last row, the time that is left counts. It is proportional to
        1 / E in each row, so the mean over the rows is harmonic, and the rows with most tokens to
        come weigh most.
        """
        expected = self.expected()
        if self.ends_together:
            weight = (self.left / jnp.maximum(self.left.max(), 1)) ** CONSTANTS.evenness
            tokens = weight.sum() / jnp.maximum((weight[:, None] / jnp.maximum(expected, 1)).sum(0), 1e-9)
        else:
            tokens = jnp.where(self.left[:, None] > 0, expected, 0).sum(0)
        margin = CONSTANTS.margin_of_rows if self.left.size > 1 else 1.0
        return (tokens / (self.seconds + self.reading_time())).at[0].multiply(margin)

    def choose(self) -> tuple[jax.Array, jax.Array]:
        """The number of the best arm, int32; and bool, whether drafts nearly pay."""
        value = self.values()
        return jnp.argmax(value).astype(jnp.int32), jnp.any(value[1:] > CONSTANTS.near * value.max())
