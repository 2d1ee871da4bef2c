"""Rules that read p and not q: greedy walk, walk along the target's samples, typical acceptance."""

import jax
import jax.numpy as jnp
from jax import random

from ..selection import argmax, draw
from ..tree import Tree, ancestors
from .verdict import Verdict, deepest, verdict_at


def argmax_walk(p: jax.Array, tree: Tree, key: jax.Array | None = None) -> Verdict:
    """Follows the children that are the target's likeliest tokens (SpecInfer, VerifyGreedy)."""
    return _walk(argmax(p), tree)


def sample_and_walk(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Samples the target after every node, then follows the children that match the samples.

    The rule is lossless for any tree whose nodes were chosen deterministically: the emitted tokens
    *are* the target's samples. Some child of a node is accepted with the sum of the children's p.
    The sample at a place of the text depends on the key of that place alone. A seed therefore gives
    the text of plain decoding with any proposals, and equal siblings get the same sample.
    """
    lineage = ancestors(tree)
    # All nodes of a depth share their noise, because the walk reaches only one of them.
    noise = jax.vmap(lambda key: random.gumbel(key, p.shape[1:]))(key)
    return _walk(argmax(jnp.log(p) + noise[lineage.sum(-1) - 1]), tree)


def typical(p: jax.Array, tree: Tree, key: jax.Array, *, epsilon: float = 0.09, delta: float = 0.3) -> Verdict:
    """Typical acceptance (Medusa, Cai et al. 2024, section 2.3.1). **Lossy**.

    The output does not have the target's distribution, and "auto" never picks this rule. A node
    passes if p(x) > min(epsilon, delta exp(-H(p))), where H is the entropy and p includes the
    sampling options. The longest path wins; among equally long paths the most probable one wins.
    The bonus token is drawn from p; the paper takes the likeliest token.
    """
    entropy = -jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1)), 0).sum(-1)
    threshold = jnp.minimum(epsilon, delta * jnp.exp(-entropy))
    likely = p[tree.parent, tree.tokens]
    path = jnp.where(ancestors(tree), jnp.log(likely).at[0].set(0), 0).sum(-1)
    last, lineage = deepest(likely > threshold[tree.parent], tree, path)
    return verdict_at(last, draw(key[0], p[last]), tree, lineage)


def _walk(wanted: jax.Array, tree: Tree) -> Verdict:
    """The verdict on the deepest path of tokens that equal their parent's ``wanted``, int32 [N]."""
    last, lineage = deepest(tree.tokens == wanted[tree.parent], tree)
    return verdict_at(last, wanted[last], tree, lineage)
