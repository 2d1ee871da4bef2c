"""Rules that read the target's p alone: greedy walk, the target's own samples, typical acceptance."""

import jax
import jax.numpy as jnp
from jax import random

from ..tree import Tree, ancestors
from .verdict import Verdict, deepest, verdict_at


def argmax_walk(p: jax.Array, tree: Tree, key: jax.Array | None = None) -> Verdict:
    """Follows the children that the target itself would choose (SpecInfer, VerifyGreedy)."""
    return _walk(jnp.argmax(p, -1), tree)


def sample_and_walk(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Samples the target after every node, then follows the children that match.

    Lossless for nodes chosen by any deterministic means, in any tree: the emitted tokens *are* the
    target's samples. A node's children are accepted with the sum of their p. The sample at a place
    of the text depends on the key of that place alone. A seed therefore gives the text of plain
    decoding, whatever was proposed, and equal siblings cannot disagree.
    """
    lineage = ancestors(tree)
    # One noise for each depth: the walk reaches one node of a depth.
    noise = jax.vmap(lambda key: random.gumbel(key, p.shape[1:]))(key)
    return _walk(jnp.argmax(jnp.log(p) + noise[lineage.sum(-1) - 1], -1), tree)


def typical(p: jax.Array, tree: Tree, key: jax.Array, *, epsilon: float = 0.09, delta: float = 0.3) -> Verdict:
    """Typical acceptance (Medusa, Cai et al. 2024, section 2.3.1). **Lossy**: the output is not the
    target's law.

    Accepts nodes with p(x) > min(epsilon, delta exp(-H(p))), H the entropy. The longest path wins;
    of equally long paths the most probable. p includes the sampling options. The bonus token is
    drawn from p, where the paper takes the likeliest. The rule is never chosen by "auto".
    """
    entropy = -jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1)), 0).sum(-1)
    threshold = jnp.minimum(epsilon, delta * jnp.exp(-entropy))
    likely = p[tree.parent, tree.tokens]
    path = jnp.where(ancestors(tree), jnp.log(likely).at[0].set(0), 0).sum(-1)
    last, lineage = deepest(likely > threshold[tree.parent], tree, path)
    return verdict_at(last, random.categorical(key[0], jnp.log(p[last])), tree, lineage)


def _walk(wanted: jax.Array, tree: Tree) -> Verdict:
    """The verdict on the deepest path whose every token is ``wanted`` int32 [N] after its parent."""
    last, lineage = deepest(tree.tokens == wanted[tree.parent], tree)
    return verdict_at(last, wanted[last], tree, lineage)
