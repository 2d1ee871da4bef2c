"""EAGLE-1 and EAGLE-2 heads as their authors write them."""

from ...heads.eagle import EagleConfig
from ...models.config import ModelConfig
from ..blocks import Names
from ..config import to_hf
from ..families import layer_names
from ..json_fields import flag
from .base import DEPTH, Layout, RawCheckpoint, read_layers, without


class EagleLayout(Layout):
    """EAGLE-1 and EAGLE-2, in the layout of their authors.

    The tensors are ``fc`` and ``layers.0``, which has no input norm; there is no norm at the end.
    config.json is that of a language model of one layer.
    """

    name, kind, default = "eagle", "eagle", True

    def matches(self, checkpoint: RawCheckpoint) -> bool:
        return "fc.weight" in checkpoint and checkpoint.begins("layers.0.")

    def config(self, checkpoint: RawCheckpoint, target: ModelConfig) -> EagleConfig:
        options = checkpoint.read(checkpoint.raw, {"bias": flag(True), "num_target_layers": DEPTH})
        return EagleConfig(
            read_layers(checkpoint, without(checkpoint.raw, ("bias", "qkv_bias", "num_target_layers")), "layers.0"),
            target_layers=options["num_target_layers"] or target.num_layers,
            bias=options["bias"],
            own_embedding="embed_tokens.weight" in checkpoint,
            first_norm="layers.0.input_layernorm.weight" in checkpoint,
        )

    def names(self, config: EagleConfig, checkpoint: RawCheckpoint | None = None) -> Names:
        return {"fc": ["fc.weight"], "fc_bias": ["fc.bias"], "embed": ["embed_tokens.weight"]} | layer_names("layers.N")

    def raw(self, config: EagleConfig) -> dict:
        return to_hf(config.layers) | {"bias": config.bias, "num_target_layers": config.target_layers}
