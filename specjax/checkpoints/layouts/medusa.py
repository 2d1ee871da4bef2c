"""Medusa and Hydra heads as published. Their configurations say little, and not always rightly: shapes are taken from the tensors."""

import re

from ...errors import CheckpointError, ConfigError
from ...heads.medusa import MedusaConfig, MedusaHeads
from ...models.config import ModelConfig
from ..families import layer_names
from .base import Found, Layout, layer_options

_MEDUSA = re.compile(r"(medusa_head\.)?\d+\.\d+\.(linear\.)?(weight|bias)$")
_HYDRA = re.compile(r"hydra_mlp\.\d+\.(\d+)\.")
_PREFIX = "prefix_embeding_layer."  # as it is spelled there


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
    """``hydra_mlp.{k}.{j}`` with ``linear`` and, for the first, ``res_connection``, and ``hydra_lm_head.{k}``, in hydra_lm_head.pt.

    Hydra++ has a dropout before each block and output, which takes a number: block j is ``hydra_mlp.{k}.{2 j + 1}``, the output
    ``hydra_lm_head.{k}.1``. Its prefix layer is a language model of one layer like the target's, with embeddings that nothing reads.
    """

    name, kind, module, file = "hydra", "hydra", MedusaHeads, "hydra_lm_head.safetensors"

    def matches(self, found: Found) -> bool:
        return found.begins("hydra_mlp.", "hydra_lm_head.")

    def config(self, found: Found, target: ModelConfig) -> MedusaConfig:
        raw, spaced = found.raw, _spaced(found)
        kind, offset = raw.get("hydra_head_arch", "mlp"), raw.get("hidden_state_offset") or 0
        if kind not in ("mlp", "prefix-mlp"):
            raise ConfigError(f"{found.where}: hydra_head_arch {kind!r} is not supported; use a head of mlp or prefix-mlp")
        if offset:
            raise ConfigError(f"{found.where}: hidden_state_offset {offset} is not supported; use a head that reads the last hidden states")
        if raw.get("grounded_heads") is False or not found.begins(f"hydra_mlp.0.{int(spaced)}.res_connection."):
            raise ConfigError(f"{found.where}: heads that do not read the tokens between (grounded_heads = false) are not supported")
        output = "hydra_lm_head.0" + ".1" * spaced
        size = _size(found, f"{output}.weight", target)
        like = target.replace(num_layers=1, windows=(), tie_embeddings=False, dtype=size["dtype"])
        return MedusaConfig(
            **size,
            num_heads=len({name.split(".")[1] for name in found.tensors if name.startswith(("hydra_mlp.", "hydra_lm_head."))}),
            num_layers=len({match[1] for match in map(_HYDRA.match, found.tensors) if match}),
            hydra=True,
            head_bias=found.begins(f"{output}.bias"),
            own_embedding="input_embed_fn.weight" in found,
            layers=like.replace(**layer_options(found, f"{_PREFIX}layers.0")) if kind == "prefix-mlp" or found.begins(_PREFIX) else None,
        )

    def names(self, config: MedusaConfig, found: Found | None = None) -> dict[str, list[str]]:
        spaced = config.layers is not None if found is None else _spaced(found)
        names = {"embed": ["input_embed_fn.weight"], "norm": [f"{_PREFIX}norm.weight"]} | layer_names(f"{_PREFIX}layers.N")
        for ours, theirs in {"": "weight", "_bias": "bias"}.items():
            names[f"heads.N.head{ours}"] = ["hydra_lm_head.N." + "1." * spaced + theirs]
            for j in range(config.num_layers):
                place = 2 * j + 1 if spaced else j
                for k in range(config.num_heads):
                    names[f"heads.{k}.blocks.{j}.linear{ours}"] = [f"hydra_mlp.{k}.{place}.linear.{theirs}"]
                    names[f"heads.{k}.blocks.{j}.residual{ours}"] = [f"hydra_mlp.{k}.{place}.res_connection.{theirs}"]
        return names

    def raw(self, config: MedusaConfig) -> dict:
        return _written(config, "hydra") | {"hydra_head_arch": "prefix-mlp" if config.layers else "mlp", "grounded_heads": True}

    def owns(self, name: str, config: MedusaConfig, found: Found) -> bool:
        return name != f"{_PREFIX}embed_tokens.weight"


def _spaced(found: Found) -> bool:
    """Whether there are dropouts between the blocks, which are numbered too."""
    return found.begins("hydra_lm_head.0.1.")


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
