"""Multi-token prediction: a chain from modules that were trained with the target.

The method is that of DeepSeek-V3 (2412.19437, section 2.2).
"""

import dataclasses
from functools import cached_property

from ..loop.drafter import TrainedHead
from .parts.draft_sampling import Drawing
from .parts.feature_chain import FeatureChain
from .parts.grower import HeadDrafter


@dataclasses.dataclass(frozen=True)
class Mtp(Drawing, HeadDrafter):
    """Draws one token from each module, and further tokens from the last module.

    Attributes:
      num_speculative_tokens: as in ``DraftModel``.
    """

    num_speculative_tokens: int = 3
    needs = TrainedHead("mtp")

    @cached_property
    def grower(self) -> FeatureChain:
        return FeatureChain(self.num_speculative_tokens, **self.draft_options)
