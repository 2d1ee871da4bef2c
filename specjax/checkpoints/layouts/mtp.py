"""Multi-token prediction as published, mostly inside the checkpoint of the target: DeepSeek-V3 and GLM, Qwen3-Next, MiMo.

Qwen3-Next's names are those of one module of any number of layers, the others those of several modules, one for each depth, of one layer.
Options named ``mtp_`` say what the published layouts leave to the code that reads them; without them what that code does holds.
"""

import re

from ...errors import ConfigError
from ...heads.mtp import MtpConfig, MtpHead
from ...models.config import ModelConfig
from ..config import to_hf
from ..families import layer_names
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
    several, norm_output, hidden_first = False, True, False
    parts = {
        "join": "fc", "embedding_norm": "pre_fc_norm_embedding", "hidden_norm": "pre_fc_norm_hidden", "norm": "norm",
        "embed": "embed_tokens", "head": "lm_head",
    }  # fmt: skip

    def matches(self, found: Found) -> bool:
        return found.begins("mtp.")

    def prefix(self, depth: int, module: int) -> str:
        """How the names of a module's tensors begin, for a target of so many layers."""
        return "mtp."

    def layer(self, prefix: str, i: int) -> str:
        """How the names of the tensors of its i-th decoder layer begin."""
        return f"{prefix}layers.{i}"

    def config(self, found: Found, target: ModelConfig) -> MtpConfig:
        raw, depth = found.raw, found.need(found.raw, "num_hidden_layers")
        modules, layers = raw.get("num_nextn_predict_layers") or 1, raw.get("mtp_num_hidden_layers") or 1
        self.check(modules, layers, found.where)
        further = self.prefix(depth, modules)
        if self.several and found.begins(further):
            raise ConfigError(
                f"{found.where}: num_nextn_predict_layers is {modules}, and there are tensors of a module {further[:-1]} beyond"
            )
        own = [name for name in found.tensors if name.startswith(self.prefixes(depth, modules))]
        if any(".experts." in name or name.endswith("mlp.gate.weight") for name in own):
            raise ConfigError(f"{found.where}: a module of multi-token prediction is a mixture of experts; only dense layers are supported")
        if any("kv_a_proj" in name for name in own):
            raise ConfigError(
                f"{found.where}: a module of multi-token prediction has multi-head latent attention; only grouped queries are supported"
            )
        if str(raw.get("model_type")).startswith(("qwen3_next", "qwen3_5")):
            raise ConfigError(f"{found.where}: layers of {raw['model_type']} (gated attention, norms about zero) are not supported")
        prefix = self.prefix(depth, 0)
        shape = without(raw, _OWN | _LAYERS) | {"num_hidden_layers": layers, "use_sliding_window": False}
        return MtpConfig(
            layers_of(found, shape, self.layer(prefix, 0)),
            target_layers=depth,
            normed_features=bool(raw.get("mtp_normed_features", True)),
            norm_output=bool(raw.get("mtp_norm_output", self.norm_output)),
            hidden_first=bool(raw.get("mtp_hidden_first", self.hidden_first)),
            own_embedding=f"{prefix}{self.parts.get('embed')}.weight" in found,
            own_head=f"{prefix}{self.parts.get('head')}.weight" in found,
            modules=modules,
        )

    def prefixes(self, depth: int, modules: int) -> tuple[str, ...]:
        return tuple(self.prefix(depth, k) for k in range(modules))

    def check(self, modules: int, layers: int, where: str) -> None:
        """Raises ConfigError where the layout has no names for so many modules of so many layers."""
        if modules != 1 and not self.several:
            raise ConfigError(
                f"{where}: the layout {self.name!r} holds one module of multi-token prediction, not {modules}; deepseek holds several"
            )
        if layers != 1 and self.several:
            raise ConfigError(
                f"{where}: the layout {self.name!r} holds modules of one decoder layer, not {layers}; mtp holds one of several"
            )

    def names(self, config: MtpConfig, found: Found | None = None) -> dict[str, list[str]]:
        named = {}
        for k, prefix in enumerate(self.prefixes(config.target_layers, config.modules)):
            named |= {f"modules.{k}.{ours}": [f"{prefix}{part}.weight"] for ours, part in self.parts.items()}
            for i in range(config.layers.num_layers):
                own = layer_names(self.layer(prefix, i))
                named |= {f"modules.{k}.{ours.replace('N', str(i))}": theirs for ours, theirs in own.items()}
        return named

    def owns(self, name: str, config: MtpConfig, found: Found) -> bool:
        return name.startswith(self.prefixes(config.target_layers, config.modules)) or not found.language_model

    def raw(self, config: MtpConfig) -> dict:
        self.check(config.modules, config.layers.num_layers, "this head")
        if any(config.layers.windows) and config.layers.family != "mistral":
            raise ConfigError(f"a head with attention windows cannot be written in the layout {self.name!r}; train it without")
        return without(to_hf(config.layers), _LAYERS) | {
            "num_hidden_layers": config.target_layers,
            "num_nextn_predict_layers": config.modules,
            "mtp_num_hidden_layers": config.layers.num_layers,
            "mtp_normed_features": config.normed_features,
            "mtp_norm_output": config.norm_output,
            "mtp_hidden_first": config.hidden_first,
        }


class DeepSeek(Mtp):
    """The layout of DeepSeek-V3 and GLM: for each module one more of ``model.layers``; what it hands on is raw, but normed in GLM."""

    name, several, norm_output = "deepseek", True, False
    parts = {
        "join": "eh_proj", "embedding_norm": "enorm", "hidden_norm": "hnorm", "norm": "shared_head.norm",
        "embed": "embed_tokens", "head": "shared_head.head",
    }  # fmt: skip

    def matches(self, found: Found) -> bool:
        return any(re.match(r"model\.layers\.\d+\.(eh_proj|enorm|hnorm)\.", name) for name in found.tensors)

    def prefix(self, depth: int, module: int) -> str:
        return f"model.layers.{depth + module}."

    def layer(self, prefix: str, i: int) -> str:
        return prefix[:-1]

    def config(self, found: Found, target: ModelConfig) -> MtpConfig:
        glm = str(found.raw.get("model_type")).startswith("glm")
        raw = ({"mtp_norm_output": True} if glm else {}) | found.raw
        return super().config(Found(raw, found.tensors, found.where), target)


class MiMo(Mtp):
    """The layout of MiMo: ``model.mtp_layers.N``; the joined input begins with the hidden state."""

    name, several, hidden_first = "mimo", True, True
    parts = {
        "join": "input_proj", "embedding_norm": "token_layernorm", "hidden_norm": "hidden_layernorm", "norm": "final_layernorm",
        "embed": "embed_tokens", "head": "lm_head",
    }  # fmt: skip

    def matches(self, found: Found) -> bool:
        return found.begins("model.mtp_layers.")

    def prefix(self, depth: int, module: int) -> str:
        return f"model.mtp_layers.{module}."

    def layer(self, prefix: str, i: int) -> str:
        return prefix[:-1]
