"""The target drafts a chain without some of its sub-layers (Draft & Verify, Zhang et al. 2024)."""

import dataclasses

from ..core.checks import whole
from ..errors import RequestError
from ..models.config import ModelConfig
from ..models.decoder import Skip
from .parts.self_chain import SelfChain


@dataclasses.dataclass(frozen=True)
class LayerSkip(SelfChain):
    """Draws tokens one after another from the target without some attention and MLP sub-layers.

    The method needs no training; ``tools.tune.layers`` searches for the sub-layers to skip. The
    paper named LayerSkip describes another method, see ``EarlyExit``.

    Attributes:
      skip_attention, skip_mlp: the layers that skip this sub-layer, counted from 0. If neither is
        given, every other layer between the first and the last skips both.
      num_speculative_tokens: the longest chain.
      draft_confidence: as in ``EarlyExit``.
    """

    skip_attention: tuple[int, ...] | None = None
    skip_mlp: tuple[int, ...] | None = None
    num_speculative_tokens: int = 8
    draft_confidence: float = 0.8

    def __post_init__(self):
        super().__post_init__()
        for name in ("skip_attention", "skip_mlp"):
            layers = getattr(self, name)
            if layers is None:
                continue
            if not isinstance(layers, list | tuple):
                raise RequestError(f"{name} must be a list of layers such as (1, 3), not {layers!r}")
            object.__setattr__(self, name, tuple(whole(name, layer, 0) for layer in layers))

    def skip(self, config: ModelConfig) -> Skip:
        L = config.num_layers
        attention = self.skip_attention
        mlp = self.skip_mlp
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
