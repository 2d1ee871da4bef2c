"""Lossy rules that accept drafts near the target's likeliest token, by probability or by embedding."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from ..selection import argmax, draw
from ..tree import Tree, ancestors
from .verdict import Verdict, deepest, verdict_at


@dataclasses.dataclass(frozen=True)
class SoftMatch:
    """Accepts a token whose probability is within a margin of the likeliest token's. **Lossy**.

    A node passes if p(x) >= max p - margin and p(x) > 0. A forbidden token never passes. The longest
    path wins; among equally long paths the most probable one wins. The bonus token is the likeliest
    in a greedy row, and is drawn from p in other rows. In a greedy row p is the distribution at
    temperature 1, so drafts that are nearly as likely as the target's own choice pass. The relaxed
    acceptance of TensorRT-LLM is similar.

    Attributes:
      margin: the largest distance to the probability of the likeliest token, from 0 to 1.
    """

    margin: float = 0.2
    reads_embeddings: ClassVar[bool] = False

    def allowed(self, rate: jax.Array | float) -> jax.Array | float:
        """The margin at a measured acceptance rate of the row, float32 []."""
        return self.margin

    def passes(self, p: jax.Array, tree: Tree, rate: jax.Array | float, cosines: jax.Array | None) -> jax.Array:
        """Bool [N], the nodes whose tokens pass; the arguments are those of a call."""
        return p[tree.parent, tree.tokens] >= p.max(-1)[tree.parent] - self.allowed(rate)

    def __call__(
        self,
        p: jax.Array,
        tree: Tree,
        key: jax.Array,
        greedy: jax.Array | bool = False,
        rate: jax.Array | float = 1.0,
        cosines: jax.Array | None = None,
    ) -> Verdict:
        """The verdict on one row.

        Args:
          p, tree, key: see ``verify``.
          greedy: bool [], whether the row is greedy.
          rate: float32 [], accepted drafts of the row / drafted tokens so far; 1 before the first.
          cosines: float32 [N], see ``cosines_of``, for a rule that ``reads_embeddings``.
        """
        likely = p[tree.parent, tree.tokens]
        passed = self.passes(p, tree, rate, cosines) & (likely > 0)
        path = jnp.where(ancestors(tree), jnp.log(likely).at[0].set(0), 0).sum(-1)
        last, lineage = deepest(passed, tree, path)
        return verdict_at(last, jnp.where(greedy, argmax(p[last]), draw(key[0], p[last])), tree, lineage)


@dataclasses.dataclass(frozen=True)
class Loosening(SoftMatch):
    """As ``SoftMatch``, with a margin that grows as the measured acceptance rate falls. **Lossy**.

    The margin is 0 while the row's acceptance rate is at least ``goal``, and grows in proportion to
    the missing share, up to ``margin`` at rate 0. Text that the draft predicts well thus stays the
    target's own, and text that it predicts badly is drafted faster and less faithfully.

    Attributes:
      margin: the margin of a row whose drafts were all rejected.
      goal: the acceptance rate from which on the margin is 0.
    """

    margin: float = 0.5
    goal: float = 0.8

    def allowed(self, rate: jax.Array | float) -> jax.Array | float:
        return self.margin * jnp.clip(1 - rate / self.goal, 0, 1)


@dataclasses.dataclass(frozen=True)
class NearMatch(SoftMatch):
    """Accepts a token whose embedding is near that of the target's likeliest token. **Lossy**.

    A node passes if the cosine of the two embeddings is at least 1 - margin, and p(x) > 0. So it may
    accept a token to which the target gives a small probability. All else is as in ``SoftMatch``.

    Attributes:
      margin: the largest distance of the embeddings, 1 - cosine, from 0 to 1.
    """

    margin: float = 0.5
    reads_embeddings: ClassVar[bool] = True

    def passes(self, p, tree, rate, cosines) -> jax.Array:
        # The likeliest token itself passes, whatever rounding does to its cosine; without cosines, it alone.
        near = False if cosines is None else cosines >= 1 - self.margin
        return near | (tree.tokens == argmax(p)[tree.parent])


def cosines_of(embed: Callable, p: jax.Array, tree: Tree) -> jax.Array:
    """The cosine of each node's embedding and that of the likeliest token after its parent, float32 [B, N].

    Args:
      embed: maps tokens int32 [B, N] to embeddings float32 [B, N, E].
      p, tree: of a batch.
    """
    likeliest = jnp.take_along_axis(argmax(p), tree.parent, -1)
    a, b = embed(tree.tokens), embed(likeliest)
    norms = jnp.linalg.norm(a, axis=-1) * jnp.linalg.norm(b, axis=-1)
    return (a * b).sum(-1) / jnp.where(norms > 0, norms, 1)
