"""A token tree of fixed shape from a draft model.

The method is that of SpecInfer (Miao et al. 2024, section 3) and Sequoia (Chen et al. 2024).
"""

import dataclasses
from functools import cached_property

from ..core.tree import Topology, as_topology, expansion
from ..loop.drafter import Models
from .parts.draft_sampling import Drawing
from .parts.fixed_tree import FixedTree
from .parts.grower import GrownDrafter
from .parts.token_reader import TokenReader

DEFAULT = (1, 1, 3, 1, 1, 1, 1, 1)
"""The widths of the default tree, SpecInfer's."""


@dataclasses.dataclass(frozen=True)
class DraftTree(Drawing, GrownDrafter):
    """Draws the children of every node from the draft, level by level.

    The default shape is SpecInfer's <1,1,3,1,1,1,1,1>.

    Attributes:
      tree: the shape: children at each level such as "2,2,1", a TOML file, or a list of paths.
      siblings: how children are drawn: "without_replacement", "independent" (SpecInfer's own;
        accepts most above temperature 0, and equals a chain at 0) or "top_k" (the likeliest
        tokens).
    """

    tree: Topology = expansion(DEFAULT)
    siblings: str = "without_replacement"
    needs = Models()
    with_encoder = True

    def __post_init__(self):
        object.__setattr__(self, "tree", as_topology(self.tree))
        super().__post_init__()

    @cached_property
    def grower(self) -> FixedTree:
        return FixedTree(TokenReader(), self.tree, self.siblings, **self.draft_options)
