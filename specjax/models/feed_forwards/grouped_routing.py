"""Routing in groups: a node's experts come from a few groups of experts.

The source is DeepSeek-V2 (2405.04434, section 2.2.2).
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax


@dataclasses.dataclass(frozen=True)
class GroupedRouting:
    """How DeepSeek-V2 and DeepSeek-V3 route.

    The score of a group is the sum of the scores of its ``best`` experts. A node's experts are
    those with the highest scores in the ``kept`` groups with the highest scores. The weights are
    the experts' scores, times ``factor``.

    Attributes:
      scores: "softmax" over all experts, or the "sigmoid" of each logit.
      groups, kept, best: see above. One group is no restriction.
      factor: the factor on the weights.
      corrected: whether a bias of each expert is added to its score for the choice, but not for the
        weights (DeepSeek-V3, 2412.19437, section 2.1.2).
    """

    scores: str = "sigmoid"
    groups: int = 1
    kept: int = 1
    best: int = 2
    factor: float = 1.0
    corrected: bool = True


def choose_in_groups(
    logits: jax.Array, correction: jax.Array | None, routing: GroupedRouting, count: int, normed: bool
) -> tuple[jax.Array, jax.Array]:
    """The ``count`` experts of each node, int32 [B, N, k], and their weights, float32 [B, N, k].

    Args:
      logits: float32 [B, N, X].
      correction: float32 [X], the biases of the choice; None for none.
      normed: whether a node's scores are divided by their sum before the factor.
    """
    scores = jax.nn.sigmoid(logits) if routing.scores == "sigmoid" else jax.nn.softmax(logits, -1)
    ranks = scores if correction is None else scores + correction
    if routing.kept < routing.groups:
        groups = ranks.reshape(*ranks.shape[:-1], routing.groups, -1)
        _, best_groups = lax.top_k(lax.top_k(groups, routing.best)[0].sum(-1), routing.kept)
        allowed = (best_groups[..., None] == jnp.arange(routing.groups)).any(-2)
        ranks = jnp.where(allowed[..., None], groups, -jnp.inf).reshape(ranks.shape)
    _, chosen = lax.top_k(ranks, count)
    weights = jnp.take_along_axis(scores, chosen, -1)
    if normed:
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
    return chosen, weights * routing.factor
