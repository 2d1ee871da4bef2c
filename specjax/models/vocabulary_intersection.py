"""Draft models with another vocabulary than the target: token-level intersection.

The method is that of Timor et al. 2025, section 4.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .decoder import Decoder, Output

LACKING = -1e30
"""The logit of a token that the draft lacks.

Next to any other token, such a token has probability 0. The logit is finite, because the options
may rule out all tokens that the draft has. q is then uniform over the allowed tokens, and
acceptance tests such a q like any other.
"""


class Translated(nnx.Module):
    """A ``Model`` over the target's tokens, made from a draft with another vocabulary.

    Its distribution is the draft's, restricted to the tokens that both vocabularies have, and
    renormalised. Tokens are drawn from this distribution and tested against it, so the output is
    exact for any mapping. A poor mapping only lowers the acceptance.

    Attributes:
      model: the draft.
      config: the draft's configuration, with the size of the target's vocabulary.
      own: int32 [V], for each of the target's tokens the draft's token that is read in its place.
      shared: bool [V], whether both tokens stand for the same text. Only these may be drafted.
    """

    def __init__(self, model: Decoder, own: np.ndarray, shared: np.ndarray):
        self.model = model
        self.config = model.config.replace(vocab_size=len(own))
        self.own = nnx.Variable(jnp.asarray(own))
        self.shared = nnx.Variable(jnp.asarray(shared))

    def __call__(self, tokens: jax.Array, *args, **kwargs) -> Output:
        """As ``Decoder``, but ``tokens`` are the target's."""
        return self.model(self.own[...][tokens], *args, **kwargs)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits float32 [..., V] over the target's vocabulary, of hidden states [..., E]."""
        return jnp.where(self.shared[...], self.model.logits(hidden)[..., self.own[...]], LACKING)
