"""A chain from the target's first layers and its own output matrix.

The method is the self-speculation of LayerSkip (Elhoushi et al. 2024, section 4.3).
"""

import dataclasses

from ..core.checks import whole
from ..errors import RequestError
from ..models.config import ModelConfig
from ..models.decoder import Skip
from .parts.self_chain import SelfChain


@dataclasses.dataclass(frozen=True)
class EarlyExit(SelfChain):
    """Draws tokens one after another from the target's first ``exit_layer`` layers.

    The target's final norm and output matrix follow these layers. The verify pass runs the
    remaining layers only. The method works with any model, and best with a model that was trained
    to exit early.

    Attributes:
      exit_layer: the number of layers that draft; by default half of them.
      num_speculative_tokens: the longest chain.
      draft_confidence: drafting stops after a token if the likeliest token at its place is less
        probable than this. The value is the first threshold of a row; it then follows the row's
        acceptance rate. 0 never stops.
    """

    exit_layer: int | None = None
    num_speculative_tokens: int = 6
    draft_confidence: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if self.exit_layer is not None:
            whole("exit_layer", self.exit_layer)

    def skip(self, config: ModelConfig) -> Skip:
        L = config.num_layers
        if L < 2:
            raise RequestError(
                "early_exit needs a target of at least two layers, and this one has one; use another method"
            )
        exit_layer = L // 2 if self.exit_layer is None else self.exit_layer
        if not 1 <= exit_layer < L:
            raise RequestError(f"exit_layer must be 1 to {L - 1} for a target of {L} layers, not {exit_layer}")
        above = tuple(range(exit_layer, L))
        return Skip(above, above)
