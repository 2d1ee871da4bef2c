"""Rules that test the drawn siblings of a tree one after another, from the root down."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax, random

from ..core.selection import draw
from ..core.tree import Tree, ancestors
from ..core.verdict import Verdict, normalise, q_of, residual, verdict_at
from .rule import Drawn, Rule


def recursive_rejection(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Recursive rejection of siblings drawn without replacement (EAGLE; Sequoia, Algorithm 1).

    After a sibling is rejected, norm(max(p - q, 0)) takes the place of p. The next sibling is
    tested against q without the rejected tokens, from which it was drawn.
    """

    def proposal(i, parent, tried):
        return normalise(jnp.where(tried, 0, q_of(tree)[parent]))

    return _descend(p, tree, key, proposal, residual)


def multi_step(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Multi-step speculative sampling of siblings drawn independently (SpecInfer, Algorithm 2).

    The siblings come from one draft or several. Each is tested against the q from which it was
    drawn, even if another sibling has the same token. After a sibling is rejected,
    norm(max(p - q, 0)) takes the place of p. The paper tests siblings in random order. Every order
    that does not depend on the drawn tokens is exact; here it is the order of the nodes.
    """

    def proposal(i, parent, tried):
        return q_of(tree)[parent] if tree.source is None else q_of(tree)[tree.source[i], parent]

    return _descend(p, tree, key, proposal, residual)


def k_seq(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """SpecTr's K-SEQ for k siblings drawn independently from one q (Sun et al. 2023, Algorithm 3).

    Accepts token x with probability min(1, p(x) / (rho q(x))). ``beta`` is the probability that one
    sibling is accepted at this rho. rho is the smallest number for which the residual is a
    distribution: ``1 - (1 - beta)^k <= rho beta``.
    """
    nodes = jnp.arange(tree.parent.size)
    k = jnp.zeros(nodes.size).at[tree.parent].add(jnp.float32(tree.valid & (nodes > 0)))

    def overlap(rho):
        return jnp.minimum(p / rho[:, None], q_of(tree))

    def any_accepted(beta):
        """The probability that one of the k siblings is accepted."""
        return 1 - (1 - beta) ** k

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        beta = overlap(middle).sum(-1)
        enough = any_accepted(beta) <= middle * beta
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    _, rho = lax.fori_loop(0, 30, halve, (jnp.ones(nodes.size), jnp.maximum(k, 1.0)))
    beta = overlap(rho).sum(-1)
    covered = overlap(rho) * (any_accepted(beta) / jnp.where(beta > 0, beta, 1))[:, None]
    bonus_p = residual(p, jnp.where(k[:, None] > 0, covered, 0))
    return _descend(p, tree, key, lambda i, parent, tried: rho[parent] * q_of(tree)[parent], lambda p, q: p, bonus_p)


def _descend(p, tree: Tree, key, proposal: Callable, residual: Callable, bonus_p: jax.Array | None = None) -> Verdict:
    """Tests siblings one after another and descends to the first that passes.

    The walk ends when no child is left to test. Each step tests one child, so nodes away from the
    walk cost nothing.

    Args:
      proposal: ``(i, parent, tried) -> [V]``, the distribution from which node i was drawn.
        ``tried`` is bool [V], the tokens of its rejected siblings.
      residual: ``(r, q) -> [V]``, the distribution that takes the place of r after a rejection.
      bonus_p: float32 [N, V], the distributions of the bonus token after each node; by default the
        distribution after all rejections.
    """
    accept_key, bonus_key = random.split(key[0])
    nodes = jnp.arange(tree.parent.size)
    threshold = random.uniform(accept_key, tree.parent.shape)

    def untested(node, newest):
        """Bool [N], the children of ``node`` that follow ``newest``, the last tested node."""
        return (tree.parent == node) & (nodes > newest) & tree.valid

    def test(carry):
        node, newest, r, tried = carry
        i = jnp.argmax(untested(node, newest))
        x = tree.tokens[i]
        q = proposal(i, node, tried)
        passes = threshold[i] * q[x] < r[x]
        return jnp.where(passes, i, node), i, jnp.where(passes, p[i], residual(r, q)), ~passes & tried.at[x].set(True)

    start = (jnp.int32(0), jnp.int32(0), p[0], jnp.zeros(p.shape[-1], bool))
    last, _, r, _ = lax.while_loop(lambda carry: untested(*carry[:2]).any(), test, start)
    bonus = draw(bonus_key, r if bonus_p is None else bonus_p[last])
    return verdict_at(last, bonus, tree, ancestors(tree))


RULES = (
    Rule(
        "recursive_rejection",
        recursive_rejection,
        exact_for=(Drawn.CHAIN, Drawn.WITHOUT_REPLACEMENT),
        default_for=(Drawn.WITHOUT_REPLACEMENT,),
    ),
    Rule(
        "multi_step",
        multi_step,
        exact_for=(Drawn.CHAIN, Drawn.INDEPENDENT, Drawn.FROM_SEVERAL),
        default_for=(Drawn.FROM_SEVERAL,),
    ),
    Rule("k_seq", k_seq, exact_for=(Drawn.CHAIN, Drawn.INDEPENDENT)),
)
