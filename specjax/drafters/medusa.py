"""A tree of fixed shape from heads on the target's last hidden state.

The method is Medusa (Cai et al. 2024, sections 2.1 and 2.3.3).
"""

import dataclasses

import jax.numpy as jnp

from ..core.tree import Topology, as_topology
from ..loop.drafter import TrainedHead
from .parts.head_drafter import HeadDrafter
from .parts.head_levels import check_shape, fill_tree, fit_default

PATHS = (
    (0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0, 0),
)  # fmt: skip
"""The paths of the default tree, twelve nodes.

Published trees have 63 nodes. They pay if scoring 63 nodes costs no more than scoring one.
"""


@dataclasses.dataclass(frozen=True)
class Medusa(HeadDrafter):
    """Fills a tree with the likeliest tokens of the heads: head k, from 0, fills depth k + 1.

    All heads read one hidden state: the target's for the token before the root. From it the target
    itself predicts the root, and the heads predict the tokens after the root. Heads do not see the
    tokens between. All nodes of a depth therefore have children with the same tokens.

    Attributes:
      tree: the shape; a node of rank r at depth k + 1 is the r-th choice of head k. By default
        ``PATHS``, without the depths that have no head. Published lists (``medusa_choices``) can be
        given as they are.
    """

    tree: Topology | None = None
    needs = TrainedHead("medusa")

    def __post_init__(self):
        shape = fit_default(PATHS, self.head.num_heads) if self.tree is None else as_topology(self.tree)
        check_shape(shape, self.head)
        object.__setattr__(self, "tree", shape)

    @property
    def depth(self) -> int:
        assert self.tree is not None  # ``__post_init__`` sets it
        return max(self.tree.depths)

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        """The hidden state float32 [B, E] of the token before the root, or zero without one."""
        read = jnp.take_along_axis(taps[0], jnp.maximum(lengths - 2, 0)[:, None, None], 1)
        return jnp.where((lengths > 1)[:, None], draft.fuse(target, (read,))[:, 0], 0)

    def propose(self, target, draft, state, key):
        assert self.tree is not None  # ``__post_init__`` sets it
        return fill_tree(self.tree, target, draft, state.root, state.drafter), state.drafter

    def commit(self, target, draft, state, tree, scored, verdict):
        """The hidden state float32 [B, E] of the last accepted node.

        The bonus token is the next root, and the target has not read it yet.
        """
        last = jnp.take_along_axis(verdict.path, jnp.maximum(verdict.length - 1, 0)[:, None], 1)
        return draft.fuse(target, (jnp.take_along_axis(scored.taps[0], last[..., None], 1),))[:, 0]
