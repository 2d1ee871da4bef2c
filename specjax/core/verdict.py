"""The verdict of an acceptance rule, and the steps that several rules share."""

import jax
import jax.numpy as jnp
from flax import struct

from .tree import Tree, ancestors


class Verdict(struct.PyTreeNode):
    """The path that a rule accepts, and the token after it. P is ``tree.max_depth + 1``.

    Attributes:
      path: int32 [P], the accepted nodes from the root down. Entries from ``length`` on repeat the
        last accepted node.
      length: int32, the number of accepted nodes, root included. So many rows go into the cache.
      bonus: int32, the token that the target draws after the path. It is the next root.
    """

    path: jax.Array
    length: jax.Array
    bonus: jax.Array


def verdict_at(last: jax.Array, bonus: jax.Array, tree: Tree, lineage: jax.Array) -> Verdict:
    """The verdict that accepts the path from the root to node ``last``.

    ``lineage``: bool [N, N], the result of ``ancestors``.
    """
    # Nodes are in topological order, so the path runs from the root down.
    path = jnp.flatnonzero(lineage[last], size=tree.max_depth + 1, fill_value=last)
    return Verdict(path, lineage[last].sum(), bonus)


def deepest(mask: jax.Array, tree: Tree, value: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """The deepest valid node in ``mask``, bool [N], whose ancestors are all in the mask too.

    If several nodes are equally deep, the node with the highest ``value``, float32 [N], wins;
    without values the first node wins. Returns the node and the matrix of ``ancestors``.
    """
    lineage = ancestors(tree)
    reachable = ((mask & tree.valid).at[0].set(True) | ~lineage).all(-1)
    depth = jnp.where(reachable, lineage.sum(-1), 0)
    return jnp.argmax(depth if value is None else jnp.where(depth == depth.max(), value, -jnp.inf)), lineage


def q_of(tree: Tree) -> jax.Array:
    """The q [N, V] of a tree whose nodes were drawn."""
    assert tree.q is not None  # ``rules.acceptance.resolve`` gives such rules to methods that draw
    return tree.q


def normalise(weights: jax.Array) -> jax.Array:
    """``weights`` [..., V] divided by their sum; zeros if the sum is zero."""
    total = weights.sum(-1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1)


def residual(p: jax.Array, q: jax.Array) -> jax.Array:
    """norm(max(p - q, 0)) [..., V]; p if p <= q everywhere, because nothing is rejected then."""
    surplus = jnp.maximum(p - q, 0)
    return jnp.where(surplus.sum(-1, keepdims=True) > 0, normalise(surplus), p)
