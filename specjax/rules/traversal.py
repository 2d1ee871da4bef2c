"""Traversal verification: tests a tree of drawn siblings from the leaves up."""

import jax
import jax.numpy as jnp
from jax import lax, random

from ..selection import draw
from ..tree import Tree, ancestors
from .verdict import Verdict, normalise, verdict_at


def traversal(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Tests siblings drawn without replacement from the leaves up (Weng et al. 2025).

    It generalises ``block_verification`` to trees. ``w[i]`` is the probability mass with which node
    i may be kept; the root has w = 1. Nodes are tested in depth-first post-order. The first node
    that passes is kept with its ancestors. Each rejected node reduces the w, p and q of its parent
    before the next sibling is visited.
    """
    accept_key, bonus_key = random.split(key[0])
    nodes, luck = jnp.arange(tree.parent.size), random.uniform(accept_key, tree.parent.shape)

    def enter(state, child):
        node, seen, w, p, q, _ = state
        x = tree.tokens[child]
        kept, proposed = w[node] * p[node, x], q[node, x]
        ratio = jnp.where(kept > 0, kept / jnp.maximum(proposed, kept), 0)
        return child, seen.at[node].set(child), w.at[child].set(ratio), p, q, False

    def leave(state, _):
        node, seen, w, p, q, _ = state
        above, x = tree.parent[node], tree.tokens[node]
        left = jnp.maximum(w[above] * p[above] - q[above], 0)
        surplus, loss = left.sum(), left.sum() + (1 - w[above])
        shrunk = (
            above,
            seen,
            w.at[above].set(jnp.where(loss > 0, surplus / jnp.where(loss > 0, loss, 1), 1.0)),
            p.at[above].set(jnp.where(surplus > 0, left / jnp.where(surplus > 0, surplus, 1), p[above])),
            q.at[above].set(normalise(q[above].at[x].set(0))),
            False,
        )
        kept = (luck[node] < w[node]) | (node == 0)
        return jax.tree.map(lambda a, b: jnp.where(kept, a, b), (node, seen, w, p, q, True), shrunk)

    def visit(state):
        node, seen = state[:2]
        waiting = (tree.parent == node) & (nodes > seen[node]) & tree.valid
        child = jnp.argmax(waiting)
        return lax.cond(waiting.any(), enter, leave, state, child)

    # seen[i] is the last visited child of node i, at first i itself: children have higher numbers.
    start = (jnp.int32(0), nodes, jnp.ones(nodes.size), p, tree.q, False)
    node, _, _, p, _, _ = lax.while_loop(lambda state: ~state[-1], visit, start)
    return verdict_at(node, draw(bonus_key, p[node]), tree, ancestors(tree))
