"""The arm of a round of method auto.

It has the most expected tokens over time, or it probes the model.
"""

import dataclasses

import jax
import jax.numpy as jnp

from ...core.conditional import run_if
from .arms import Arm, expected_tokens, value_of_arms
from .calibration import Calibration
from .constants import CONSTANTS
from .probes import Probing
from .rates import ModelRate, upper_rate


@dataclasses.dataclass(frozen=True)
class Outlook:
    """What the rows of a batch may expect of the arms.

    Attributes:
      arms: the arms, plain decoding first.
      ends_together: see ``Auto``.
      looked_up: float32 [B], the acceptance rate of the tokens looked up, 0 for none.
      drawn, others: float32 [B], the acceptance rates of the model's likeliest or drawn tokens, and
        of its other tokens in a tree, where that one is rejected.
      left: float32 [B], the tokens to come, 0 for a row that has ended.
      unread: float32, the most tokens of a row that the model has not read.
      seconds: float32 [A], the time of a round of each arm.
    """

    arms: tuple[Arm, ...]
    ends_together: bool
    looked_up: jax.Array
    drawn: jax.Array
    others: jax.Array
    left: jax.Array
    unread: jax.Array
    seconds: jax.Array

    @property
    def running(self) -> jax.Array:
        """Bool [B], the rows that have not ended."""
        return self.left > 0

    def _of_sources(self) -> tuple[jax.Array, jax.Array]:
        """The expected tokens of each arm with look-ups alone, and with the model alone.

        Both are float32 [B, A].
        """
        in_tree = self.drawn + (1 - self.drawn) * self.others
        looked_up = [expected_tokens(self.looked_up, arm.length) for arm in self.arms]
        rates = [in_tree if arm.nodes else self.drawn if arm.model else jnp.zeros_like(in_tree) for arm in self.arms]
        drawn = [expected_tokens(rate, arm.length) for rate, arm in zip(rates, self.arms)]
        return jnp.stack(looked_up, 1), jnp.stack(drawn, 1)

    def draws(self) -> jax.Array:
        """Bool [B, A], whether a row takes the model's tokens in a round of each arm.

        Otherwise it takes those that it looked up.
        """
        looked_up, drawn = self._of_sources()
        return drawn > looked_up

    def expected(self) -> jax.Array:
        """Float32 [B, A], the tokens that a round of each arm is expected to emit."""
        return jnp.minimum(jnp.maximum(*self._of_sources()), self.left[:, None])

    def values(self) -> jax.Array:
        """Float32 [A], the tokens a second of each arm, see ``value_of_arms``."""
        return value_of_arms(self.expected(), self.left, self.seconds, self.ends_together)

    @property
    def probe(self) -> int:
        """The number of the first arm with the model; 0 if there is none."""
        return next((i for i, arm in enumerate(self.arms) if arm.model), 0)

    def reading_time(self) -> jax.Array:
        """Float32, the time in which the model reads the tokens that it has not read."""
        length = self.arms[self.probe].length
        without = self.arms.index(Arm(length)) if Arm(length) in self.arms else 0
        share = CONSTANTS.reading_of_rows if self.left.size > 1 else CONSTANTS.reading
        step = jnp.maximum(self.seconds[self.probe] - self.seconds[without], 0) / length
        return share * self.unread * step

    def with_slower_model(self, seconds: jax.Array) -> "Outlook":
        """The outlook if each arm with the model takes so much longer."""
        models = jnp.array([arm.model for arm in self.arms])
        return dataclasses.replace(self, seconds=self.seconds + jnp.where(models, seconds, 0))

    def with_model_at(self, rate: jax.Array) -> "Outlook":
        """The outlook on plain decoding and the model alone, at its acceptance rate [B]."""
        numbers = [i for i, arm in enumerate(self.arms) if i == 0 or arm.model]
        arms = tuple(self.arms[i] for i in numbers)
        seconds = self.seconds[jnp.array(numbers)]
        return dataclasses.replace(self, arms=arms, seconds=seconds, drawn=rate, looked_up=jnp.zeros_like(rate))


def choose(
    outlook: Outlook, rate: ModelRate, calibration: Calibration | None, probing: Probing
) -> tuple[jax.Array, jax.Array]:
    """The number of the best arm, or of a probe, int32; and bool, whether drafts nearly pay.

    Before the model drafts it reads the tokens of the rounds that it has skipped. A quarter of this
    time counts for its arms. The value of a tree is corrected by ``calibration``.

    A probe runs the first arm with the model, if half of the rows ask for it, see ``Probing``, and
    if the time that it may save is longer than the time that it loses, reading included.
    """
    probe = outlook.probe
    seconds = outlook.seconds
    reading = outlook.reading_time() if probe else jnp.float32(0)
    value = outlook.with_slower_model(reading / CONSTANTS.stays).values()
    if calibration is not None:
        is_tree = jnp.array([arm.nodes > 0 for arm in outlook.arms])
        value *= jnp.where(is_tree, calibration.ratio(~outlook.running), 1)
    best = jnp.argmax(value).astype(jnp.int32)
    is_near = jnp.any(value[1:] > CONSTANTS.near * value.max())
    if not probe:
        return best, is_near
    extra = jnp.maximum(seconds[probe] / seconds[best] * (1 - value[probe] / value[best]), CONSTANTS.least_extra)
    due = outlook.draws()[:, probe] & outlook.running & probing.is_due(extra)
    drafts = jnp.array([arm.model for arm in outlook.arms])[best]
    asked = due.any() & (2 * due.sum() >= outlook.running.sum()) & ~drafts

    def pays(_):
        saved = _time_saved(outlook.with_model_at(upper_rate(rate, probing.changed)), value[best])
        return saved > extra * seconds[best] + reading

    probes = run_if(asked, pays, asked)
    return jnp.where(probes, probe, best), is_near | probes


def _time_saved(outlook: Outlook, value: jax.Array) -> jax.Array:
    """Float32, the expected saving up to the end of the rows.

    ``value`` is that of the best arm so far.
    """
    tokens = outlook.left.max() if outlook.ends_together else outlook.left.sum()
    return CONSTANTS.chance * (tokens / value - tokens / outlook.values()[1:].max())
