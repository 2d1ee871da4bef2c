"""The most probable token tree from a draft model.

It is the tree of EAGLE-2 (Li et al. 2024, section 4), without EAGLE's head.
"""

import dataclasses
from functools import cached_property

from ..loop.drafter import Models
from .parts.grower import GrownDrafter
from .parts.probable_tree import ProbableTree
from .parts.token_reader import TokenReader


@dataclasses.dataclass(frozen=True)
class DynamicTree(GrownDrafter):
    """Expands the likeliest nodes of each level, and keeps the most probable nodes of all.

    ``ProbableTree`` describes the tree. By default the target scores 16 nodes, the root included.

    Attributes:
      tree_nodes: drafted nodes, without the root.
      tree_depth: levels below the root, at least 2.
      tree_top_k: nodes expanded in a level, and children considered of each.
      tree_temperature: the temperature at which probabilities are compared. Lower values make
        narrower and deeper trees.
    """

    tree_nodes: int = 15
    tree_depth: int = 5
    tree_top_k: int = 4
    tree_temperature: float = 1.0
    needs = Models()
    with_encoder = True

    @cached_property
    def grower(self) -> ProbableTree:
        return ProbableTree(TokenReader(), self.tree_nodes, self.tree_depth, self.tree_top_k, self.tree_temperature)
