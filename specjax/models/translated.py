"""A draft model of another vocabulary, seen through the target's: token-level intersection (Timor et al. 2025, section 4)."""

import jax
import jax.numpy as jnp
from flax import nnx

from .decoder import Decoder, Output

LACKING = -1e30
"""The logit of a token that the draft lacks. Beside any other it has no probability; but where the options rule out all others it is
finite, and q is uniform over what is left: a distribution like any, which can be drawn from and tested."""


class Translated(nnx.Module):
    """A Decoder that takes and scores the target's tokens, so that drafters need not know.

    Its distribution is the draft's over the tokens that both vocabularies have, restricted and renormalised. Tokens are drawn from it
    and judged by it, so the output is exact whatever the mapping; only acceptance suffers from a poor one.

    Attributes:
      model: the draft.
      own: int32 [V], for each of the target's tokens the draft's that is read in its place.
      shared: bool [V], whether it is the same token, and may be drafted.
    """

    def __init__(self, model: Decoder, own: jax.Array, shared: jax.Array):
        self.model = model
        self.config = model.config
        self.own = nnx.Variable(jnp.asarray(own))
        self.shared = nnx.Variable(jnp.asarray(shared))

    def __call__(self, tokens: jax.Array, *args, **kwargs) -> Output:
        """As ``Decoder``, of the target's tokens."""
        return self.model(self.own[...][tokens], *args, **kwargs)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Float32 [..., V] over the target's vocabulary of hidden states [..., E]."""
        return jnp.where(self.shared[...], self.model.logits(hidden)[..., self.own[...]], LACKING)
