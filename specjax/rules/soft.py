"""Lossy rules: they accept drafts that are likely enough, or near the target's likeliest token."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..core.selection import argmax, draw
from ..core.tree import Tree, ancestors
from ..core.verdict import Verdict, deepest, verdict_at
from .rule import Rule


def typical(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Typical acceptance (Medusa, Cai et al. 2024, section 2.3.1). **Lossy**.

    The output does not have the target's distribution, and "auto" never picks this rule. A node
    passes if p(x) > min(0.09, 0.3 exp(-H(p))), where H is the entropy and p includes the
    sampling options. The longest path wins; among equally long paths the most probable one wins.
    The bonus token is drawn from p; the paper takes the likeliest token.
    """
    entropy = -jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1)), 0).sum(-1)
    threshold = jnp.minimum(0.09, 0.3 * jnp.exp(-entropy))
    last, lineage = _likeliest_path(_drafted(p, tree) > threshold[tree.parent], p, tree)
    return verdict_at(last, draw(key[0], p[last]), tree, lineage)


@dataclasses.dataclass(frozen=True)
class SoftMatch:
    """Accepts a token whose probability is within a margin of the likeliest token's. **Lossy**.

    A node passes if p(x) >= max p - margin and p(x) > 0. A forbidden token never passes. The
    longest path wins; among equally long paths the most probable one wins. The bonus token is the
    likeliest in a greedy row, and is drawn from p in other rows. In a greedy row p is the
    distribution at temperature 1, so drafts that are nearly as likely as the target's own choice
    pass. The relaxed acceptance of TensorRT-LLM is similar.

    Attributes:
      margin: the largest distance to the probability of the likeliest token, from 0 to 1.
    """

    margin: float = 0.2

    def __call__(self, p: jax.Array, tree: Tree, key: jax.Array, greedy: jax.Array | bool = False) -> Verdict:
        return _accept_passed(_within(self.margin, p, tree), p, tree, key, greedy)


@dataclasses.dataclass(frozen=True)
class Loosening:
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

    def __call__(
        self, p: jax.Array, tree: Tree, key: jax.Array, greedy: jax.Array | bool = False, rate: jax.Array | float = 1.0
    ) -> Verdict:
        margin = self.margin * jnp.clip(1 - rate / self.goal, 0, 1)
        return _accept_passed(_within(margin, p, tree), p, tree, key, greedy)


@dataclasses.dataclass(frozen=True)
class NearMatch:
    """Accepts a token whose embedding is near that of the target's likeliest token. **Lossy**.

    A node passes if the cosine of the two embeddings is at least 1 - margin, and p(x) > 0. So it
    may accept a token to which the target gives a small probability. All else is as in
    ``SoftMatch``.

    Attributes:
      margin: the largest distance of the embeddings, 1 - cosine, from 0 to 1.
    """

    margin: float = 0.5

    def __call__(
        self,
        p: jax.Array,
        tree: Tree,
        key: jax.Array,
        greedy: jax.Array | bool = False,
        cosines: jax.Array | None = None,
    ) -> Verdict:
        # The likeliest token itself passes, whatever rounding does to its cosine; without cosines,
        # it alone.
        near = False if cosines is None else cosines >= 1 - self.margin
        return _accept_passed(near | (tree.tokens == argmax(p)[tree.parent]), p, tree, key, greedy)


def cosines_of(embed: Callable, p: jax.Array, tree: Tree) -> jax.Array:
    """The cosine of each node's embedding and of the likeliest token's there, float32 [B, N].

    The likeliest token is that after the node's parent.

    Args:
      embed: maps tokens int32 [B, N] to embeddings float32 [B, N, E].
      p, tree: of a batch.
    """
    likeliest = jnp.take_along_axis(argmax(p), tree.parent, -1)
    a = embed(tree.tokens)
    b = embed(likeliest)
    norms = jnp.linalg.norm(a, axis=-1) * jnp.linalg.norm(b, axis=-1)
    return (a * b).sum(-1) / jnp.where(norms > 0, norms, 1)


def _drafted(p: jax.Array, tree: Tree) -> jax.Array:
    """The probability of each node's token after its parent, float32 [N]."""
    return p[tree.parent, tree.tokens]


def _within(margin: jax.Array | float, p: jax.Array, tree: Tree) -> jax.Array:
    """Bool [N], the nodes whose probability is within the margin of the likeliest token's."""
    return _drafted(p, tree) >= p.max(-1)[tree.parent] - margin


def _accept_passed(passed: jax.Array, p: jax.Array, tree: Tree, key: jax.Array, greedy: jax.Array | bool) -> Verdict:
    """The verdict on the likeliest of the longest paths of nodes that ``passed``, bool [N]."""
    last, lineage = _likeliest_path(passed & (_drafted(p, tree) > 0), p, tree)
    return verdict_at(last, jnp.where(greedy, argmax(p[last]), draw(key[0], p[last])), tree, lineage)


def _likeliest_path(passed: jax.Array, p: jax.Array, tree: Tree) -> tuple[jax.Array, jax.Array]:
    """The last node of the likeliest of the longest paths, and the matrix of ``ancestors``."""
    log_likelihood = jnp.where(ancestors(tree), jnp.log(_drafted(p, tree)).at[0].set(0), 0).sum(-1)
    return deepest(passed, tree, log_likelihood)


RULES = (
    Rule("typical", typical, lossy=True),
    Rule("soft_match", SoftMatch(), lossy=True, judges_greedy=True, reads=("greedy",), with_margin=SoftMatch),
    Rule("loosening", Loosening(), lossy=True, judges_greedy=True, reads=("greedy", "rate"), with_margin=Loosening),
    Rule("near_match", NearMatch(), lossy=True, judges_greedy=True, reads=("greedy", "cosines"), with_margin=NearMatch),
)
