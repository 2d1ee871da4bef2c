"""EAGLE, EAGLE-2 and EAGLE-3: a head continues the target's features, in a tree of fixed shape, or the most probable one."""

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ..errors import RequestError
from ..tree import Topology, from_paths
from .draft_model import DraftModel
from .dynamic_tree import DynamicTree
from .parts.best_first import check_best_first
from .parts.one_pass import OnePass
from .parts.readers import FeatureReader
from .tree import DraftTree

PUBLISHED = (
    "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"  # mc_sim_7b_63 in the published code
)


class HeadTree(DraftTree):
    """``DraftTree``, read by a head."""

    reader: ClassVar = FeatureReader()


class HeadDynamicTree(DynamicTree):
    """``DynamicTree``, read by a head."""

    reader: ClassVar = FeatureReader()


class HeadChain(DraftModel):
    """``DraftModel``, read by a head."""

    reader: ClassVar = FeatureReader()


@dataclasses.dataclass(frozen=True)
class FeatureDrafter(ABC):
    """What all methods have in common that draft from features: a tree or chain, read by a head, whose configuration is ``head``."""

    head: Any = dataclasses.field(default=None, kw_only=True)
    heads: ClassVar[tuple[str, ...]] = ()
    needs_draft: ClassVar[bool] = True

    def __post_init__(self):
        self.grown()

    @abstractmethod
    def grown(self) -> DraftTree | DynamicTree | DraftModel:
        """What is grown from the features. Raises RequestError where the options do not fit."""

    depth = property(lambda self: self.grown().depth)
    sampled = property(lambda self: self.grown().sampled)
    taps = property(lambda self: () if self.head is None else self.head.taps)

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype):
        return self.grown().init(target, draft, tokens, lengths, taps, chunk=chunk, dtype=dtype)

    def draft(self, target, draft, state, key):
        return self.grown().draft(target, draft, state, key)

    def commit(self, target, draft, state, tree, out, verdict):
        return self.grown().commit(target, draft, state, tree, out, verdict)


@dataclasses.dataclass(frozen=True)
class Eagle(FeatureDrafter):
    """A tree of fixed shape from an EAGLE-1 head (Li et al. 2024, 2401.15077).

    Attributes:
      tree: the shape; by default the published one of 25 nodes and depth 5.
      siblings: as in ``DraftTree``.
    """

    tree: Topology = from_paths(tuple(map(int, path)) for path in PUBLISHED.split())
    siblings: str = "without_replacement"
    heads: ClassVar[tuple[str, ...]] = ("eagle",)

    def grown(self):
        return HeadTree(self.tree, self.siblings)


@dataclasses.dataclass(frozen=True)
class Eagle2(FeatureDrafter):
    """The most probable nodes of the tree from an EAGLE-1 head (EAGLE-2, Li et al. 2024, 2406.16858).

    Attributes:
      tree_nodes, tree_depth, tree_top_k, tree_temperature: as in ``DynamicTree``; by default the paper's, 60 nodes with the root.
    """

    tree_nodes: int = 59
    tree_depth: int = 6
    tree_top_k: int = 10
    tree_temperature: float = 1.0
    heads: ClassVar[tuple[str, ...]] = ("eagle",)

    def grown(self):
        return HeadDynamicTree(self.tree_nodes, self.tree_depth, self.tree_top_k, self.tree_temperature)


@dataclasses.dataclass(frozen=True)
class Eagle3(Eagle2):
    """Drafts from an EAGLE-3 head (Li et al. 2025, 2503.01840), in which 3.1 is included: the most probable nodes of its tree as in
    EAGLE-2, or a tree of fixed shape if ``tree`` is given, or else a chain if ``num_speculative_tokens`` is. A P-EAGLE head drafts the
    first and the last of these, in one pass.

    Attributes:
      tree, siblings: as in ``DraftTree``.
      num_speculative_tokens: as in ``DraftModel``.
    """

    tree: Topology | None = None
    siblings: str = "without_replacement"
    num_speculative_tokens: int | None = None
    heads: ClassVar[tuple[str, ...]] = ("eagle3",)

    def grown(self):
        if self.head is not None and self.head.mask_token is not None:
            return self._one_pass()
        if self.tree is not None:
            return HeadTree(self.tree, self.siblings)
        if self.num_speculative_tokens is not None:
            return HeadChain(self.num_speculative_tokens)
        return super().grown()

    def _one_pass(self) -> OnePass:
        if self.tree is not None:
            raise RequestError("tree gives a shape, and a P-EAGLE head drafts chains and the most probable trees; leave tree out")
        if self.num_speculative_tokens is not None:
            return OnePass(self.num_speculative_tokens)
        check_best_first(self.tree_nodes, self.tree_top_k, self.tree_depth, self.head.draft_vocab_size)
        return OnePass(self.tree_depth, self.tree_nodes, self.tree_top_k, self.tree_temperature)
