"""A draft model of another vocabulary behind the target's: token-level intersection (Timor et al.

2025, section 4).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from .decoder import Decoder, Output

LACKING = -1e30
"""The logit of a token that the draft lacks. Beside any other token it has no probability. It is
finite, so that q is uniform over the tokens that are left where the options rule out all others;
acceptance tests such a q like any other.
"""


class Translated(nnx.Module):
    """A ``Model`` of the target's tokens, made of a draft of another vocabulary.

    Its distribution is the draft's, restricted to the tokens that both vocabularies have, and
    renormalised. Tokens are drawn from it and tested by it, so that the output is exact whatever
    the mapping. A poor mapping costs acceptance only.

    Attributes:
      model: the draft.
      config: the draft's, with the size of the target's vocabulary.
      own: int32 [V], for each of the target's tokens the draft's token that is read in its place.
      shared: bool [V], whether both stand for the same text, so that the token may be drafted.
    """

    def __init__(self, model: Decoder, own: jax.Array, shared: jax.Array):
        self.model = model
        self.config = model.config.replace(vocab_size=len(own))
        self.own = nnx.Variable(jnp.asarray(own))
        self.shared = nnx.Variable(jnp.asarray(shared))

    def __call__(self, tokens: jax.Array, *args, **kwargs) -> Output:
        """As ``Decoder``, for the target's tokens."""
        return self.model(self.own[...][tokens], *args, **kwargs)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Float32 [..., V] over the target's vocabulary of hidden states [..., E]."""
        return jnp.where(self.shared[...], self.model.logits(hidden)[..., self.own[...]], LACKING)
