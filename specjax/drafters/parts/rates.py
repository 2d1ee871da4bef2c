"""The acceptance rates of a row by the source of its drafts, for ``Auto``: look-ups by their match, and the model."""

import jax
import jax.numpy as jnp
import numpy as np

from ...tree import Tree
from ...verify import Verdict
from .gain import RunningAcceptance

MATCHES = 6
"""The longest match that is looked up. A match of each length has an acceptance rate of its own."""

_FIRST, _TESTED = 0.7, 8.0
"""The model's acceptance rate before the first round, and the tests that it counts as much as."""

_OTHER_TESTED = 2.0
"""The tests that the other rates before the first round count as much as."""

OTHERS = 0.5
"""The rate before the first round at which a tree's other tokens are accepted where the likeliest is not."""

_HOPE = 0.5
"""The part of a standard deviation by which the model's acceptance rate is taken to be higher than its estimate."""


def start_rates(batch: int) -> RunningAcceptance:
    """The running acceptance rates before the first round, [B, MATCHES + 2], see ``AutoState``.

    Every round tests the look-ups, used or not, so their rates need no hope.
    """
    matches = 0.75 * (1 - 0.8 / (1 + np.arange(MATCHES)))
    of_rows = lambda x: jnp.asarray(np.broadcast_to(x, (batch, MATCHES + 2)), jnp.float32)
    alpha, tested = of_rows([*matches, _FIRST, OTHERS]), of_rows([_OTHER_TESTED] * MATCHES + [_TESTED, _OTHER_TESTED])
    return RunningAcceptance(tested * alpha, tested)


def rates_of(acceptance: RunningAcceptance, matched: jax.Array, done: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The acceptance rates of the tokens looked up, float32 [B], 0 for none, and the model's two, [B, 2].

    The model's are upper bounds: an estimate and a part of the estimate's deviation. Only use tests
    the model, so a few bad rounds would else end its use. The errors of rows are independent.

    Args:
      matched: int32 [B], the length of each row's match, 0 for none.
      done: bool [B], rows that have ended.
    """
    rows = jnp.maximum((~done).sum(), 1).astype(jnp.float32)
    alpha, tested = acceptance.alpha, acceptance.tested[:, MATCHES:]
    of_match = jnp.take_along_axis(alpha, jnp.maximum(matched - 1, 0)[:, None], 1)[:, 0]
    model = alpha[:, MATCHES:]
    return jnp.where(matched > 0, of_match, 0.0), model + _HOPE * jnp.sqrt(model * (1 - model) / tested / rows)


def tally_model(
    tree: Tree, verdict: Verdict, drew: jax.Array, sampled: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """How many of the model's drafts were accepted, and how many tested, int32 [B, 2] each.

    The first column counts the tokens of chains, and in greedy rows the likeliest tokens of trees. A
    sampled row draws its chains, and more of these tokens are accepted. The second column counts the
    other tokens of a tree, together, at the first place where the likeliest is rejected.

    Args:
      tree: the batched tree that the target scored.
      drew: bool [B], the rows with the model's tokens.
      sampled: bool [B], the rows with a temperature above 0.
      count: int32, the tokens of the model's chain, or the levels of its tree.
    """
    kept = jnp.maximum(verdict.length - 1, 0)
    if tree.is_chain:
        first, others = kept, jnp.zeros_like(kept)
    else:
        node = jnp.arange(tree.parent.shape[1])
        has_earlier = (tree.parent[:, None] == tree.parent[:, :, None]) & (node > 0) & (node < node[:, None])
        is_first = ~has_earlier.any(-1)  # siblings are in the order of their probability
        on_path = jnp.take_along_axis(is_first, verdict.path[:, 1:], 1)
        first = jnp.cumprod(on_path & (jnp.arange(on_path.shape[1]) < kept[:, None]), 1).sum(1)
        others = (first < count).astype(kept.dtype)
    accepted = jnp.stack([first, jnp.minimum(kept - first, others)], 1)
    tested = jnp.stack([jnp.minimum(first + 1, count), others], 1)
    counts = jnp.stack([drew & (~sampled | tree.is_chain), drew], 1)
    return jnp.where(counts, accepted, 0), jnp.where(counts, tested, 0)


def hoped_rate(acceptance: RunningAcceptance, changed: jax.Array) -> jax.Array:
    """Float32 [B], a deviation above the estimate of the model's acceptance rate: it is higher with chance 1/6.

    After a change of the text, ``changed`` [B], the rate is as unknown as before the first round.
    """
    alpha, tested = acceptance.alpha[:, MATCHES], acceptance.tested[:, MATCHES]
    deviation = lambda alpha, tested: jnp.sqrt(alpha * (1 - alpha) / tested)
    unknown = _FIRST + deviation(_FIRST, _TESTED)
    return jnp.where(changed, unknown, alpha + deviation(alpha, tested))
