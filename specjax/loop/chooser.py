"""The base class of drafting methods that choose a shape of drafts for each round."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..core.conditional import run_if
from ..core.state import DecodeState
from ..models.base import Model
from .drafter import Drafter


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of rounds, from which ``Chooser.learn`` learns on the host.

    Attributes:
      rounds: int32 [A], the rounds of each of ``Chooser.choices`` in the row that ended last.
      batch: the number of rows.
      context: the number of tokens of the longest row after the rounds.
      seconds: the time of the rounds.
      sampled: whether any row has a temperature above 0.
    """

    rounds: np.ndarray
    batch: int
    context: int
    seconds: float
    sampled: bool


@dataclasses.dataclass(frozen=True)
class Chooser(Drafter):
    """A method with several shapes of drafts. It chooses one for each round.

    The loop compiles one round for each shape, and runs one of them. A shape is a hashable value,
    such as the length of a chain. A subclass defines ``shapes``, ``choose`` and ``at_shape`` beside
    the members of ``Drafter``. A method restricted to one shape has no ``shapes``.

    Attributes:
      has_arms: whether the choices are arms: rounds of different kinds, whose times are measured,
        see ``text.round_times``. A method with arms proposes from the result of ``choose``.
    """

    has_arms: ClassVar[bool] = False

    @property
    def chooser(self) -> Self | None:
        return self if self.shapes else None

    @property
    def shapes(self) -> tuple[Any, ...]:
        """The shapes of drafts, ascending. Empty for a method that is restricted to one of them."""
        raise TypeError(f"{type(self).__name__} must define shapes")

    @property
    def choices(self) -> tuple[Any, ...]:
        """The shape of each choice. A method may have several choices of one shape."""
        return self.shapes

    @property
    def repeated_shape(self) -> Any:
        """The shape whose rounds may repeat without a choice, see ``repeats``; None for none."""
        return None

    def at_shape(self, shape: Any) -> Drafter:
        """The same method, restricted to drafts of one of its ``shapes``."""
        raise TypeError(f"{type(self).__name__} must define at_shape")

    def choose(self, target: Model, draft, state: DecodeState) -> tuple[DecodeState, Any, jax.Array]:
        """The choice of the next round.

        Returns the state before the round; a pytree for ``with_prepared``, or None; and int32, the
        index in ``choices``.
        """
        raise TypeError(f"{type(self).__name__} must define choose")

    def with_prepared(self, state: DecodeState, prepared: Any) -> DecodeState:
        """The state in which ``propose`` finds the second result of ``choose``.

        A repeated round has zeros there.
        """
        return state

    def repeats(self, state: DecodeState) -> jax.Array:
        """Bool, whether the round after one of ``repeated_shape`` repeats it without a choice."""
        return jnp.bool(False)

    def choose_and_run(
        self, one_round: Callable, target: Model, draft, state: DecodeState, goes_on: Callable
    ) -> DecodeState:
        """Chooses a shape and runs a round.

        The round repeats while ``goes_on(state)`` and ``repeats(state)``.

        Args:
          one_round: ``(state, drafter=...) -> state``, a round of a method with one shape.
          goes_on: ``state -> bool``.
        """
        if len(self.shapes) < 2:
            return one_round(state, drafter=self)
        state, prepared, choice = self.choose(target, draft, state)
        for shape in self.shapes:
            drafter = self.at_shape(shape)
            is_chosen = jnp.array([own == shape for own in self.choices])[choice]

            def run(state: DecodeState, prepared=prepared, drafter=drafter) -> DecodeState:
                after = one_round(self.with_prepared(state, prepared), drafter=drafter)
                counters = after.counters.add_choice(~state.done, choice, after.length - state.length)
                return after.replace(counters=counters)

            if shape != self.repeated_shape:
                state = run_if(is_chosen, run, state)
                continue
            nothing = jax.tree.map(jnp.zeros_like, prepared)
            state = lax.while_loop(
                lambda loop: loop[0] | is_chosen & goes_on(loop[2]) & self.repeats(loop[2]),
                lambda loop: (jnp.bool(False), nothing, run(loop[2], loop[1])),
                (is_chosen, prepared, state),
            )[2]
        return state

    def for_slots(self) -> "Chooser":
        """The method for an engine, where other rows take the places of rows that end."""
        return self

    def describe_arms(self, parameters, batch: int, context: int, sampled: bool) -> list[tuple[str, float]]:
        """The name of each arm, and the time of its round in plain rounds.

        Empty for a method without arms.

        ``batch``, ``context`` and ``sampled`` are those of ``Run``.
        """
        return []

    def learn(self, parameters, run: Run) -> Any:
        """The parameters, updated on the host after a run of rounds."""
        return parameters

    def with_times_of(self, parameters, earlier) -> Any:
        """The parameters of a new draft, with the times that ``earlier`` parameters have learnt."""
        return parameters


def at_largest_shape(drafter: Drafter) -> Drafter:
    """The method, restricted to its largest drafts if it chooses a shape for each round."""
    chooser = drafter.chooser
    return chooser.at_shape(max(chooser.shapes)) if chooser else drafter
