"""The proposals of a round of method auto."""

import jax
from flax import struct

from ...cache import Rows


class Draft(struct.PyTreeNode):
    """The model's chain, and the rows of its nodes, see ``ReaderState``."""

    tokens: jax.Array
    valid: jax.Array
    q: jax.Array
    rows: Rows


class Prepared(struct.PyTreeNode):
    """The proposals of a round, before its tree is cut to the length of an arm.

    Attributes:
      arm: int32, the number of the arm.
      expected: float32 [B], the tokens that the arm is expected to emit.
      looked_up: int32 [B, D], the tokens that follow the longest match.
      matched: int32 [B], the length of the match, 0 for none.
      ran: bool, whether the model drafted.
      drew: bool [B], whether the row takes the model's tokens.
      count: int32, the number of tokens that the model drafted.
      draft: the model's tokens; None until it has drafted.
    """

    arm: jax.Array
    expected: jax.Array
    looked_up: jax.Array
    matched: jax.Array
    ran: jax.Array
    drew: jax.Array
    count: jax.Array
    draft: Draft | None = None
