"""Multi-token prediction: the module that was trained with the target drafts a chain (DeepSeek-V3, 2412.19437, section 2.2)."""

import dataclasses
from typing import ClassVar

from .eagle import FeatureDrafter, HeadChain


@dataclasses.dataclass(frozen=True)
class Mtp(FeatureDrafter):
    """Draws ``num_speculative_tokens`` tokens one after another from the module, which reads its own hidden states from the second on."""

    num_speculative_tokens: int = 3
    heads: ClassVar[tuple[str, ...]] = ("mtp",)

    def grown(self):
        return HeadChain(self.num_speculative_tokens)
