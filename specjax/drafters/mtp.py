"""Multi-token prediction: modules that were trained with the target draft a chain (DeepSeek-V3, 2412.19437, section 2.2)."""

import dataclasses
from typing import ClassVar

from .eagle import FeatureDrafter, HeadChain


@dataclasses.dataclass(frozen=True)
class Mtp(FeatureDrafter):
    """Draws ``num_speculative_tokens`` tokens one after another, each from the next of the head's modules, and from the last, once all have
    drawn one, on its own hidden states."""

    num_speculative_tokens: int = 3
    heads: ClassVar[tuple[str, ...]] = ("mtp",)

    def grown(self):
        return HeadChain(self.num_speculative_tokens)
