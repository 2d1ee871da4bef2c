"""How often a row's drafts are kept, and what drafting is therefore worth: what all that choose between drafts share."""

import jax
import jax.numpy as jnp
from flax import struct

from ...tree import Tree
from ...verify import Verdict

_MEMORY = 0.9
"""What a round keeps of the counts before it: the newest ten rounds or so decide."""


@struct.dataclass
class Acceptance:
    """Drafts tested and of these kept, older rounds counting less: a moving estimate of alpha, the acceptance rate per token.

    Attributes:
      kept, tested: float32 [...], of one shape.
    """

    kept: jax.Array
    tested: jax.Array

    @staticmethod
    def begun(*shape: int) -> "Acceptance":
        """Before anything is known, as if one draft of two had been kept."""
        return Acceptance(jnp.full(shape, 1, jnp.float32), jnp.full(shape, 2, jnp.float32))

    @property
    def alpha(self) -> jax.Array:
        return self.kept / self.tested

    def after(self, kept: jax.Array, tested: jax.Array) -> "Acceptance":
        """One more round; where nothing was ``tested`` nothing changes."""
        add = lambda old, new: jnp.where(tested > 0, _MEMORY * old + new.astype(jnp.float32), old)
        return Acceptance(add(self.kept, kept), add(self.tested, tested))


def gain(alpha: jax.Array, count: jax.Array, time: jax.Array, most: int) -> jax.Array:
    """Tokens for the time of one plain target call (Leviathan et al. 2023, Theorem 3.8): (1 - alpha^(k + 1)) / (1 - alpha) / time.

    Args:
      alpha: float32 [...].
      count: int32, k, the drafted tokens, at most ``most``; ``time`` float32, of drafting and verifying them. Of any shapes that broadcast.
    """
    expected = sum(jnp.where(i <= count, alpha**i, 0.0) for i in range(most + 1))  # the sum is defined at alpha = 1 as well
    return expected / time


def tally(drafts: jax.Array, count: jax.Array, tree: Tree, verdict: Verdict) -> tuple[jax.Array, jax.Array]:
    """How many of the first ``count`` [B] of ``drafts`` [B, D] were said, and how many the emitted tokens tested: int32 [B] each.

    The drafts need not be those of the ``tree``, a chain of D drafts: what was emitted judges any.
    """
    place = jnp.arange(drafts.shape[1])
    said = jnp.where(place == verdict.length[:, None] - 1, verdict.bonus[:, None], tree.tokens[:, 1:])
    tested = jnp.minimum(count, verdict.length)
    kept = jnp.cumprod((drafts == said) & (place < tested[:, None]), 1).sum(1)
    return kept, jnp.minimum(kept + 1, tested)
