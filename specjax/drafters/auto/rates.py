"""The acceptance rates of a row by the source of its drafts, for ``Auto``.

The sources are look-ups by the length of their match, the model's chains, and its trees. A rate is
the mean of the row's tests and of a first guess, which counts as much as a number of tests.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ...core.tree import Tree
from ...core.verdict import Verdict
from ..parts.running_acceptance import RunningAcceptance, tally
from .constants import CONSTANTS
from .state import Prepared

MATCHES = CONSTANTS.longest_match
"""The longest match that is looked up. A match of each length has an acceptance rate of its own."""

CHAIN, TREE = MATCHES, MATCHES + 1
"""The places of the model's two rates, after those of the matches."""

RATES = MATCHES + 2
"""The acceptance rates of a row."""

_FIRST = np.array(0.75 * (1 - 0.8 / (1 + np.arange(MATCHES))), np.float32)
_FIRST_TESTS = np.array([CONSTANTS.other_tests] * MATCHES + [CONSTANTS.model_tests, CONSTANTS.other_tests], np.float32)


def start_rates(batch: int) -> RunningAcceptance:
    """The tests before the first round, none, [B, RATES]."""
    return RunningAcceptance(jnp.zeros((batch, RATES)), jnp.zeros((batch, RATES)))


def estimate(acceptance: RunningAcceptance, chain: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The rates, and the tests that they count as much as, float32 [B, RATES] each.

    The first guess of a tree follows from the rate of chains: some tokens of a tree are accepted
    where the likeliest is not.

    Args:
      chain: float32 [B], the first guess of the model's chains.
    """
    tested = acceptance.tested + _FIRST_TESTS
    matches = jnp.broadcast_to(_FIRST, (chain.size, MATCHES))
    first = jnp.concatenate([matches, chain[:, None], jnp.zeros((chain.size, 1))], 1)
    rates = (acceptance.accepted + first * _FIRST_TESTS) / tested
    tree = rates[:, CHAIN] + (1 - rates[:, CHAIN]) * CONSTANTS.others
    return rates.at[:, TREE].add(tree * CONSTANTS.other_tests / tested[:, TREE]), tested


def rate_of_match(rates: jax.Array, matched: jax.Array) -> jax.Array:
    """The rate of tokens looked up after ``matched`` int32 [B] tokens, float32 [B]; 0 for none."""
    rate = jnp.take_along_axis(rates, jnp.maximum(matched - 1, 0)[:, None], 1)[:, 0]
    return jnp.where(matched > 0, rate, 0.0)


def upper_bounds(rate: jax.Array, tested: jax.Array, done: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The rates of the model's chains and trees, float32 [B] each.

    They are higher by a part of the estimates' deviations. Every round tests the look-ups, used or
    not, but only use tests the model. The errors of rows are independent, so they partly cancel.

    Args:
      rate, tested: the estimates.
      done: bool [B], rows that have ended.
    """
    rows = jnp.maximum((~done).sum(), 1).astype(jnp.float32)
    bound = rate + CONSTANTS.optimism * jnp.sqrt(rate * (1 - rate) / tested / rows)
    return bound[:, CHAIN], bound[:, TREE]


def update_rates(
    acceptance: RunningAcceptance, prepared: Prepared, tree: Tree, verdict: Verdict, *, depth: int, is_tree: bool
) -> RunningAcceptance:
    """The tests after a round.

    The emitted tokens test the tokens that were looked up, and the model's where a row took them.
    The tests of a model that did not draft lose weight, so its rate returns to the first guess.

    Args:
      depth: the longest path of the round's shape, in edges.
      is_tree: whether the shape is that of a tree.
    """
    looked_up = prepared.looked_up[:, : depth + 1]  # the last one is tested by the bonus token
    accepted, tested = tally(looked_up, jnp.where(prepared.matched > 0, depth + 1, 0), tree, verdict)
    source = jnp.arange(1, RATES + 1) == prepared.matched[:, None]
    of_model = (jnp.arange(RATES) == CHAIN + is_tree) & prepared.from_model[:, None]
    drawn = jnp.maximum(verdict.length - 1, 0)
    place = lambda own, model: jnp.where(of_model, model[:, None], jnp.where(source, own[:, None], 0))
    accepted = place(accepted, drawn)
    tested = place(tested, jnp.minimum(drawn + 1, prepared.count))
    rested = ~prepared.ran
    idle = jnp.stack([jnp.bool(False)] * MATCHES + [rested, rested | (not is_tree)])
    return acceptance.update(accepted, tested).fade(idle, CONSTANTS.idle_memory)
