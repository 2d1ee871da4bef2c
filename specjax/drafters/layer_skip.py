"""The target drafts a chain without some of its sub-layers (Draft & Verify, Zhang et al. 2024)."""

import dataclasses

from ..checks import whole
from ..errors import RequestError
from ..models.config import ModelConfig
from ..models.decoder import Skip
from .parts.self_chain import SelfChain


@dataclasses.dataclass(frozen=True)
class LayerSkip(SelfChain):
    """Draws tokens one after another from the target without a set of attention and MLP sub-layers.

    It needs no training; ``planning.layers`` searches the sub-layers to skip. The paper called
    LayerSkip is another method, see ``EarlyExit``.

    Attributes:
      skip_attention, skip_mlp: the layers without these sub-layers, from 0. Where neither is given,
        every other layer between the first and the last skips both.
      num_speculative_tokens: the longest chain.
      draft_confidence: drafting stops after a token whose likeliest alternative was less probable
        than this. The threshold follows the acceptance rate from there. 0 never stops.
    """

    skip_attention: tuple[int, ...] | None = None
    skip_mlp: tuple[int, ...] | None = None
    num_speculative_tokens: int = 8
    draft_confidence: float = 0.8

    def __post_init__(self):
        self.check_chain()
        for name in ("skip_attention", "skip_mlp"):
            layers = getattr(self, name)
            if layers is None:
                continue
            if not isinstance(layers, list | tuple):
                raise RequestError(f"{name} must be a list of layers such as (1, 3), not {layers!r}")
            object.__setattr__(self, name, tuple(whole(name, layer, 0) for layer in layers))

    def skip(self, config: ModelConfig) -> Skip:
        L = config.num_layers
        attention, mlp = self.skip_attention, self.skip_mlp
        if attention is None and mlp is None:
            attention = mlp = tuple(range(1, L - 1, 2)) or (L - 1,)
        skip = Skip(tuple(attention or ()), tuple(mlp or ()))
        for name, layers in (("skip_attention", skip.attention), ("skip_mlp", skip.mlp)):
            if layers and max(layers) >= L:
                raise RequestError(f"{name} names layer {max(layers)}, and the target has the layers 0 to {L - 1}")
        if not skip.attention + skip.mlp:
            raise RequestError("layer_skip leaves nothing out; name layers in skip_attention or skip_mlp")
        if len({*skip.attention}) == len({*skip.mlp}) == L:
            raise RequestError("layer_skip leaves out every sub-layer; take some from skip_attention or skip_mlp")
        return skip
