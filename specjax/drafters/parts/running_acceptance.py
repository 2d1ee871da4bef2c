"""The running acceptance rate of a row, and the gain of drafting, for methods that choose."""

import jax
import jax.numpy as jnp
from flax import struct

from ...core.tree import Tree
from ...core.verdict import Verdict

_MEMORY = 0.9
"""The factor by which each round reduces the weight of all earlier rounds."""

_KEPT = 0.98
"""The part of the estimate of an unused drafter that stays from one round to the next."""


class RunningAcceptance(struct.PyTreeNode):
    """A moving estimate of the acceptance rate alpha.

    Attributes:
      accepted, tested: float32 [...] of one shape, the numbers of accepted and of tested drafts.
        Older rounds count less.
    """

    accepted: jax.Array
    tested: jax.Array

    @staticmethod
    def start(*shape: int) -> "RunningAcceptance":
        """The estimate before the first round, 1/2, as if one of two drafts had been accepted."""
        return RunningAcceptance(jnp.full(shape, 1, jnp.float32), jnp.full(shape, 2, jnp.float32))

    @property
    def alpha(self) -> jax.Array:
        """The acceptance rate for each token."""
        return self.accepted / self.tested

    def update(self, accepted: jax.Array, tested: jax.Array) -> "RunningAcceptance":
        """The estimate after one more round. It stays if no draft was tested."""
        add = lambda old, new: jnp.where(tested > 0, _MEMORY * old + new.astype(jnp.float32), old)
        return RunningAcceptance(add(self.accepted, accepted), add(self.tested, tested))

    def fade(self, where: jax.Array, memory: float) -> "RunningAcceptance":
        """The same estimate, with its weight times ``memory`` in ``where``."""
        weight = jnp.where(where, memory, 1.0)
        return RunningAcceptance(weight * self.accepted, weight * self.tested)

    def toward_one(self, where: jax.Array, memory: float = _KEPT) -> "RunningAcceptance":
        """The estimate, closer to 1 in ``where``; the part ``memory`` of the old estimate stays."""
        closer = lambda value: jnp.where(where, memory * value + (1 - memory) * 2, value)
        return RunningAcceptance(closer(self.accepted), closer(self.tested))


def gain(alpha: jax.Array, count: jax.Array, time: jax.Array, most: int) -> jax.Array:
    """Expected tokens in the time of one plain target call (Leviathan et al. 2023, Theorem 3.8).

    The formula is (1 - alpha^(k + 1)) / (1 - alpha) / time. All shapes broadcast.

    Args:
      alpha: float32, the acceptance rate.
      count: int32, k, the number of drafted tokens, at most ``most``.
      time: float32, the time to propose and score them, in plain target calls.
    """
    # The sum of alpha^i is also defined at alpha = 1.
    expected = sum(jnp.where(i <= count, alpha**i, 0.0) for i in range(most + 1))
    return expected / time


def tally(drafts: jax.Array, count: jax.Array, tree: Tree, verdict: Verdict) -> tuple[jax.Array, jax.Array]:
    """How many drafts the emitted tokens confirm, and how many they test, both int32 [B].

    Args:
      drafts: int32 [B, D], of which the first ``count`` [B] exist. They need not be those of the
        tree, because emitted tokens test any drafts.
      tree: the batched tree that the target scored, of depth D or D - 1. A draft beyond its depth
        is tested by the bonus token.
    """
    place = jnp.arange(drafts.shape[1])
    bonus = verdict.bonus[:, None]
    path_tokens = tree.tokens[:, 1:] if tree.is_chain else jnp.take_along_axis(tree.tokens, verdict.path[:, 1:], 1)
    path_tokens = jnp.concatenate([path_tokens, bonus], 1)[:, : place.size]
    emitted = jnp.where(place == verdict.length[:, None] - 1, bonus, path_tokens)
    tested = jnp.minimum(count, verdict.length)
    accepted = jnp.cumprod((drafts == emitted) & (place < tested[:, None]), 1).sum(1)
    return accepted, jnp.minimum(accepted + 1, tested)
