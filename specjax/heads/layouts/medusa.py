"""Medusa and Hydra heads as published. Their configurations say little, and not always rightly: shapes are taken from the tensors."""

import re

import numpy as np

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
        blocks = {int(j) for _, j, kind, *_ in places if kind == "linear"}
        count = max(blocks, default=0) + 1
        return MedusaConfig(
            **_size(found, f"{_prefix(found)}0.{count}.weight", target),
            num_heads=len({k for k, *_ in places}),  # the configuration of the published heads says 2, and there are 5
            num_layers=count,
        )

    def names(self, config: MedusaConfig, found: Found | None = None) -> dict[str, list[str]]:
        prefix = "" if found is None else _prefix(found)
        return {
            "heads.N.linear": [f"{prefix}N.0.linear.weight"],
            "heads.N.linear_bias": [f"{prefix}N.0.linear.bias"],
            "heads.N.head": [f"{prefix}N.{config.num_layers}.weight"],
        }

    def raw(self, config: MedusaConfig) -> dict:
        return _written(config, "medusa")

    def owns(self, name: str, config: MedusaConfig, found: Found) -> bool:
        return name.startswith(_prefix(found)) and not (_MEDUSA.match(name) and _copied(name))

    def checked(self, module: MedusaHeads, found: Found) -> None:
        for name in found.tensors:
            if _MEDUSA.match(name) and _copied(name):
                first = re.sub(r"\d+\.linear", "0.linear", name)
                if first not in found or not np.array_equal(found.tensors[name][:], found.tensors[first][:]):
                    raise CheckpointError(f"{found.where}: {name} differs from {first}; the blocks of a head are one block applied again")

    def finished(self, tensors: dict[str, np.ndarray], config: MedusaConfig) -> dict[str, np.ndarray]:
        copies = {
            name.replace(".0.linear", f".{j}.linear"): value
            for name, value in tensors.items()
            if ".0.linear" in name
            for j in range(1, config.num_layers)
        }
        return tensors | copies


class Hydra(Layout):
    """``hydra_mlp.{k}.0`` with ``linear`` and ``res_connection``, and ``hydra_lm_head.{k}``, in hydra_lm_head.pt."""

    name, kind, module, file = "hydra", "hydra", MedusaHeads, "hydra_lm_head.safetensors"

    def matches(self, found: Found) -> bool:
        return found.begins("hydra_mlp.", "hydra_lm_head.")

    def config(self, found: Found, target: ModelConfig) -> MedusaConfig:
        raw = found.raw
        if found.begins("prefix_embeding_layer", "prefix_embedding_layer") or raw.get("hydra_head_arch", "mlp") != "mlp":
            raise ConfigError(f"{found.where}: Hydra++ (a prefix layer before the heads) is not supported; use a Hydra head without one")
        if raw.get("grounded_heads") is False or not found.begins("hydra_mlp.0.0.res_connection."):
            raise ConfigError(f"{found.where}: heads that do not read the tokens between (grounded_heads = false) are not supported")
        blocks = {int(match[1]) for match in map(_HYDRA.match, found.tensors) if match}
        if max(blocks) > 0:
            raise ConfigError(f"{found.where}: heads of {max(blocks) + 1} blocks are not supported; Hydra heads of one are")
        return MedusaConfig(
            **_size(found, "hydra_lm_head.0.weight", target),
            num_heads=len({name.split(".")[1] for name in found.tensors if name.startswith(("hydra_mlp.", "hydra_lm_head."))}),
            hydra=True,
            head_bias=found.begins("hydra_lm_head.0.bias"),
            own_embedding="input_embed_fn.weight" in found,
        )

    def names(self, config: MedusaConfig, found: Found | None = None) -> dict[str, list[str]]:
        return {
            "heads.N.linear": ["hydra_mlp.N.0.linear.weight"],
            "heads.N.linear_bias": ["hydra_mlp.N.0.linear.bias"],
            "heads.N.residual": ["hydra_mlp.N.0.res_connection.weight"],
            "heads.N.residual_bias": ["hydra_mlp.N.0.res_connection.bias"],
            "heads.N.head": ["hydra_lm_head.N.weight"],
            "heads.N.head_bias": ["hydra_lm_head.N.bias"],
            "embed": ["input_embed_fn.weight"],
        }

    def raw(self, config: MedusaConfig) -> dict:
        return _written(config, "hydra") | {"hydra_head_arch": "mlp", "grounded_heads": True}


def _prefix(found: Found) -> str:
    return "medusa_head." if found.begins("medusa_head.") else ""


def _copied(name: str) -> bool:
    """Whether a tensor is of a block after the first, which are the first again."""
    parts = name.removeprefix("medusa_head.").split(".")
    return parts[2] == "linear" and parts[1] != "0"


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
