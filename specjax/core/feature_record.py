"""The newest features of a batch, recorded on the device. A head learns from them.

A feature head reads the target's taps of the committed tokens, and learns the target's distribution
after them. Verification computes both, so a training need not run the target again.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from ..errors import RequestError
from .checks import whole
from .verdict import Verdict

MOST_TOKENS = 65536


class Features(struct.PyTreeNode):
    """The features of the newest F committed tokens of B rows, each with n taps of size E.

    Token i of a row, counted from 0, is in slot i % F. Prompts are not recorded.

    Attributes:
      count: int32 [B], the tokens since the buffer was emptied. Those beyond F overwrote others.
      place: int32 [B, F], the place of each token in the row's text.
      taps: float32 [B, F, n, E], the taps that the drafter reads.
      hidden: float32 [B, F, E], the hidden states that ``Model.logits`` maps to the logits after
        each token.
    """

    count: jax.Array
    place: jax.Array
    taps: jax.Array
    hidden: jax.Array

    def add(self, tree, scored, verdict: Verdict, place: jax.Array, active: jax.Array) -> "Features":
        """The record with the accepted path of one more round, of ``active`` rows, bool [B].

        Args:
          tree: not read.
          scored: the target's output for every node, with the drafter's taps.
          verdict: the rule's verdict, before it is cut at the row's end: places after that end are
            void.
          place: int32 [B], the place of the root.
        """
        F = self.place.shape[1]
        node = jnp.arange(verdict.path.shape[1])
        accepted = active[:, None] & (node < verdict.length[:, None])
        slot = jnp.where(accepted, (self.count[:, None] + node) % F, F)  # F is outside of the buffer

        def on_path(x):
            return jnp.take_along_axis(x, verdict.path[..., None], 1)

        put = jax.vmap(lambda buffer, value, at: buffer.at[at].set(value, mode="drop"))
        return Features(
            self.count + accepted.sum(-1),
            put(self.place, place[:, None] + node, slot),
            put(self.taps, jnp.stack([*map(on_path, scored.taps)], 2), slot),
            put(self.hidden, on_path(scored.hidden), slot),
        )


@dataclasses.dataclass(frozen=True)
class FeatureRecording:
    """The size of the record of a row.

    Attributes:
      tokens: the number of tokens that the buffer holds. A further token overwrites the oldest.
    """

    tokens: int = 512

    def __post_init__(self):
        whole("tokens", self.tokens, 1, MOST_TOKENS)

    def make_empty(self, B: int, depth: int, taps: int, config) -> Features:
        """An empty record of B rows.

        Args:
          depth, taps: the longest path of the drafter in edges, and the number of its taps.
          config: the target's, with ``hidden_size``.

        Raises RequestError for a drafter without taps, and for a buffer with no room for a path.
        """
        if not taps:
            raise RequestError("features are recorded for a head that reads taps of the target; use method 'eagle3'")
        if self.tokens <= depth:
            raise RequestError(f"a record of {self.tokens} tokens has no room for a path of {depth + 1}; give it more")
        F = self.tokens
        E = config.hidden_size
        return Features(
            jnp.zeros(B, jnp.int32), jnp.zeros((B, F), jnp.int32), jnp.zeros((B, F, taps, E)), jnp.zeros((B, F, E))
        )
