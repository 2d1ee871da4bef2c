"""Hydra (Ankner et al. 2024, 2402.05109): Medusa heads that also read the path to each node."""

import dataclasses

from ..loop.drafter import TrainedHead
from .medusa import Medusa
from .parts.feature_reader import FeatureReader
from .parts.head_levels import fill_tree

_READER = FeatureReader()


@dataclasses.dataclass(frozen=True)
class Hydra(Medusa):
    """As ``Medusa``, but each node has children of its own.

    A round computes one depth after another. With a prefix layer (Hydra++), a round begins by
    passing the hidden states of the newest tokens through that layer.
    """

    needs = TrainedHead("hydra")

    @property
    def prefixed(self) -> bool:
        """Whether the heads have a prefix layer."""
        return self.head.layers is not None

    def init(self, target, draft, tokens, lengths, taps, **reading):
        if not self.prefixed:
            return super().init(target, draft, tokens, lengths, taps, **reading)
        return _READER.init(target, draft, tokens, lengths, taps, self.depth, **reading)

    def reads(self, target, draft, tokens, lengths, taps):
        return _READER.reads(target, draft, tokens, lengths, taps, self.depth) if self.prefixed else None

    def propose(self, target, draft, state, key):
        if not self.prefixed:
            return super().propose(target, draft, state, key)
        first = _READER.begin(target, draft, state, self.depth)
        assert self.tree is not None and first.hidden is not None  # set by ``__post_init__`` and ``begin``
        tree = fill_tree(self.tree, target, draft, state.root, first.hidden[:, 0])
        return tree, state.drafter.replace(rows=first.rows)

    def commit(self, target, draft, state, tree, scored, verdict):
        if not self.prefixed:
            return super().commit(target, draft, state, tree, scored, verdict)
        return _READER.commit(target, draft, state, verdict.path, scored, verdict)

    def rest(self, target, draft, state, tree, scored, verdict):
        if not self.prefixed:
            return super().rest(target, draft, state, tree, scored, verdict)
        return _READER.rest(target, draft, state, tree, scored, verdict, self.depth)
