"""The arm of a round of method auto: the one with most expected tokens over time, or a probe of the model."""

import dataclasses

import jax
import jax.numpy as jnp

from ...conditional import run_if
from .arms import Arm, expected_tokens, value_of_arms
from .gain import RunningAcceptance
from .kept import Kept
from .probing import Probing
from .rates import hoped_rate

_NEAR = 0.95
"""The part of the best value from which on an arm is near to paying."""

_CHANCE = 1 / 6
"""The chance of the hoped acceptance rate, see ``hoped_rate``."""

_READING = 1 / 4
"""The time in which the model reads the token of a skipped round, in steps of drafting: it reads many at once."""

_LEAST_EXTRA = 0.05
"""The least time that a probe is taken to lose, in rounds of the best arm."""


@dataclasses.dataclass(frozen=True)
class Outlook:
    """What the rows of a batch may expect of the arms.

    Attributes:
      arms: the arms, plain decoding first.
      ends_together: see ``Auto``.
      found, drawn: float32 [B], the acceptance rates of the tokens looked up, 0 for none, and of the model's.
      left: float32 [B], the tokens to come, 0 for a row that has ended.
      seconds: float32 [A], the time of a round of each arm.
    """

    arms: tuple[Arm, ...]
    ends_together: bool
    found: jax.Array
    drawn: jax.Array
    left: jax.Array
    seconds: jax.Array

    @property
    def running(self) -> jax.Array:
        """Bool [B], the rows that have not ended."""
        return self.left > 0

    def draws(self, count) -> jax.Array:
        """Bool [B], whether a row of ``count`` drafts takes the model's tokens, not those that it looked up."""
        return expected_tokens(self.drawn, count) > expected_tokens(self.found, count)

    def expected(self) -> jax.Array:
        """Float32 [B, A], the tokens that a round of each arm is expected to emit."""
        found = [expected_tokens(self.found, arm.length) for arm in self.arms]
        drawn = [expected_tokens(self.drawn, arm.length) if arm.model else 0 for arm in self.arms]
        return jnp.minimum(jnp.stack(list(map(jnp.maximum, found, drawn)), 1), self.left[:, None])

    def values(self) -> jax.Array:
        """Float32 [A], the tokens a second of each arm, see ``value_of_arms``."""
        return value_of_arms(self.expected(), self.left, self.seconds, self.ends_together)

    def step_time(self, i: int) -> jax.Array:
        """Float32, the time in which the model drafts one token in arm ``i``, with all rows."""
        looked_up = Arm(self.arms[i].length)
        without = self.arms.index(looked_up) if looked_up in self.arms else 0
        return jnp.maximum(self.seconds[i] - self.seconds[without], 0) / self.arms[i].length

    def with_model_at(self, rate: jax.Array) -> "Outlook":
        """The outlook on plain decoding and the model alone, with this acceptance rate [B] of the model."""
        kept = [i for i, arm in enumerate(self.arms) if i == 0 or arm.model]
        arms, seconds = tuple(self.arms[i] for i in kept), self.seconds[jnp.array(kept)]
        return dataclasses.replace(self, arms=arms, seconds=seconds, drawn=rate, found=jnp.zeros_like(rate))


def choose(
    outlook: Outlook, acceptance: RunningAcceptance, kept: Kept, probing: Probing
) -> tuple[jax.Array, jax.Array]:
    """The number int32 of the arm with the highest value, or of a probe; bool, whether drafts nearly pay.

    A probe runs the first arm with the model, if half of the rows ask for it, see ``Probing``, and if
    the time that it may save is longer than the time that it loses, and that the model needs to read
    the tokens of skipped rounds.
    """
    value = outlook.values() * kept.part(~outlook.running)
    best, is_near = jnp.argmax(value).astype(jnp.int32), jnp.any(value[1:] > _NEAR * value.max())
    models = [arm.model for arm in outlook.arms]
    if not any(models):
        return best, is_near
    probe, seconds = models.index(True), outlook.seconds
    extra = jnp.maximum(seconds[probe] / seconds[best] * (1 - value[probe] / value[best]), _LEAST_EXTRA)
    due = outlook.draws(outlook.arms[probe].length) & outlook.running & probing.is_due(extra)
    asked = due.any() & (2 * due.sum() >= outlook.running.sum()) & ~jnp.array(models)[best]

    def pays(_):
        saved = _time_saved(outlook.with_model_at(hoped_rate(acceptance, probing.changed)), value[best])
        return saved > extra * seconds[best] + _READING * probing.rest.max() * outlook.step_time(probe)

    probes = run_if(asked, pays, asked)
    return jnp.where(probes, probe, best), is_near | probes


def _time_saved(hoped: Outlook, value: jax.Array) -> jax.Array:
    """Float32, the expected saving up to the end of the rows, if the best arm so far has this ``value``."""
    tokens = hoped.left.max() if hoped.ends_together else hoped.left.sum()
    return _CHANCE * (tokens / value - tokens / hoped.values()[1:].max())
