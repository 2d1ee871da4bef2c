"""Rounds in which a method rests: plain ones, and those whose drafts come from elsewhere."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..core.state import DecodeState
from ..core.tree import chain
from ..rules.rule import as_rule
from ..rules.walks import sample_and_walk
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


def resting_rule(rule: Callable) -> Callable:
    """The rule of rounds in which a method with this rule rests. Their trees have no q."""
    return rule if as_rule(rule).exact_for is None else sample_and_walk


def may_rest(rule: Callable, state: DecodeState) -> jax.Array:
    """Bool, whether a round of rest changes no row's text by another law or by other draws.

    A row's text must not depend on its neighbours. A lossy rule has a law of its own. Other rules
    draw a text that depends on where rounds begin, which shows in rows with a seed.
    """
    record = as_rule(rule)
    seeded = state.request.seeded
    if record.lossy or record.plain_if_seeded or seeded is None:
        return jnp.bool(not record.lossy)
    return ~jnp.any(seeded & (state.request.sampling.temperature > 0) & ~state.done)
