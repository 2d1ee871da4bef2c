"""Traversal verification: tests a tree of drawn siblings from the leaves up."""

import jax
import jax.numpy as jnp
from jax import lax, random

from ..core.selection import draw
from ..core.tree import Tree, ancestors
from ..core.verdict import Verdict, normalise, verdict_at
from .rule import Drawn, Rule


def traversal(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Tests siblings drawn without replacement from the leaves up (Weng et al. 2025).

    It generalises ``block_verification`` to trees. ``w[i]`` is the probability mass with which node
    i may be kept; the root has w = 1. Nodes are tested in depth-first post-order. The first node
    that passes is kept with its ancestors. Each rejected node reduces the w, p and q of its parent
    before the next sibling is visited.
    """
    accept_key, bonus_key = random.split(key[0])
    nodes = jnp.arange(tree.parent.size)
    threshold = random.uniform(accept_key, tree.parent.shape)

    def visit(_, state):
        """Enters the next child of a node, or leaves the node for its parent, or keeps the node.

        The rows of p and q change one at a time. A branch or a loop with an early end would select
        between whole p and q of the batch in every step.
        """
        node, last_child, w, p, q, accepted = state

        # 1. Choose: enter the next child, accept the node, or leave it.
        waiting = (tree.parent == node) & (nodes > last_child[node]) & tree.valid
        child = jnp.argmax(waiting)
        enters = waiting.any() & ~accepted
        accepted |= ~enters & ((threshold[node] < w[node]) | (node == 0))
        leaves = ~enters & ~accepted

        # 2. Enter: the mass with which the child may be kept.
        mass = w[node] * p[node, tree.tokens[child]]
        proposed = q[node, tree.tokens[child]]
        ratio = jnp.where(mass > 0, mass / jnp.maximum(proposed, mass), 0)

        # 3. Leave: the node is rejected, which reduces w, p and q of its parent.
        above = tree.parent[node]
        excess = jnp.maximum(w[above] * p[above] - q[above], 0)
        surplus = excess.sum()
        loss = excess.sum() + (1 - w[above])
        shrunk = jnp.where(loss > 0, surplus / jnp.where(loss > 0, loss, 1), 1.0)
        p_above = jnp.where(leaves & (surplus > 0), excess / jnp.where(surplus > 0, surplus, 1), p[above])
        q_above = jnp.where(leaves, normalise(q[above].at[tree.tokens[node]].set(0)), q[above])

        # 4. Write the row that changed.
        changed = jnp.where(enters, child, above)
        return (
            jnp.where(enters, child, jnp.where(leaves, above, node)),
            last_child.at[node].set(jnp.where(enters, child, last_child[node])),
            w.at[changed].set(jnp.where(enters, ratio, jnp.where(leaves, shrunk, w[above]))),
            p.at[above].set(p_above),
            q.at[above].set(q_above),
            accepted,
        )

    # last_child[i] is the last visited child of node i, at first i itself: children have higher
    # numbers.
    start = (jnp.int32(0), nodes, jnp.ones(nodes.size), p, tree.q, jnp.bool(False))
    node, _, _, p, _, _ = lax.fori_loop(0, 2 * nodes.size - 1, visit, start)  # enters and leaves each node at most once
    return verdict_at(node, draw(bonus_key, p[node]), tree, ancestors(tree))


RULES = (Rule("traversal", traversal, exact_for=(Drawn.CHAIN, Drawn.WITHOUT_REPLACEMENT)),)
