"""Multi-token prediction: modules that were trained with the target draft a chain (DeepSeek-V3,
2412.19437, section 2.2).
"""

import dataclasses
from functools import cached_property

from ..drafter import TrainedHead
from .parts.feature_chain import FeatureChain
from .parts.grown import HeadDrafter


@dataclasses.dataclass(frozen=True)
class Mtp(HeadDrafter):
    """Draws ``num_speculative_tokens`` tokens: one from each module, the further ones from the last
    module.
    """

    num_speculative_tokens: int = 3
    needs = TrainedHead("mtp")

    @cached_property
    def grower(self) -> FeatureChain:
        return FeatureChain(self.num_speculative_tokens)
