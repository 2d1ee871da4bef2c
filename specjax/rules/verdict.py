"""The outcome of a verification, and the steps that several acceptance rules share."""

import jax
import jax.numpy as jnp
from flax import struct

from ..tree import Tree, ancestors


@struct.dataclass
class Verdict:
    """The outcome of one verification, P = ``tree.max_depth + 1``.

    Attributes:
      path: int32 [P]. Accepted nodes from the root down; entries from ``length`` on repeat the last
        one.
      length: int32. Accepted nodes, root included: how many rows to commit to the cache.
      bonus: int32. The token after the path, drawn by the target: the next root.
    """

    path: jax.Array
    length: jax.Array
    bonus: jax.Array


def verdict_at(last: jax.Array, bonus: jax.Array, tree: Tree, lineage: jax.Array) -> Verdict:
    """The verdict that accepts the path from the root to node ``last``."""
    # Nodes are in topological order, so that the path runs from the root down.
    path = jnp.flatnonzero(lineage[last], size=tree.max_depth + 1, fill_value=last)
    return Verdict(path, lineage[last].sum(), bonus)


def deepest(kept: jax.Array, tree: Tree, value: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """The deepest valid node that is ``kept`` bool [N] with all its ancestors, and their matrix.

    Of equally deep nodes the one of the highest ``value`` float32 [N] wins, or the first.
    """
    lineage = ancestors(tree)
    reachable = ((kept & tree.valid).at[0].set(True) | ~lineage).all(-1)
    depth = jnp.where(reachable, lineage.sum(-1), 0)
    return jnp.argmax(depth if value is None else jnp.where(depth == depth.max(), value, -jnp.inf)), lineage


def normalise(weights: jax.Array) -> jax.Array:
    """Weights [..., V] divided by their sum; zeros where the sum is zero."""
    total = weights.sum(-1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1)


def residual(p: jax.Array, q: jax.Array) -> jax.Array:
    """norm(max(p - q, 0)) [..., V]; p where the difference is empty, as nothing is rejected there."""
    left = jnp.maximum(p - q, 0)
    return jnp.where(left.sum(-1, keepdims=True) > 0, normalise(left), p)
