"""The history of each scored node: the prompt, the emitted text and the node's path in the tree.

Some options look back: penalties, ``min_new_tokens``, constraints, a user's own processors. They
read the history here and nowhere else. A node deep in a tree is therefore treated exactly as plain
decoding treats the same tokens.
"""

import jax
import jax.numpy as jnp
from flax import struct


class Context(struct.PyTreeNode):
    """The history of N nodes in each row.

    Attributes:
      tokens: int32 [B, T], the text of each row; void from ``length`` on.
      prompt_length: int32 [B], tokens of the prompt.
      length: int32 [B], tokens of the text up to the root, prompt and root included.
      limit: int32 [B], the number of tokens at which the row ends.
      stop_ids: int32 [B, n], tokens that end the row; -1 matches no token.
      nodes: int32 [B, M], tokens of the tree.
      path: bool [B, N, M], for each node i the nodes on its path: the root is excluded, node i
        included.
      states: int32 [B, N], the state of the row's automaton after each node; -1 if the path has
        broken the constraint.
      grammars: int32 [B], the row's grammar on the host, or 0; None where the host is not asked.
        The target's nodes ask it. Drafts do not, because verification refuses what it forbids.
    """

    tokens: jax.Array
    prompt_length: jax.Array
    length: jax.Array
    limit: jax.Array
    stop_ids: jax.Array
    nodes: jax.Array
    path: jax.Array
    states: jax.Array
    grammars: jax.Array | None = None

    @property
    def generated(self) -> jax.Array:
        """Int32 [B, N], the number of new tokens up to each node, the node included."""
        return (self.length - self.prompt_length)[:, None] + self.path.sum(-1)

    def counts(self, vocab_size: int) -> jax.Array:
        """Float32 [B, N, V], how often each token occurs after the prompt, up to each node."""
        return self._with_path(self.text_counts(vocab_size)[1])

    def seen(self, vocab_size: int) -> jax.Array:
        """Bool [B, N, V], whether each token occurs up to each node, in the prompt or after it."""
        return self._with_path(self.text_counts(vocab_size)[0]) > 0

    def text_counts(self, vocab_size: int) -> tuple[jax.Array, jax.Array]:
        """How often each token occurs up to the root: in the whole text, and after the prompt.

        Both float32 [B, V].
        """
        place = jnp.arange(self.tokens.shape[1])
        rows = jnp.arange(self.tokens.shape[0])[:, None]
        text = place < self.length[:, None]

        def count(mask):
            return jnp.zeros((rows.size, vocab_size)).at[rows, self.tokens].add(jnp.float32(mask))

        return count(text), count(text & (place >= self.prompt_length[:, None]))

    @property
    def path_counts(self) -> jax.Array:
        """Float32 [B, N, M], the count of each tree node's token on the path to each node."""
        same = self.nodes[:, :, None] == self.nodes[:, None, :]
        return jnp.float32(self.path) @ jnp.float32(same)

    def last(self, k: int) -> jax.Array:
        """Int32 [B, N, k], the last k tokens up to each node, in order.

        -1 stands at places before the beginning of the text.
        """
        M = self.nodes.shape[1]
        depth = self.path.sum(-1)[..., None]
        back = jnp.arange(k - 1, -1, -1)
        on_path = jnp.sort(jnp.where(self.path, jnp.arange(M), -1), -1)  # the path from the root down, right-aligned
        node = jnp.take_along_axis(on_path, jnp.broadcast_to(jnp.maximum(M - 1 - back, 0), (*depth.shape[:2], k)), -1)
        drafted = jnp.take_along_axis(self.nodes[:, None], jnp.maximum(node, 0), -1)
        place = self.length[:, None, None] - 1 - (back - depth)
        inside = jnp.maximum(jnp.minimum(place, self.tokens.shape[1] - 1), 0)
        text = jnp.take_along_axis(self.tokens[:, None], inside, -1)
        return jnp.where(back < depth, drafted, jnp.where(place >= 0, text, -1))

    def _with_path(self, counts: jax.Array) -> jax.Array:
        """Float32 [B, N, V], ``counts`` [B, V] of a text plus the tokens on each node's path."""
        rows = jnp.arange(self.nodes.shape[0])[:, None, None]
        nodes = jnp.arange(self.path.shape[1])[None, :, None]
        counts = jnp.broadcast_to(counts[:, None], (*self.path.shape[:2], counts.shape[1]))
        return counts.at[rows, nodes, self.nodes[:, None]].add(jnp.float32(self.path))
