"""Greedy multi-path block verification: chooses a path of a tree, then tests it as a block."""

import jax
import jax.numpy as jnp
from jax import lax

from ..core.tree import Tree, ancestors
from ..core.verdict import Verdict, q_of, verdict_at
from .chains import block_verification
from .rule import Drawn, Rule

_STEPS = 4
"""The levels of p / q in a doubling."""

_OCTAVES = 4
"""The doublings of p / q, up and down, that have levels of their own."""


def greedy_block(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Tests one path of a tree of independent siblings by ``block_verification``.

    The idea is that of Thomas & Pal 2026 (GBV); the steps were derived anew. The path takes at each
    node one of its children, see ``choose``. The child has another distribution than q, and block
    verification gets that distribution in the place of q. Equal siblings are one child, with the
    children of all. So the number of children is random, but it does not depend on the target's
    draws, and the verdict stays exact.
    """

    def descend(carry, _):
        """One step down from the nodes ``reached``, bool [N], whose paths have equal tokens."""
        reached, w = carry
        children = reached[tree.parent] & tree.valid & ~root
        parent = jnp.where(children.any(), tree.parent[jnp.argmax(children)], jnp.argmax(reached))
        level, law, count = choose(w * p[parent], q_of(tree)[parent], children.sum())
        eligible = children & (jnp.cumsum(children) <= count)
        child = jnp.argmax(jnp.where(eligible, level[tree.tokens], level.min() - 1))
        x = tree.tokens[child]
        w = jnp.where(w * p[parent, x] >= law[x], 1.0, w * p[parent, x] / law[x])
        return (children & (tree.tokens == x), w), (parent, law, child, children.any())

    root = jnp.arange(tree.parent.size) == 0
    _, (parents, laws, children, exist) = lax.scan(descend, (root, jnp.float32(1)), length=tree.max_depth)
    nodes = jnp.append(0, children)
    rows = jnp.append(parents, nodes[-1])  # Equal siblings have equal p, but some of them may have no children.
    path = Tree(
        tree.tokens[nodes],
        jnp.maximum(jnp.arange(nodes.size) - 1, 0),
        jnp.append(True, exist),
        jnp.concatenate([laws, jnp.zeros((1, p.shape[-1]))]),
        max_depth=tree.max_depth,
    )
    verdict = block_verification(p[rows], path, key)
    return verdict_at(nodes[verdict.length - 1], verdict.bonus, tree, ancestors(tree))


def choose(p: jax.Array, q: jax.Array, siblings: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """How a path chooses one of several ``siblings``, whose tokens are drawn independently from q.

    It takes a sibling with the highest level among the first j, the first of several. The level of
    a token is log2(p / q), rounded. For j = 1 the chosen token is distributed as q. For more
    siblings tokens that q proposes too rarely come more often, and in the end too often. So j is
    the number for which the sum of min(p, law) is largest. Any levels and any j are exact if they
    do not depend on the drawn tokens. Levels take the place of p / q itself, which would need a
    sort.

    All of j siblings are at most at the level of x with probability a^j, where a is the sum of q up
    to that level, and all are below it with b^j. The first sibling at that level is x with
    probability q(x) / (a - b). So the law is q(x) (a^j - b^j) / (a - b), which is computed as
    q(x) (a^(j-1) + a^(j-2) b + ... + b^(j-1)).

    ``p``: float32 [V], may sum to less than 1.

    Returns int32 [V], the level of each token; float32 [V], the law of the chosen token, zeros
    without siblings; and j.
    """
    ratio = jnp.where((p > 0) & (q > 0), p / jnp.where(q > 0, q, 1), 2.0**-_OCTAVES)
    level = jnp.clip(jnp.round(_STEPS * jnp.log2(ratio)), -_STEPS * _OCTAVES, _STEPS * _OCTAVES).astype(jnp.int32)
    levels = jnp.arange(-_STEPS * _OCTAVES, _STEPS * _OCTAVES + 1)
    a = jnp.where(level <= levels[:, None], q, 0).sum(-1)
    b = jnp.append(0, a[:-1])

    def add(i, carry):
        total, power, best, law, count = carry
        total, power = total * b + power, power * a
        law_of_i = q * total[level - levels[0]]
        accepted = jnp.minimum(p, law_of_i).sum()
        better = accepted > best + 1e-6  # more than rounding
        law = jnp.where(better, law_of_i, law)
        count = jnp.where(better, i + 1, count)
        return total, power, jnp.where(better, accepted, best), law, count

    start = jnp.zeros_like(a), jnp.ones_like(a), jnp.float32(-1), jnp.zeros_like(q), jnp.int32(0)
    *_, law, count = lax.fori_loop(0, siblings, add, start)
    return level, law, count


RULES = (
    Rule("greedy_block", greedy_block, exact_for=(Drawn.CHAIN, Drawn.INDEPENDENT), default_for=(Drawn.INDEPENDENT,)),
)
