"""Heads on the target's last hidden state fill a tree of fixed shape (Medusa, Cai et al.

2024, sections 2.1 and 2.3.3).
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

from ..drafter import Drafter, TrainedHead
from ..tree import Topology, as_topology
from .parts.head_levels import check_shape, fill_tree, fit_default

PATHS = (
    (0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0, 0),
)  # fmt: skip
"""Twelve nodes.

Published trees have 63, which pay where scoring 63 nodes costs no more than scoring one.
"""


@dataclasses.dataclass(frozen=True)
class Medusa(Drafter):
    """Head k, from 0, chooses the tokens at depth k + 1, all heads at once, from the hidden state
    before the root.

    That is the newest hidden state that the target has computed. The target itself predicts the
    root from it, and the heads predict the tokens after the root. They do not see the tokens
    between, so that all nodes of a depth have children of the same tokens.

    Attributes:
      tree: the shape; a node of rank r at depth k + 1 is the r-th choice of head k. By default
        ``PATHS``, as deep as there are heads. Published lists (``medusa_choices``) can be given as
        they are.
      head: the configuration of the heads.
    """

    tree: Topology | None = None
    head: Any = dataclasses.field(kw_only=True)
    needs = TrainedHead("medusa")

    def __post_init__(self):
        shape = fit_default(PATHS, self.head.num_heads) if self.tree is None else as_topology(self.tree)
        check_shape(shape, self.head)
        object.__setattr__(self, "tree", shape)

    @property
    def depth(self) -> int:
        return max(self.tree.depths)

    @property
    def taps(self) -> tuple[int, ...]:
        return self.head.taps

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        """The hidden state float32 [B, E] of the token before the root; zeros for a prompt of one
        token.
        """
        read = jnp.take_along_axis(taps[0], jnp.maximum(lengths - 2, 0)[:, None, None], 1)
        return jnp.where((lengths > 1)[:, None], draft.fuse(target, (read,))[:, 0], 0)

    def propose(self, target, draft, state, key):
        return fill_tree(self.tree, target, draft, state.root, state.drafter), state.drafter

    def commit(self, target, draft, state, tree, scored, verdict):
        """The hidden state of the last node that was kept.

        The bonus token, the next root, has none yet.
        """
        last = jnp.take_along_axis(verdict.path, jnp.maximum(verdict.length - 1, 0)[:, None], 1)
        return draft.fuse(target, (jnp.take_along_axis(scored.taps[0], last[..., None], 1),))[:, 0]
