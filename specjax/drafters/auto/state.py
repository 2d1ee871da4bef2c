"""The parameters of method auto, its state, and the proposals of a round."""

import jax
from flax import struct

from ...core.cache import Rows
from ...core.tree import Tree
from ..parts.running_acceptance import RunningAcceptance
from .calibration import Calibration
from .experience import Experience
from .probes import Probing
from .times import Times


class Parameters(struct.PyTreeNode):
    """The draft model or the head, if there is one; the arms' times; the model's acceptance."""

    models: tuple
    times: Times
    experience: Experience


class Draft(struct.PyTreeNode):
    """The model's chain or tree, and the rows of its nodes, see ``ReaderState``."""

    tree: Tree
    rows: Rows
    row_of: jax.Array | None


class Prepared(struct.PyTreeNode):
    """The proposals of a round, before they are cut to the shape of an arm.

    Attributes:
      arm: int32, the number of the arm.
      near: bool, whether a draft nearly pays, see ``choose``.
      expected: float32 [B], the tokens that the arm is expected to emit.
      looked_up: int32 [B, D], the tokens that follow the longest match.
      matched: int32 [B], the length of the match, 0 for none.
      ran: bool, whether the model drafted.
      from_model: bool [B], whether the row takes the model's tokens.
      count: int32, the tokens of the model's chain, or the levels of its tree.
      draft: the model's tokens; None until it has drafted.
    """

    arm: jax.Array
    near: jax.Array
    expected: jax.Array
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
      acceptance: the running acceptance rates, [B, RATES]: those of tokens looked up after a match
        of 1, 2, ... tokens; of the model's likeliest tokens in a greedy row; of its drawn tokens in
        a sampled row; and of its other tokens in a tree, where the likeliest is rejected.
      tests: int32 [B, 2, 2], the accepted and the tested tokens of the model in all rounds, in
        greedy and in sampled rows.
      probing: when to try the model again.
      calibration: the tokens that the rounds of each arm have emitted, and those that were
        expected; None if no arm has a tree.
      since_near: int32 [B], the rounds of the row since a draft was last near to paying.
      prepared: the proposals, within a round only.
    """

    models: tuple
    acceptance: RunningAcceptance
    tests: jax.Array
    probing: Probing
    calibration: Calibration | None
    since_near: jax.Array
    prepared: Prepared | None = None
