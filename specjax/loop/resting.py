"""Rounds in which a method rests: plain ones, and those whose drafts come from elsewhere."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..core.state import DecodeState
from ..core.tree import chain
from ..rules import RULES
from ..rules.rule import Rule, as_rule
from .drafter import Drafter


@dataclasses.dataclass(frozen=True)
class Resting(Drafter):
    """Plain decoding in place of a method, whose state goes along, see ``Drafter.rest``."""

    method: Drafter

    @property
    def depth(self) -> int:
        return 0

    @property
    def taps(self) -> tuple[int, ...]:
        return self.method.taps

    def propose(self, target, draft, state, key):
        return jax.vmap(chain)(state.root[:, None]), state.drafter

    def commit(self, target, draft, state, tree, scored, verdict):
        return self.method.rest(target, draft, state, tree, scored, verdict)


def can_rest(rule: Callable) -> bool:
    """Whether rounds of rest keep the law of a method with this rule.

    A lossy rule has a law of its own, and so may a function without a record.
    """
    return isinstance(rule, Rule) and not rule.lossy


def resting_rule(rule: Callable) -> Rule:
    """The rule of rounds in which a method with this rule rests. Their trees have no q."""
    record = as_rule(rule)
    return record if record.exact_for is None else RULES["sample_and_walk"]


def may_rest(rule: Callable, state: DecodeState) -> jax.Array:
    """Bool, whether a round of rest leaves the text of every row as it is.

    A row's text must not depend on its neighbours. With some rules it depends on where rounds
    begin, which shows in rows with a seed.
    """
    seeded = state.request.seeded
    if as_rule(rule).plain_if_seeded or seeded is None:
        return jnp.bool(True)
    return ~jnp.any(seeded & (state.request.sampling.temperature > 0) & ~state.done)
