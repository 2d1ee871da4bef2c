"""The parameters of method auto, its state, and the proposals of a round."""

import jax
from flax import struct

from ...core.cache import Rows
from ...core.tree import Tree
from ..parts.running_acceptance import RunningAcceptance
from .times import Times


class Parameters(struct.PyTreeNode):
    """The parameters of the method.

    Attributes:
      models: the draft model or the head, if there is one.
      times: the arms' times.
      rates: float32 [2], the acceptance rates of the model's chains before the first round, at the
        temperatures 0 and 1.
    """

    models: tuple
    times: Times
    rates: jax.Array


class Draft(struct.PyTreeNode):
    """The model's chain or tree, and the rows of its nodes, see ``ReaderState``."""

    tree: Tree
    rows: Rows
    row_of: jax.Array | None


class Prepared(struct.PyTreeNode):
    """The proposals of a round, before they are cut to the shape of an arm.

    Attributes:
      arm: int32, the number of the arm.
      near: bool, whether a draft nearly pays, see ``Outlook.choose``.
      looked_up: int32 [B, D], the tokens that follow the longest match.
      matched: int32 [B], the length of the match, 0 for none.
      ran: bool, whether the model drafted.
      from_model: bool [B], whether the row takes the model's tokens.
      count: int32, the tokens of the model's chain, or the levels of its tree.
      draft: the model's tokens; None until it has drafted.
    """

    arm: jax.Array
    near: jax.Array
    looked_up: jax.Array
    matched: jax.Array
    ran: jax.Array
    from_model: jax.Array
    count: jax.Array
    draft: Draft | None = None


class AutoState(struct.PyTreeNode):
    """The state between rounds.

    Attributes:
      models: the state of the draft model or of the head, if there is one.
      acceptance: the tests of each source of drafts, [B, RATES], see ``rates``.
      since_near: int32 [B], the rounds of the row since a draft was last near to paying.
      prepared: the proposals, within a round only.
    """

    models: tuple
    acceptance: RunningAcceptance
    since_near: jax.Array
    prepared: Prepared | None = None
