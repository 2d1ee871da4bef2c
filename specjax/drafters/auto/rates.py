"""The acceptance rates of a row by the source of its drafts, for ``Auto``.

Sources are look-ups by their match, and the model.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...core.tree import Tree
from ...core.verdict import Verdict
from ..parts.running_acceptance import RunningAcceptance
from .constants import CONSTANTS

MATCHES = CONSTANTS.longest_match
"""The longest match that is looked up. A match of each length has an acceptance rate of its own."""

RATES = MATCHES + 3
"""The acceptance rates of a row, see ``AutoState``."""


def start_rates(batch: int, first: jax.Array) -> RunningAcceptance:
    """The running acceptance rates before the first round, [B, RATES], see ``AutoState``.

    Every round tests the look-ups, used or not, so their rates need no optimism.

    Args:
      first: float32 [2], the model's rate in greedy and in sampled rows, see ``Experience``.
    """
    matches = 0.75 * (1 - 0.8 / (1 + np.arange(MATCHES)))
    of_rows = lambda x: jnp.broadcast_to(jnp.float32(x), (batch, RATES))
    alpha = of_rows(jnp.array([*matches, first[0], first[1], CONSTANTS.others]))
    model = CONSTANTS.model_tests
    other = CONSTANTS.other_tests
    tested = of_rows([other] * MATCHES + [model, model, other])
    return RunningAcceptance(tested * alpha, tested)


class ModelRate(NamedTuple):
    """The acceptance rates of the model in each row, and the weights of these estimates.

    Attributes:
      alpha: float32 [B], of its drawn tokens in a sampled row, and of its likeliest ones in a
        greedy row.
      others: float32 [B], of its other tokens in a tree, where the likeliest is rejected.
      tested: float32 [B, 2], the tests that these two count as much as.
      first: float32 [B], the rate ``alpha`` before the first round.
    """

    alpha: jax.Array
    others: jax.Array
    tested: jax.Array
    first: jax.Array


def rate_of_model(acceptance: RunningAcceptance, sampled: jax.Array, first: jax.Array) -> ModelRate:
    """The model's rates in rows.

    Those in ``sampled``, bool [B], have a temperature above 0.

    ``first`` is that of ``start_rates``.
    """
    own = lambda x: jnp.where(sampled, x[:, MATCHES + 1], x[:, MATCHES])
    alpha = acceptance.alpha
    tested = acceptance.tested
    tests = jnp.stack([own(tested), tested[:, -1]], 1)
    return ModelRate(own(alpha), alpha[:, -1], tests, jnp.where(sampled, first[1], first[0]))


def rate_of_match(acceptance: RunningAcceptance, matched: jax.Array) -> jax.Array:
    """The acceptance rate of tokens looked up after ``matched`` tokens, float32 [B].

    ``matched`` is int32 [B]. The rate is 0 for no match.
    """
    rate = jnp.take_along_axis(acceptance.alpha, jnp.maximum(matched - 1, 0)[:, None], 1)[:, 0]
    return jnp.where(matched > 0, rate, 0.0)


def upper_bounds(rate: ModelRate, done: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The model's rates ``alpha`` and ``others``, [B] each.

    They are higher by a part of the estimates' deviations.

    Only use tests the model, so a few bad rounds would else end its use. The errors of rows are
    independent.

    Args:
      done: bool [B], rows that have ended.
    """
    rows = jnp.maximum((~done).sum(), 1).astype(jnp.float32)
    bound = lambda alpha, tested: alpha + CONSTANTS.optimism * jnp.sqrt(alpha * (1 - alpha) / tested / rows)
    return bound(rate.alpha, rate.tested[:, 0]), bound(rate.others, rate.tested[:, 1])


def tally_model(
    tree: Tree, verdict: Verdict, from_model: jax.Array, sampled: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """How many of the model's drafts were accepted, and how many tested, int32 [B, 3] each.

    The first column counts the tokens of chains and the likeliest tokens of trees in greedy rows.
    The second one counts the tokens of chains in sampled rows. They are drawn, and more of them are
    accepted than of likeliest ones, so trees of such rows do not count. The third column counts the
    other tokens of a tree, together, at the first place where the likeliest is rejected.

    Args:
      tree: the batched tree that the target scored.
      from_model: bool [B], the rows with the model's tokens.
      sampled: bool [B], the rows with a temperature above 0.
      count: int32, the tokens of the model's chain, or the levels of its tree.
    """
    count_accepted = jnp.maximum(verdict.length - 1, 0)
    if tree.is_chain:
        first = count_accepted
        others = jnp.zeros_like(count_accepted)
    else:
        node = jnp.arange(tree.parent.shape[1])
        has_earlier = (tree.parent[:, None] == tree.parent[:, :, None]) & (node > 0) & (node < node[:, None])
        is_first = ~has_earlier.any(-1)  # siblings are in the order of their probability
        on_path = jnp.take_along_axis(is_first, verdict.path[:, 1:], 1)
        first = jnp.cumprod(on_path & (jnp.arange(on_path.shape[1]) < count_accepted[:, None]), 1).sum(1)
        others = (first < count).astype(count_accepted.dtype)
    accepted = jnp.stack([first, first, jnp.minimum(count_accepted - first, others)], 1)
    tested = jnp.stack([jnp.minimum(first + 1, count)] * 2 + [others], 1)
    counts = jnp.stack([from_model & ~sampled, from_model & sampled & tree.is_chain, from_model], 1)
    return jnp.where(counts, accepted, 0), jnp.where(counts, tested, 0)


def upper_rate(rate: ModelRate, changed: jax.Array) -> jax.Array:
    """Float32 [B], a deviation above the estimate of the model's acceptance rate.

    The rate is higher with chance 1/6.

    After a change of the text, ``changed`` [B], the rate is as unknown as before the first round.
    """
    deviation = lambda alpha, tested: jnp.sqrt(alpha * (1 - alpha) / tested)
    unknown = rate.first + deviation(rate.first, CONSTANTS.model_tests)
    return jnp.where(changed, unknown, rate.alpha + deviation(rate.alpha, rate.tested[:, 0]))
