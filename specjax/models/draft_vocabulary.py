"""Draft models with another vocabulary than the target's, or with only a part of it.

The intersection of two vocabularies is the method of Timor et al. 2025, section 4. A smaller output
matrix is FR-Spec's (Zhao et al. 2025, 2502.14856, section 3). Its embedding stays whole, so a draft
reads every token. Tokens are drawn from the distribution over the draft vocabulary and tested
against it, so the output is exact for any choice of tokens.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .decoder import Decoder, Output
from .layers import lookup, param

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
