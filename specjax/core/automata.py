"""The states of an automaton along texts and down trees: of constraints, and of stop strings."""

import jax
import jax.numpy as jnp

from .tree import Tree


def advance(automaton, state: jax.Array, token: jax.Array) -> jax.Array:
    """The automaton's state after ``token``, or -1 from the first token that breaks the constraint.

    ``state``, ``token`` and the result are int32 of one shape. Without an automaton, None, the
    state stays.
    """
    if automaton is None:
        return state
    following = automaton.next[jnp.maximum(state, 0), automaton.classes[token]]
    return jnp.where(state < 0, -1, following)


def advance_along(automaton, start: jax.Array, tokens: jax.Array) -> jax.Array:
    """Int32 [B, P], the states after each of ``tokens`` [B, P], from the states ``start`` [B]."""

    def follow(state, token):
        state = advance(automaton, state, token)
        return state, state

    return jax.lax.scan(follow, start, tokens.T)[1].T


def advance_tree(automaton, start: jax.Array, tree: Tree) -> jax.Array:
    """Int32 [B, N], the states after each node of a batched tree.

    ``start``: int32 [B], the states after the root.
    """
    root = jnp.broadcast_to(start[:, None], tree.tokens.shape)

    def descend(_, states):  # after d iterations the states are right down to depth d
        following = advance(automaton, jnp.take_along_axis(states, tree.parent, 1), tree.tokens)
        return jnp.where(jnp.arange(tree.tokens.shape[1]) == 0, root, following)

    return jax.lax.fori_loop(0, tree.max_depth, descend, root)
