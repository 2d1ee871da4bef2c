"""EAGLE, EAGLE-2 and EAGLE-3: a head continues the target's features and grows a tree."""

import dataclasses
from functools import cached_property

from ..core.tree import Topology, as_topology, from_paths, node_count
from ..errors import RequestError
from ..loop.drafter import Drafter, TrainedHead
from ..rules.acceptance import Drawn
from .dynamic_tree import DynamicTree
from .mtp import Mtp
from .parts.best_first import check_best_first
from .parts.draft_sampling import Drawing
from .parts.feature_reader import FeatureReader
from .parts.head_drafter import HeadDrafter
from .parts.parallel_chain import OnePass
from .tree import DraftTree

PUBLISHED = "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
"""The paths of the tree mc_sim_7b_63 in the published code; each digit is a rank."""


@dataclasses.dataclass(frozen=True)
class Eagle(HeadDrafter, DraftTree):
    """A tree of fixed shape from an EAGLE-1 head (Li et al. 2024, 2401.15077).

    Attributes:
      tree: the shape, in any form that ``tree.as_topology`` takes; by default the published one of
        25 nodes and depth 5.
      siblings: as in ``DraftTree``.
    """

    tree: Topology = from_paths(tuple(map(int, path)) for path in PUBLISHED.split())
    needs = TrainedHead("eagle")
    with_encoder = False
    reader = FeatureReader()


@dataclasses.dataclass(frozen=True)
class Eagle2(HeadDrafter, DynamicTree):
    """The most probable tree from an EAGLE-1 head (EAGLE-2, Li et al. 2024, 2406.16858).

    Attributes:
      tree_nodes, tree_depth, tree_top_k, tree_temperature: as in ``DynamicTree``. The defaults are
        the paper's, 60 nodes with the root.
    """

    tree_nodes: int = 59
    tree_depth: int = 6
    tree_top_k: int = 10
    needs = TrainedHead("eagle")
    with_encoder = False
    reader = FeatureReader()


@dataclasses.dataclass(frozen=True)
class Eagle3(Drawing, HeadDrafter):
    """Drafts from an EAGLE-3 head (Li et al. 2025, 2503.01840) or its version 3.1.

    By default it drafts the most probable tree, as EAGLE-2 does. With ``tree`` it drafts a tree of
    fixed shape, with ``num_speculative_tokens`` a chain. A P-EAGLE head drafts the most probable
    tree or a chain in one pass.

    Attributes:
      tree_nodes, tree_depth, tree_top_k, tree_temperature: as in ``Eagle2``.
      tree, siblings: as in ``DraftTree``.
      num_speculative_tokens: as in ``DraftModel``.
    """

    tree_nodes: int = 59
    tree_depth: int = 6
    tree_top_k: int = 10
    tree_temperature: float = 1.0
    tree: Topology | None = None
    siblings: str = "without_replacement"
    num_speculative_tokens: int | None = None
    needs = TrainedHead("eagle3")

    def __post_init__(self):
        if self.tree is not None:
            object.__setattr__(self, "tree", as_topology(self.tree))
        super().__post_init__()
        _ = self.grower  # raises RequestError if the options do not fit

    @cached_property
    def grower(self) -> Drafter:
        """The method that these options stand for. Raises RequestError if they do not fit."""
        if self.head.mask_token is not None:
            return self._one_pass()
        if self.tree is not None:
            return Eagle(self.tree, self.siblings, head=self.head, **self.draft_options)
        if self.num_speculative_tokens is not None:
            return Mtp(self.num_speculative_tokens, head=self.head, **self.draft_options)
        nodes, depth, top_k, temperature = self.tree_nodes, self.tree_depth, self.tree_top_k, self.tree_temperature
        return Eagle2(nodes, depth, top_k, temperature, head=self.head)

    def _one_pass(self) -> OnePass:
        if self.tree is not None:
            raise RequestError(
                "tree gives a shape, and a P-EAGLE head drafts chains and probable trees; leave tree out"
            )
        if self.num_speculative_tokens is not None:
            return OnePass(node_count("num_speculative_tokens", self.num_speculative_tokens))
        for name in ("tree_nodes", "tree_depth", "tree_top_k"):
            node_count(name, getattr(self, name))
        check_best_first(self.tree_nodes, self.tree_top_k, self.tree_depth, self.head.draft_vocab_size)
        return OnePass(self.tree_depth, self.tree_nodes, self.tree_top_k, self.tree_temperature)

    @property
    def depth(self) -> int:
        return self.grower.depth

    @property
    def drawn(self) -> Drawn:
        return self.grower.drawn

    def init(self, target, draft, tokens, lengths, taps, **reading):
        return self.grower.init(target, draft, tokens, lengths, taps, **reading)

    def reads(self, target, draft, tokens, lengths, taps):
        return self.grower.reads(target, draft, tokens, lengths, taps)

    def propose(self, target, draft, state, key):
        return self.grower.propose(target, draft, state, key)

    def commit(self, target, draft, state, tree, scored, verdict):
        return self.grower.commit(target, draft, state, tree, scored, verdict)

    def rest(self, target, draft, state, tree, scored, verdict):
        return self.grower.rest(target, draft, state, tree, scored, verdict)
