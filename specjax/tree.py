"""Token trees: what drafters propose, the target scores and the acceptance rules judge.

The nodes of a tree are in topological order, parents before children. Node 0 is the root: the newest token of the row, already
emitted, not yet in the cache. Plain decoding is a tree of one node; a chain is a tree without branches.

Functions here take one row, without a batch axis; callers ``jax.vmap`` them.
"""

import math

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Tree:
    """Candidate tokens of one row and how they hang together.

    Attributes:
      tokens: int32 [N]. ``tokens[0]`` is the root.
      parent: int32 [N], ``parent[i] < i`` except ``parent[0] == 0``.
      valid: bool [N]. Nodes that may be accepted; the root always may. A node under an invalid one is never reached.
      q: float32 [N, V] or None. The distribution from which the children of node i were *sampled*, zero at leaves. None when
        the candidates were chosen by any other means (top-k, n-gram, argmax): rules that divide by q must then not be used,
        and cannot be. With several drafts [M, N, V], one for each.
      source: int32 [N] or None. Which of several drafts node i was drawn from.
      max_depth: the longest path from the root, in edges. Static.
    """

    tokens: jax.Array
    parent: jax.Array
    valid: jax.Array
    q: jax.Array | None = None
    source: jax.Array | None = None
    max_depth: int = struct.field(pytree_node=False, default=1)

    @property
    def is_chain(self) -> bool:
        """A tree as deep as it has nodes has no branches: a path is then the nodes in order."""
        return self.max_depth + 1 == self.tokens.shape[-1]


def chain(tokens: jax.Array, q: jax.Array | None = None, valid: jax.Array | None = None) -> Tree:
    """The tree without branches: node i follows node i - 1."""
    n = tokens.shape[0]
    valid = jnp.ones(n, bool) if valid is None else valid
    return Tree(tokens, jnp.maximum(jnp.arange(n) - 1, 0), valid, q, max_depth=n - 1)


def ancestors(tree: Tree) -> jax.Array:
    """Bool [N, N]: True at [i, j] where j is i or an ancestor of i.

    This is the attention mask among the nodes; its row sums give depth + 1, hence rotary positions. Built by pointer doubling:
    after k rounds each node knows its 2^k nearest ancestors.
    """
    mask = jnp.eye(tree.parent.shape[0], dtype=bool)
    jump = tree.parent
    for _ in range(math.ceil(math.log2(tree.max_depth + 1))):
        mask = mask | mask[jump]
        jump = jump[jump]
    return mask
