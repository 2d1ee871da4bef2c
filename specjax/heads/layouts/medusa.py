"""Medusa and Hydra heads as published. Their configurations say little, and not always rightly: shapes are taken from the tensors."""

import re

from ...config import ModelConfig
from ...errors import CheckpointError, ConfigError
from ..medusa import MedusaConfig, MedusaHeads
from .base import Found, Layout

_MEDUSA = re.compile(r"(medusa_head\.)?\d+\.\d+\.(linear\.)?(weight|bias)$")
_HYDRA = re.compile(r"hydra_mlp\.\d+\.(\d+)\.")


class Medusa(Layout):
    """``{k}.{j}.linear`` for block j of head k and ``{k}.{n}`` for its output, in medusa_lm_head.pt, or under ``medusa_head.`` in a
    language model's checkpoint."""

    name, kind, module, file = "medusa", "medusa", MedusaHeads, "medusa_lm_head.safetensors"

    def matches(self, found: Found) -> bool:
        return any(_MEDUSA.match(name) for name in found.tensors)

    def config(self, found: Found, target: ModelConfig) -> MedusaConfig:
        places = [name.removeprefix("medusa_head.").split(".") for name in found.tensors if _MEDUSA.match(name)]
        count = len({j for _, j, kind, *_ in places if kind == "linear"})
        return MedusaConfig(
            **_size(found, f"{_prefix(found)}0.{count}.weight", target),
            num_heads=len({k for k, *_ in places}),  # the configuration of the published heads says 2, and there are 5
            num_layers=count,
        )

    def names(self, config: MedusaConfig, found: Found | None = None) -> dict[str, list[str]]:
        prefix = "" if found is None else _prefix(found)
        return {
            "heads.N.blocks.N.linear": [f"{prefix}N.M.linear.weight"],
            "heads.N.blocks.N.linear_bias": [f"{prefix}N.M.linear.bias"],
            "heads.N.head": [f"{prefix}N.{config.num_layers}.weight"],
        }

    def raw(self, config: MedusaConfig) -> dict:
        return _written(config, "medusa")

    def owns(self, name: str, config: MedusaConfig, found: Found) -> bool:
        return name.startswith(_prefix(found))


class Hydra(Layout):
    """``hydra_mlp.{k}.{j}`` with ``linear`` and, for the first, ``res_connection``, and ``hydra_lm_head.{k}``, in hydra_lm_head.pt."""

    name, kind, module, file = "hydra", "hydra", MedusaHeads, "hydra_lm_head.safetensors"

    def matches(self, found: Found) -> bool:
        return found.begins("hydra_mlp.", "hydra_lm_head.")

    def config(self, found: Found, target: ModelConfig) -> MedusaConfig:
        raw = found.raw
        if found.begins("prefix_embeding_layer", "prefix_embedding_layer") or raw.get("hydra_head_arch", "mlp") != "mlp":
            raise ConfigError(f"{found.where}: Hydra++ (a prefix layer before the heads) is not supported; use a Hydra head without one")
        if raw.get("grounded_heads") is False or not found.begins("hydra_mlp.0.0.res_connection."):
            raise ConfigError(f"{found.where}: heads that do not read the tokens between (grounded_heads = false) are not supported")
        return MedusaConfig(
            **_size(found, "hydra_lm_head.0.weight", target),
            num_heads=len({name.split(".")[1] for name in found.tensors if name.startswith(("hydra_mlp.", "hydra_lm_head."))}),
            num_layers=len({match[1] for match in map(_HYDRA.match, found.tensors) if match}),
            hydra=True,
            head_bias=found.begins("hydra_lm_head.0.bias"),
            own_embedding="input_embed_fn.weight" in found,
        )

    def names(self, config: MedusaConfig, found: Found | None = None) -> dict[str, list[str]]:
        return {
            "heads.N.blocks.N.linear": ["hydra_mlp.N.M.linear.weight"],
            "heads.N.blocks.N.linear_bias": ["hydra_mlp.N.M.linear.bias"],
            "heads.N.blocks.N.residual": ["hydra_mlp.N.M.res_connection.weight"],
            "heads.N.blocks.N.residual_bias": ["hydra_mlp.N.M.res_connection.bias"],
            "heads.N.head": ["hydra_lm_head.N.weight"],
            "heads.N.head_bias": ["hydra_lm_head.N.bias"],
            "embed": ["input_embed_fn.weight"],
        }

    def raw(self, config: MedusaConfig) -> dict:
        return _written(config, "hydra") | {"hydra_head_arch": "mlp", "grounded_heads": True}


def _prefix(found: Found) -> str:
    return "medusa_head." if found.begins("medusa_head.") else ""


def _size(found: Found, output: str, target: ModelConfig) -> dict:
    """What is known of the target: width and vocabulary by the first head's output matrix."""
    if output not in found or len(found.shape(output)) != 2:
        raise CheckpointError(f"{found.where}: {output} is missing or no matrix; the checkpoint is not whole")
    vocab_size, width = found.shape(output)
    dtype = str(found.raw.get("dtype") or found.raw.get("torch_dtype") or target.dtype).removeprefix("torch.")
    depth = found.raw.get("num_target_layers") or target.num_layers
    return {"target_size": width, "target_layers": depth, "vocab_size": vocab_size, "dtype": dtype}


def _written(config: MedusaConfig, kind: str) -> dict:
    return {
        "model_type": kind,
        f"{kind}_num_heads": config.num_heads,
        f"{kind}_num_layers": config.num_layers,
        "hidden_size": config.target_size,
        "vocab_size": config.vocab_size,
        "num_target_layers": config.target_layers,
        "dtype": config.dtype,
    }
