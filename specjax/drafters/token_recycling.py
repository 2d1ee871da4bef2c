"""Token Recycling (Luo et al. 2024): a token's likeliest successors are proposed again."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from ..core.selection import likeliest
from ..core.tree import Topology, Tree, as_topology, from_paths, node_count
from ..errors import RequestError
from ..loop.drafter import Drafter

PATHS = [
    (0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1),
    (0, 0, 0, 0, 0), (0, 0, 0, 0, 1), (0, 0, 0, 0, 0, 0),
]  # fmt: skip
"""The paths of the default tree, fifteen nodes, sixteen with the root.

The paper's tree has eighty nodes. It pays if scoring eighty nodes costs no more than scoring one.
"""


@dataclasses.dataclass(frozen=True)
class TokenRecycling(Drafter):
    """Keeps a table of the likeliest successors of every token, and reads a tree from it.

    The successors of a token come from the newest logits of the target after that token. The table
    begins with the successors in the prompt, the most recent first.

    Attributes:
      tree: the shape; a node of rank r is its parent's r-th successor.
      candidates: successors kept for each token.
    """

    tree: Topology = from_paths(PATHS)
    candidates: int = 4
    with_encoder = True

    def __post_init__(self):
        object.__setattr__(self, "tree", as_topology(self.tree))
        if max(self.tree.rank) >= node_count("candidates", self.candidates):
            raise RequestError(
                f"the tree asks for rank {max(self.tree.rank)} and candidates is {self.candidates}; raise candidates"
            )

    @property
    def depth(self) -> int:
        return max(self.tree.depths)

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return jax.vmap(self._from_prompt, (0, 0, None))(tokens, lengths, target.config.vocab_size)

    def propose(self, target, draft, state, key):
        return jax.vmap(self._read)(state.root, state.drafter), state.drafter

    def commit(self, target, draft, state, tree, scored, verdict):
        _, best = likeliest(scored.logits, self.candidates)
        return jax.vmap(_overwrite)(state.drafter, tree.tokens, tree.valid, best)

    def _from_prompt(self, tokens: jax.Array, length: jax.Array, vocab_size: int) -> jax.Array:
        """Int32 [V, k], the successors of each token in a text [T], the most recent first.

        -1 marks free places.
        """

        def see(i, table):
            token = tokens[i]
            successor = tokens[i + 1]
            # The successor moves to the front, the others keep their order.
            row = jnp.concatenate([successor[None], jnp.where(table[token] == successor, -2, table[token])])
            row = row[jnp.argsort(row == -2, stable=True)][: self.candidates]
            return table.at[jnp.where(i + 1 < length, token, vocab_size)].set(row, mode="drop")

        return lax.fori_loop(0, tokens.size - 1, see, jnp.full((vocab_size, self.candidates), -1, jnp.int32))

    def _read(self, root: jax.Array, table: jax.Array) -> Tree:
        """The tree of one row from its table int32 [V, k]."""
        parent, rank = (jnp.array(x, jnp.int32) for x in (self.tree.parent, self.tree.rank))
        tokens = jnp.full(parent.size, -1, jnp.int32).at[0].set(root)
        for _ in range(self.depth):  # each iteration completes a level
            above = tokens[parent]
            tokens = jnp.where(above < 0, -1, table[jnp.maximum(above, 0), rank]).at[0].set(root)
        return Tree(jnp.maximum(tokens, 0), parent, tokens >= 0, max_depth=self.depth)


def _overwrite(table: jax.Array, tokens: jax.Array, valid: jax.Array, best: jax.Array) -> jax.Array:
    """The table [V, k] with the target's likeliest successors ``best`` [N, k] of each node.

    If several nodes have the same token, the last one counts.
    """
    node = jnp.arange(tokens.size)
    later = ((tokens[:, None] == tokens) & valid & (node[:, None] < node)).any(-1)
    return table.at[jnp.where(valid & ~later, tokens, table.shape[0])].set(best, mode="drop")
