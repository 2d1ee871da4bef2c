"""Draft models that know only some of the target's tokens: a smaller output matrix.

The method is FR-Spec's (Zhao et al. 2025, 2502.14856, section 3). The embedding stays whole, so a
draft reads every token. Tokens are drawn from the distribution over the draft vocabulary and tested
against it, so the output is exact for any choice of tokens.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .base import Output
from .decoder import Decoder
from .layers import lookup, param
from .vocabulary_intersection import LACKING, Translated


class DraftVocabulary(nnx.Module):
    """A ``Model`` over the target's tokens that can draft only some of them.

    Attributes:
      model: the draft.
      config: the draft's configuration; ``vocab_size`` is the target's.
      head: [Vd, E], the rows of the draft's output matrix for these tokens.
      draft_to_target: int32 [Vd], offsets as in ``over_target_vocabulary``.
    """

    def __init__(self, model: Decoder | Translated, tokens: np.ndarray):
        """``tokens``: int [Vd], the target's tokens that may be drafted, each at most once."""
        inner, rows = (model.model, model.own[...][tokens]) if isinstance(model, Translated) else (model, tokens)
        matrix = inner.embed if inner.head is None else inner.head
        self.model = model
        self.config = model.config
        self.head = param(lookup(matrix[...], jnp.asarray(rows)), ("vocab", "embed"))
        self.draft_to_target = nnx.Variable(jnp.asarray(tokens - np.arange(len(tokens)), jnp.int32), axes=(None,))

    def __call__(self, *args, **kwargs) -> Output:
        """As ``Decoder``."""
        return self.model(*args, **kwargs)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits float32 [..., V] of hidden states [..., E]; ``LACKING`` at unknown tokens."""
        inner = self.model.model if isinstance(self.model, Translated) else self.model
        scores = inner.logits(hidden, self.head)
        return over_target_vocabulary(scores, self.draft_to_target[...], self.config.vocab_size)


def over_target_vocabulary(
    scores: jax.Array, draft_to_target: jax.Array, vocab_size: int, lacking: float = LACKING
) -> jax.Array:
    """Scores [..., Vd] of the draft vocabulary as float32 [..., V], ``lacking`` at other tokens.

    Args:
      draft_to_target: int32 [Vd]. Token i of the draft vocabulary is the target's token
        ``i + draft_to_target[i]``.
    """
    known = jnp.arange(scores.shape[-1]) + draft_to_target
    return jnp.full((*scores.shape[:-1], vocab_size), lacking, jnp.float32).at[..., known].set(scores)
