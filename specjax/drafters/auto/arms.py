"""The kinds of rounds between which method auto chooses."""

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
      top_k: the nodes of a tree that are expanded in a level, see ``DynamicTree``.
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


ARMS = Arm(0), *map(Arm, CONSTANTS.lookup_lengths), Arm(CONSTANTS.draft_length, True)
"""The arms where no file names others."""

TREE = Arm(CONSTANTS.tree_levels, True, CONSTANTS.tree_nodes)
"""One more arm there, on devices where scoring many nodes costs little."""


def expected_tokens(alpha: jax.Array, count) -> jax.Array:
    """The expected number of tokens of a round with ``count`` drafts, the bonus token included."""
    alpha = jnp.minimum(alpha, 0.999)
    return (1 - alpha ** (jnp.float32(count) + 1)) / (1 - alpha)
