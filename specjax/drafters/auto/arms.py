"""The kinds of rounds between which method auto chooses, and their values."""

import dataclasses

import jax
import jax.numpy as jnp

from .constants import CONSTANTS


@dataclasses.dataclass(frozen=True)
class Arm:
    """One kind of round.

    Attributes:
      length: the number of drafted tokens of a chain, or the levels of a tree; 0 is plain decoding.
      model: whether the draft model, or the head, drafts. Otherwise all rows look their tokens up.
      nodes: the drafted nodes of the model's most probable tree; 0 for a chain.
      top_k: the nodes of a tree that are expanded in a level, see ``ProbableTree``.
    """

    length: int
    model: bool = False
    nodes: int = 0
    top_k: int = 4

    def __str__(self) -> str:
        if not self.length:
            return "none"
        drafter = "draft" if self.model else "n-grams"
        return f"{drafter}, tree of {self.nodes}" if self.nodes else f"{drafter}, {self.length}"

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of its drafts: length, nodes, and the ``top_k`` of a tree."""
        return self.length, self.nodes, self.top_k if self.nodes else 0

    @property
    def scored(self) -> int:
        """The drafted nodes that the target scores."""
        return self.nodes or self.length


ARMS = Arm(0), *map(Arm, CONSTANTS.lookup_lengths), Arm(CONSTANTS.draft_length, True)
"""The arms where no file names others."""

TREE = Arm(CONSTANTS.tree_levels, True, CONSTANTS.tree_nodes)
"""One more arm there, on devices where scoring many nodes costs little."""


def expected_tokens(alpha: jax.Array, count) -> jax.Array:
    """The expected number of tokens of a round with ``count`` drafts, the bonus token included."""
    alpha = jnp.minimum(alpha, 0.999)
    return (1 - alpha ** (jnp.float32(count) + 1)) / (1 - alpha)


def value_of_arms(expected: jax.Array, left: jax.Array, seconds: jax.Array, ends_together: bool) -> jax.Array:
    """Float32 [A], the tokens a second of each arm.

    That of plain decoding is multiplied by a margin.

    Where the batch ends with its last row, the time that is left counts. It is proportional to 1 /
    E in each row, so the mean over the rows is harmonic, and the rows with most tokens to come
    weigh most.

    Args:
      expected: float32 [B, A], the tokens E that each arm is expected to emit; arm 0 is plain
        decoding.
      left: float32 [B], the tokens to come in each row, 0 for a row that has ended.
      seconds: float32 [A], the time of a round of each arm.
      ends_together: whether the batch ends with its last row.
    """
    if ends_together:
        weight = (left / jnp.maximum(left.max(), 1)) ** CONSTANTS.evenness
        tokens = weight.sum() / jnp.maximum((weight[:, None] / jnp.maximum(expected, 1)).sum(0), 1e-9)
    else:
        tokens = jnp.where(left[:, None] > 0, expected, 0).sum(0)
    margin = CONSTANTS.margin_of_rows if left.size > 1 else CONSTANTS.margin
    return (tokens / seconds).at[0].multiply(margin)
