"""Multi-token prediction as published, mostly inside the target's checkpoint.

Qwen3-Next's names hold one module of any number of layers. The names of DeepSeek-V3, GLM and MiMo
hold several modules of one layer each. Published checkpoints do not store some options: the code
that reads them knows their values. specjax writes these options as ``mtp_...``, and where they are
missing it takes the values of that code.
"""

import re
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...heads.mtp import MtpConfig
from ...models.config import ModelConfig
from ..blocks import Names, rename
from ..config import text_options, to_hf
from ..experts import LAYER, stack_experts, unstack_experts
from ..families import NAMES, SAME_DECODER, layer_names
from ..json_fields import flag, integer
from .base import MOST_LAYERS, Layout, RawCheckpoint, read_layers, without

MTP_FLAGS = ("mtp_normed_features", "mtp_norm_output", "mtp_hidden_first")
_OWN = {"num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", *MTP_FLAGS}
_LAYERS = {"num_hidden_layers", "layer_types", "use_sliding_window", "max_window_layers"}
_LAYERS |= {"first_k_dense_replace", "mlp_layer_types"}
"""Options that depend on the number of the target's layers and do not hold for a module."""

_LIKE_TARGET = ("deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite")
"""The families whose modules have layers of the target's kind, with latent attention or experts."""

HYBRIDS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Families whose modules have the gated attention and the experts of the target's full layers.

Their norms are about zero.
"""


class MtpLayout(Layout):
    """Qwen3-Next's names: ``mtp.fc``, ``mtp.layers.N``, ``mtp.norm``.

    A module passes its normed hidden state on.

    Attributes:
      several: whether the layout has names for several modules.
      normed_features, norm_output, hidden_first: see ``MtpConfig``; their values where config.json
        has none.
      parts: the names of a module's tensors outside its layers.
    """

    name, kind = "mtp", "mtp"
    several, normed_features, norm_output, hidden_first = False, True, True, False
    parts = {
        "join": "fc", "embedding_norm": "pre_fc_norm_embedding", "hidden_norm": "pre_fc_norm_hidden", "norm": "norm",
        "embed": "embed_tokens", "head": "lm_head",
    }  # fmt: skip

    def is_default(self, config: MtpConfig) -> bool:
        return config.modules == 1

    def matches(self, checkpoint: RawCheckpoint) -> bool:
        return checkpoint.begins("mtp.")

    def prefix(self, depth: int, module: int) -> str:
        """The prefix of a module's tensors, for a target of ``depth`` layers."""
        return "mtp."

    def layer(self, prefix: str, i: int | str) -> str:
        """The prefix of layer i of the module at ``prefix``; ``i`` may be the letter N."""
        return f"{prefix}layers.{i}"

    def config(self, checkpoint: RawCheckpoint, target: ModelConfig) -> MtpConfig:
        return self.build(checkpoint, text_options(checkpoint.raw, checkpoint.where))

    def build(self, checkpoint: RawCheckpoint, raw: dict) -> MtpConfig:
        """The configuration of a head. ``raw`` holds its options and those of its layers."""
        count = integer(1, MOST_LAYERS).optional()
        fields = {
            "num_hidden_layers": integer(1, 1000),
            "num_nextn_predict_layers": count,
            "mtp_num_hidden_layers": count,
        }
        depth, modules, layers = checkpoint.read(raw, fields).values()
        modules, layers = modules or 1, layers or 1
        self._check_tensors(checkpoint, raw, depth, modules, layers)
        defaults = (self.normed_features, self.norm_output, self.hidden_first)
        flags = checkpoint.read(raw, {name: flag(default) for name, default in zip(MTP_FLAGS, defaults)})
        prefix = self.prefix(depth, 0)
        shape = without(raw, _OWN | _LAYERS) | {"num_hidden_layers": layers, "use_sliding_window": False}
        if like_target := self.is_like_target(raw):
            shape["first_k_dense_replace"] = 0 if f"{prefix}mlp.gate.weight" in checkpoint else layers
        first = self.layer(prefix, 0)
        if raw.get("model_type") in HYBRIDS:
            shape["layer_types"] = ["full_attention"] * layers
        if raw.get("model_type") == "qwen3_next":
            dense = () if f"{first}.mlp.gate.weight" in checkpoint else range(layers)
            shape |= {"decoder_sparse_step": 1, "mlp_only_layers": [*dense]}
        own = read_layers(checkpoint, shape, first, _LIKE_TARGET if like_target else HYBRIDS)
        return MtpConfig(
            own,
            target_layers=depth,
            own_embedding=f"{prefix}{self.parts['embed']}.weight" in checkpoint,
            own_head=f"{prefix}{self.parts['head']}.weight" in checkpoint,
            modules=modules,
            **{name.removeprefix("mtp_"): value for name, value in flags.items()},
        )

    def _check_tensors(self, checkpoint: RawCheckpoint, raw: dict, depth: int, modules: int, layers: int) -> None:
        """Raises ConfigError for unsupported modules, and for more than config.json counts."""
        self.check_size(modules, layers, checkpoint.where)
        further = self.prefix(depth, modules)
        if self.several and checkpoint.begins(further):
            raise ConfigError(
                f"{checkpoint.where}: num_nextn_predict_layers is {modules}, "
                f"but there are tensors of a further module {further[:-1]}; mend config.json"
            )
        own = [name for name in checkpoint.tensors if name.startswith(self.prefixes(depth, modules))]
        if self.is_like_target(raw) or raw.get("model_type") in HYBRIDS:
            return
        if any(".experts." in name or name.endswith("mlp.gate.weight") for name in own):
            raise ConfigError(
                f"{checkpoint.where}: a module of multi-token prediction is a mixture of experts; "
                f"only dense layers are supported"
            )
        if any("kv_a_proj" in name for name in own):
            raise ConfigError(
                f"{checkpoint.where}: a module of multi-token prediction has multi-head latent attention; "
                f"only grouped queries are supported"
            )

    def is_like_target(self, raw: dict) -> bool:
        """Whether the modules have layers of the target's kind, rather than Llama's."""
        return False

    def prefixes(self, depth: int, modules: int) -> tuple[str, ...]:
        """The prefixes of all modules' tensors."""
        return tuple(self.prefix(depth, k) for k in range(modules))

    def check_size(self, modules: int, layers: int, where: str) -> None:
        """Raises ConfigError for a number of modules, or of layers, that the layout cannot name."""
        if modules != 1 and not self.several:
            raise ConfigError(
                f"{where}: the layout {self.name!r} holds one module of multi-token prediction, not {modules}; "
                f"use deepseek, which holds several"
            )
        if layers != 1 and self.several:
            raise ConfigError(
                f"{where}: the layout {self.name!r} holds modules of one decoder layer, not {layers}; "
                f"use mtp, which holds one module of several layers"
            )

    def names(self, config: MtpConfig, checkpoint: RawCheckpoint | None = None) -> Names:
        table = {}
        for k, prefix in enumerate(self.prefixes(config.target_layers, config.modules)):
            table |= {f"modules.{k}.{ours}": [f"{prefix}{part}.weight"] for ours, part in self.parts.items()}
            for i in range(config.layers.num_layers):
                own = self.layer_names(config, self.layer(prefix, i))
                table |= {f"modules.{k}.{ours.replace('N', str(i))}": theirs for ours, theirs in own.items()}
        return table

    def layer_names(self, config: MtpConfig, prefix: str) -> Names:
        """Each parameter's tensors in the layer at ``prefix``, by paths with N for its number."""
        if config.layers.family not in (*_LIKE_TARGET, *HYBRIDS):
            return layer_names(prefix)
        names = NAMES[config.layers.family]
        inside = {path: own for path, own in names.items() if path.startswith("layers.N.")}
        return {path: rename(own, lambda name: name.replace(LAYER, prefix)) for path, own in inside.items()}

    def stack(self, tensors: dict[str, Any], config: MtpConfig, where: str) -> dict[str, Any]:
        for prefix in self.prefixes(config.target_layers, config.modules):
            tensors = stack_experts(tensors, config.layers, where, self.layer(prefix, "N"))
        return tensors

    def complete(self, tensors: dict[str, np.ndarray], config: MtpConfig) -> dict[str, np.ndarray]:
        for prefix in self.prefixes(config.target_layers, config.modules):
            tensors = unstack_experts(tensors, config.layers, self.layer(prefix, "N"))
        return tensors

    def owns(self, name: str, config: MtpConfig, checkpoint: RawCheckpoint) -> bool:
        return name.startswith(self.prefixes(config.target_layers, config.modules)) or not checkpoint.language_model

    def raw(self, config: MtpConfig) -> dict:
        self.check_size(config.modules, config.layers.num_layers, "this head")
        if any(config.layers.windows) and config.layers.family != "mistral":
            raise ConfigError(
                f"a head with attention windows cannot be written in the layout {self.name!r}; train it without"
            )
        return without(to_hf(config.layers), _LAYERS) | {
            "num_hidden_layers": config.target_layers,
            "num_nextn_predict_layers": config.modules,
            "mtp_num_hidden_layers": config.layers.num_layers,
            **write_flags(config),
        }


class DeepSeekLayout(MtpLayout):
    """The names of DeepSeek-V3 and GLM: the modules stand in ``model.layers``, behind the target's.

    DeepSeek's modules pass on their raw hidden states. GLM's modules pass on the normed ones.
    """

    name, several, norm_output = "deepseek", True, False
    parts = {
        "join": "eh_proj", "embedding_norm": "enorm", "hidden_norm": "hnorm", "norm": "shared_head.norm",
        "embed": "embed_tokens", "head": "shared_head.head",
    }  # fmt: skip

    def is_default(self, config: MtpConfig) -> bool:
        return config.modules > 1

    def matches(self, checkpoint: RawCheckpoint) -> bool:
        return any(re.match(r"model\.layers\.\d+\.(eh_proj|enorm|hnorm)\.", name) for name in checkpoint.tensors)

    def prefix(self, depth: int, module: int) -> str:
        return f"model.layers.{depth + module}."

    def layer(self, prefix: str, i: int | str) -> str:
        return prefix[:-1]

    def config(self, checkpoint: RawCheckpoint, target: ModelConfig) -> MtpConfig:
        glm = str(checkpoint.raw.get("model_type")).startswith("glm")
        return self.build(checkpoint, ({"mtp_norm_output": True} if glm else {}) | checkpoint.raw)

    def is_like_target(self, raw: dict) -> bool:
        name = str(raw.get("model_type"))
        return SAME_DECODER.get(name, name) in _LIKE_TARGET


class MimoLayout(MtpLayout):
    """MiMo's names: ``model.mtp_layers.N``. In the joined input, the hidden state comes first."""

    name, several, hidden_first = "mimo", True, True
    parts = {
        "join": "input_proj", "embedding_norm": "token_layernorm", "hidden_norm": "hidden_layernorm",
        "norm": "final_layernorm", "embed": "embed_tokens", "head": "lm_head",
    }  # fmt: skip

    def is_default(self, config: MtpConfig) -> bool:
        return False

    def matches(self, checkpoint: RawCheckpoint) -> bool:
        return checkpoint.begins("model.mtp_layers.")

    def prefix(self, depth: int, module: int) -> str:
        return f"model.mtp_layers.{module}."

    def layer(self, prefix: str, i: int | str) -> str:
        return prefix[:-1]


def write_flags(config: MtpConfig) -> dict[str, bool]:
    """The options ``mtp_...``, which published checkpoints do not store."""
    return {name: getattr(config, name.removeprefix("mtp_")) for name in MTP_FLAGS}
