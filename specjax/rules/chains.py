"""Rules for a chain drawn from q: token-wise rejection and block verification."""

import jax
import jax.numpy as jnp
from jax import lax, random

from ..core.selection import draw
from ..core.tree import Tree
from ..core.verdict import Verdict, q_of, residual
from .rule import Drawn, Rule


def rejection(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Token-wise speculative sampling of a chain drawn from q (Leviathan et al. 2023, Algorithm 1).

    Accepts token x with probability min(1, p(x) / q(x)), and replaces the first rejected token by a
    draw from norm(max(p - q, 0)). After the last node q counts as zero, so the same formula draws
    the bonus token from p.
    """
    accept_key, bonus_key = random.split(key[0])
    p_drafted = _prob_of_next(p, tree)
    q_drafted = _prob_of_next(q_of(tree), tree)
    # The comparison is strict, so that a token with p = 0 is never accepted.
    accepted = random.uniform(accept_key, p_drafted.shape) * q_drafted < p_drafted
    last = jnp.cumprod(accepted & tree.valid[1:]).sum()
    return _chain_verdict(last, p[last], tree, bonus_key)


def block_verification(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Tests prefixes of a chain drawn from q as wholes (Sun et al. 2024, Algorithm 2).

    In expectation it accepts at least as many tokens as ``rejection``. ``w[i]`` is the paper's p_i,
    the probability mass with which the first i tokens may be kept. The longest prefix that passes
    its own test is kept, even if a shorter one fails.
    """
    accept_key, bonus_key = random.split(key[0])

    def extend(w, drafted):
        p, q = drafted
        w = jnp.where(w * p >= q, 1.0, w * p / q)  # min(1, w p / q) without overflow; a drawn token has q > 0
        return w, w

    _, w = lax.scan(extend, jnp.float32(1), (_prob_of_next(p, tree), _prob_of_next(q_of(tree), tree)))
    w = jnp.concatenate([jnp.ones(1), w])  # [N]

    node = jnp.arange(w.size)
    end = _end(tree)
    surplus = jnp.maximum(w[:, None] * p - q_of(tree), 0).sum(-1)
    loss = surplus + 1 - w  # zero only if w = 1 and p = q; a longer prefix then passes with certainty
    keep = jnp.where(node == end, w, surplus / jnp.where(loss > 0, loss, 1))
    passed = (random.uniform(accept_key, keep.shape) < keep) & (node <= end)
    last = jnp.max(jnp.where(passed.at[0].set(True), node, 0))
    scale = jnp.where(last == end, 1.0, w[last])
    return _chain_verdict(last, scale * p[last], tree, bonus_key)


def _prob_of_next(dist: jax.Array, tree: Tree) -> jax.Array:
    """Probabilities [N - 1] of a chain's drafted tokens, under their parents' ``dist`` [N, V]."""
    return jnp.take_along_axis(dist[:-1], tree.tokens[1:, None], axis=-1)[:, 0]


def _end(tree: Tree) -> jax.Array:
    """Int32, the last node of a chain that may be accepted."""
    return jnp.cumprod(tree.valid[1:]).sum()


def _chain_verdict(last: jax.Array, p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """The verdict that accepts nodes 0 to ``last`` of a chain.

    It draws the bonus token from norm(max(p - q, 0)), or from p after the last node of the chain.
    """
    bonus_p = residual(p, jnp.where(last == _end(tree), 0, q_of(tree)[last]))
    path = jnp.minimum(jnp.arange(tree.max_depth + 1), last)
    return Verdict(path, last + 1, draw(key, bonus_p))


RULES = (
    Rule("rejection", rejection, exact_for=(Drawn.CHAIN,)),
    Rule("block", block_verification, exact_for=(Drawn.CHAIN,), default_for=(Drawn.CHAIN,)),
)
