"""The acceptance rates of a row by the source of its drafts, for ``Auto``: look-ups by their match, and the model."""

import jax
import jax.numpy as jnp
import numpy as np

from .gain import RunningAcceptance

MATCHES = 6
"""The longest match that is looked up. A match of each length has an acceptance rate of its own."""

_FIRST, _TESTED = 0.6, 2.0
"""The model's acceptance rate before the first round, and the tests that it counts as much as."""

_HOPE = 0.5
"""The part of a standard deviation by which the model's acceptance rate is taken to be higher than its estimate."""


def start_rates(batch: int) -> RunningAcceptance:
    """The running acceptance rates before the first round, [B, MATCHES + 1], the model's last.

    Every round tests the look-ups, used or not, so their rates need no hope.
    """
    matches = 0.75 * (1 - 0.8 / (1 + np.arange(MATCHES)))
    alpha = jnp.asarray(np.broadcast_to([*matches, _FIRST], (batch, MATCHES + 1)), jnp.float32)
    return RunningAcceptance(_TESTED * alpha, jnp.full_like(alpha, _TESTED))


def rates_of(acceptance: RunningAcceptance, matched: jax.Array, done: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The acceptance rates float32 [B] of the tokens looked up, 0 for none, and of the model's.

    The model's is an upper bound: its estimate and a part of the estimate's deviation. Only use tests
    the model, so a few bad rounds would else end its use. The errors of rows are independent.

    Args:
      matched: int32 [B], the length of each row's match, 0 for none.
      done: bool [B], rows that have ended.
    """
    rows = jnp.maximum((~done).sum(), 1).astype(jnp.float32)
    alpha, tested = acceptance.alpha, acceptance.tested[:, -1]
    of_match = jnp.take_along_axis(alpha, jnp.maximum(matched - 1, 0)[:, None], 1)[:, 0]
    drawn = alpha[:, -1]
    return jnp.where(matched > 0, of_match, 0.0), drawn + _HOPE * jnp.sqrt(drawn * (1 - drawn) / tested / rows)


def hoped_rate(acceptance: RunningAcceptance, changed: jax.Array) -> jax.Array:
    """Float32 [B], a deviation above the estimate of the model's acceptance rate: it is higher with chance 1/6.

    After a change of the text, ``changed`` [B], the rate is as unknown as before the first round.
    """
    alpha, tested = acceptance.alpha[:, -1], acceptance.tested[:, -1]
    deviation = lambda alpha, tested: jnp.sqrt(alpha * (1 - alpha) / tested)
    unknown = _FIRST + deviation(_FIRST, _TESTED)
    return jnp.where(changed, unknown, alpha + deviation(alpha, tested))
