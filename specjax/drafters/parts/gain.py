"""How often a row's drafts are accepted, and the gain of drafting: shared by all methods that
choose between drafts.
"""

import jax
import jax.numpy as jnp
from flax import struct

from ...tree import Tree
from ...verify import Verdict

_MEMORY = 0.9
"""The weight of a round in the next one: the newest ten rounds or so decide."""


@struct.dataclass
class RunningAcceptance:
    """Drafts tested and drafts accepted, older rounds counting less: a moving estimate of alpha,
    the acceptance rate.

    Attributes:
      accepted, tested: float32 [...], of one shape.
    """

    accepted: jax.Array
    tested: jax.Array

    @staticmethod
    def start(*shape: int) -> "RunningAcceptance":
        """Before the first round, as if one of two drafts had been accepted."""
        return RunningAcceptance(jnp.full(shape, 1, jnp.float32), jnp.full(shape, 2, jnp.float32))

    @property
    def alpha(self) -> jax.Array:
        """The acceptance rate per token."""
        return self.accepted / self.tested

    def update(self, accepted: jax.Array, tested: jax.Array) -> "RunningAcceptance":
        """One more round. Where no draft was tested nothing changes."""
        add = lambda old, new: jnp.where(tested > 0, _MEMORY * old + new.astype(jnp.float32), old)
        return RunningAcceptance(add(self.accepted, accepted), add(self.tested, tested))


def gain(alpha: jax.Array, count: jax.Array, time: jax.Array, most: int) -> jax.Array:
    """Tokens in the time of one plain target call: (1 - alpha^(k + 1)) / (1 - alpha) / time
    (Leviathan et al. 2023, Theorem 3.8).

    Args:
      alpha: float32 [...].
      count: int32, k, the drafted tokens, at most ``most``.
      time: float32, of proposing and scoring them, in plain target calls. All shapes broadcast.
    """
    expected = sum(jnp.where(i <= count, alpha**i, 0.0) for i in range(most + 1))  # also defined at alpha = 1
    return expected / time


def tally(drafts: jax.Array, count: jax.Array, tree: Tree, verdict: Verdict) -> tuple[jax.Array, jax.Array]:
    """How many of the first ``count`` [B] of ``drafts`` [B, D] the emitted tokens confirm, and how
    many they test.

    Both int32 [B]. The drafts need not be those of the ``tree``, a chain of D drafts: emitted
    tokens test any drafts.
    """
    place = jnp.arange(drafts.shape[1])
    emitted = jnp.where(place == verdict.length[:, None] - 1, verdict.bonus[:, None], tree.tokens[:, 1:])
    tested = jnp.minimum(count, verdict.length)
    accepted = jnp.cumprod((drafts == emitted) & (place < tested[:, None]), 1).sum(1)
    return accepted, jnp.minimum(accepted + 1, tested)
