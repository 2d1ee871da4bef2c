"""Multi-token prediction as published, mostly inside the checkpoint of the target: DeepSeek-V3 and GLM, Qwen3-Next, MiMo.

Each of them is one module. Options named ``mtp_`` say what the published layouts leave to the code that reads them; without them what
that code does holds.
"""

import re

from ...config import ModelConfig, to_hf
from ...errors import ConfigError
from ...models.families import layer_names
from ..mtp import MtpConfig, MtpHead
from .base import Found, Layout, layers_of, without

_OWN = {
    "num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_normed_features", "mtp_norm_output", "mtp_hidden_first",
    "mtp_use_dedicated_embeddings",
}  # fmt: skip
_LAYERS = {"num_hidden_layers", "layer_types", "use_sliding_window", "max_window_layers"}
"""Options of the target's layers, of which there are more than of a module's."""


class Mtp(Layout):
    """The layout of Qwen3-Next: ``mtp.fc``, ``mtp.layers.N``, ``mtp.norm``; what a module hands on is normed."""

    name, kind, module = "mtp", "mtp", MtpHead
    norm_output, hidden_first = True, False
    parts = {
        "join": "fc", "embedding_norm": "pre_fc_norm_embedding", "hidden_norm": "pre_fc_norm_hidden", "norm": "norm",
        "embed": "embed_tokens", "head": "lm_head",
    }  # fmt: skip

    def matches(self, found: Found) -> bool:
        return found.begins("mtp.")

    def prefix(self, depth: int, module: int = 0) -> str:
        """How the names of its tensors begin, for a target of so many layers; and those of a further module, if the layout has several."""
        return "mtp."

    def layer(self, prefix: str) -> str:
        """How the names of its decoder layers begin."""
        return f"{prefix}layers.N"

    def config(self, found: Found, target: ModelConfig) -> MtpConfig:
        raw, depth = found.raw, found.need(found.raw, "num_hidden_layers")
        prefix, second = self.prefix(depth), self.prefix(depth, 1)
        if (raw.get("num_nextn_predict_layers") or 1) != 1 or second != prefix and found.begins(second):
            raise ConfigError(f"{found.where}: several modules of multi-token prediction are not supported; one is")
        own = [name for name in found.tensors if name.startswith(prefix)]
        if any(".experts." in name or name.endswith("mlp.gate.weight") for name in own):
            raise ConfigError(f"{found.where}: the module {prefix[:-1]} is a mixture of experts, which is not supported; dense layers are")
        if any("kv_a_proj" in name for name in own):
            raise ConfigError(
                f"{found.where}: the module {prefix[:-1]} has multi-head latent attention, which is not supported; grouped queries are"
            )
        if str(raw.get("model_type")).startswith(("qwen3_next", "qwen3_5")):
            raise ConfigError(f"{found.where}: layers of {raw['model_type']} (gated attention, norms about zero) are not supported")
        layers = {"num_hidden_layers": raw.get("mtp_num_hidden_layers") or 1, "use_sliding_window": False}
        first = self.layer(prefix).replace("N", "0")
        return MtpConfig(
            layers_of(found, without(raw, _OWN | _LAYERS) | layers, first),
            target_layers=depth,
            normed_features=bool(raw.get("mtp_normed_features", True)),
            norm_output=bool(raw.get("mtp_norm_output", self.norm_output)),
            hidden_first=bool(raw.get("mtp_hidden_first", self.hidden_first)),
            own_embedding=f"{prefix}{self.parts.get('embed')}.weight" in found,
            own_head=f"{prefix}{self.parts.get('head')}.weight" in found,
        )

    def names(self, config: MtpConfig, found: Found | None = None) -> dict[str, list[str]]:
        prefix = self.prefix(config.target_layers)
        return {ours: [f"{prefix}{part}.weight"] for ours, part in self.parts.items()} | layer_names(self.layer(prefix))

    def owns(self, name: str, config: MtpConfig, found: Found) -> bool:
        return name.startswith(self.prefix(config.target_layers)) or not found.language_model

    def raw(self, config: MtpConfig) -> dict:
        if any(config.layers.windows) and config.layers.family != "mistral":
            raise ConfigError(f"a head with attention windows cannot be written in the layout {self.name!r}; train it without")
        return without(to_hf(config.layers), _LAYERS) | {
            "num_hidden_layers": config.target_layers,
            "num_nextn_predict_layers": 1,
            "mtp_num_hidden_layers": config.layers.num_layers,
            "mtp_normed_features": config.normed_features,
            "mtp_norm_output": config.norm_output,
            "mtp_hidden_first": config.hidden_first,
        }


class DeepSeek(Mtp):
    """The layout of DeepSeek-V3 and GLM: one more ``model.layers``; what a module hands on is raw, but normed in GLM."""

    name, norm_output = "deepseek", False
    parts = {
        "join": "eh_proj", "embedding_norm": "enorm", "hidden_norm": "hnorm", "norm": "shared_head.norm",
        "embed": "embed_tokens", "head": "shared_head.head",
    }  # fmt: skip

    def matches(self, found: Found) -> bool:
        return any(re.match(r"model\.layers\.\d+\.(eh_proj|enorm|hnorm)\.", name) for name in found.tensors)

    def prefix(self, depth: int, module: int = 0) -> str:
        return f"model.layers.{depth + module}."

    def layer(self, prefix: str) -> str:
        return prefix[:-1]

    def config(self, found: Found, target: ModelConfig) -> MtpConfig:
        glm = str(found.raw.get("model_type")).startswith("glm")
        raw = ({"mtp_norm_output": True} if glm else {}) | found.raw
        return super().config(Found(raw, found.tensors, found.where), target)


class MiMo(Mtp):
    """The layout of MiMo: ``model.mtp_layers.0``; the joined input begins with the hidden state."""

    name, hidden_first = "mimo", True
    parts = {
        "join": "input_proj", "embedding_norm": "token_layernorm", "hidden_norm": "hidden_layernorm", "norm": "final_layernorm",
        "embed": "embed_tokens", "head": "lm_head",
    }  # fmt: skip

    def matches(self, found: Found) -> bool:
        return found.begins("model.mtp_layers.")

    def prefix(self, depth: int, module: int = 0) -> str:
        return f"model.mtp_layers.{module}."

    def layer(self, prefix: str) -> str:
        return prefix[:-1]
