"""Hydra and Hydra++ heads as their authors write them. The tensors give the shapes."""

import re

from ...errors import ConfigError
from ...heads.hydra import HydraConfig
from ...models.config import ModelConfig
from ..blocks import Names
from ..families import layer_names
from ..json_fields import choice, flag, integer
from .base import Layout, RawCheckpoint, layer_options
from .medusa import read_sizes, write_sizes

_NAME = re.compile(r"hydra_mlp\.\d+\.(\d+)\.")
_PREFIX = "prefix_embeding_layer."  # the published spelling
_FIELDS = {
    "hydra_head_arch": choice("mlp", "prefix-mlp").otherwise("mlp"),
    "hidden_state_offset": integer(0, 1000).optional(),
    "grounded_heads": flag(True),
}


class HydraLayout(Layout):
    """Hydra and Hydra++, in the layout of their authors.

    The tensors are in hydra_lm_head.pt. ``hydra_mlp.{k}.{j}`` is block j of head k, and
    ``hydra_lm_head.{k}`` is the head's output matrix. A block has ``linear``; the first block also
    has ``res_connection``.

    Hydra++ has a dropout before each block and before each output matrix. A dropout has no tensors,
    but it takes a number: block j is ``hydra_mlp.{k}.{2 j + 1}``, and the output matrix is
    ``hydra_lm_head.{k}.1``. The prefix layer is stored as a language model of one layer, like the
    target's. Its embeddings are unused.
    """

    name, kind, default, file = "hydra", "hydra", True, "hydra_lm_head.safetensors"

    def matches(self, checkpoint: RawCheckpoint) -> bool:
        return checkpoint.begins("hydra_mlp.", "hydra_lm_head.")

    def config(self, checkpoint: RawCheckpoint, target: ModelConfig) -> HydraConfig:
        options = checkpoint.read(checkpoint.raw, _FIELDS)
        dropouts = _has_dropouts(checkpoint)
        if options["hidden_state_offset"]:
            raise ConfigError(
                f"{checkpoint.where}: hidden_state_offset {options['hidden_state_offset']} is not supported; "
                f"use a head that reads the last hidden states"
            )
        if not options["grounded_heads"] or not checkpoint.begins(f"hydra_mlp.0.{int(dropouts)}.res_connection."):
            raise ConfigError(
                f"{checkpoint.where}: heads with grounded_heads = false, which do not read the drafted tokens, "
                f"are not supported; use other heads"
            )
        output = "hydra_lm_head.0" + ".1" * dropouts
        sizes = read_sizes(checkpoint, f"{output}.weight", target)
        prefixed = options["hydra_head_arch"] == "prefix-mlp" or checkpoint.begins(_PREFIX)
        like = target.like_llama().replace(num_layers=1, windows=(), tie_embeddings=False, dtype=sizes["dtype"])
        ours = [name for name in checkpoint.tensors if name.startswith(("hydra_mlp.", "hydra_lm_head."))]
        return HydraConfig(
            **sizes,
            num_heads=len({name.split(".")[1] for name in ours}),
            num_layers=len({match[1] for match in map(_NAME.match, ours) if match}),
            head_bias=checkpoint.begins(f"{output}.bias"),
            own_embedding="input_embed_fn.weight" in checkpoint,
            layers=like.replace(**layer_options(checkpoint, f"{_PREFIX}layers.0")) if prefixed else None,
        )

    def names(self, config: HydraConfig, checkpoint: RawCheckpoint | None = None) -> Names:
        dropouts = config.layers is not None if checkpoint is None else _has_dropouts(checkpoint)
        names = {"embed": ["input_embed_fn.weight"], "norm": [f"{_PREFIX}norm.weight"]}
        names |= layer_names(f"{_PREFIX}layers.N")
        for ours, theirs in {"": "weight", "_bias": "bias"}.items():
            names[f"heads.N.head{ours}"] = ["hydra_lm_head.N." + "1." * dropouts + theirs]
            for j in range(config.num_layers):
                place = 2 * j + 1 if dropouts else j
                for k in range(config.num_heads):
                    names[f"heads.{k}.blocks.{j}.linear{ours}"] = [f"hydra_mlp.{k}.{place}.linear.{theirs}"]
                    names[f"heads.{k}.blocks.{j}.residual{ours}"] = [f"hydra_mlp.{k}.{place}.res_connection.{theirs}"]
        return names

    def raw(self, config: HydraConfig) -> dict:
        architecture = "prefix-mlp" if config.layers else "mlp"
        return write_sizes(config) | {"hydra_head_arch": architecture, "grounded_heads": True}

    def owns(self, name: str, config: HydraConfig, checkpoint: RawCheckpoint) -> bool:
        return name != f"{_PREFIX}embed_tokens.weight"


def _has_dropouts(checkpoint: RawCheckpoint) -> bool:
    """Whether dropouts stand between the blocks and take numbers of their own."""
    return checkpoint.begins("hydra_lm_head.0.1.")
