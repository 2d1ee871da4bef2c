"""Granite: Llama's layers with factors on embeddings, scores, sub-layers and logits.

Granite 4 has the same layers, or Mamba-2 in most of them.
"""

from ...errors import ConfigError
from ...models.config import ModelConfig
from ...models.mixers import Mamba2Config
from ...models.rope import Rope
from ..json_fields import choice, flag, integer, list_of
from ..rope_options import read_rope
from ..schemas import BOUND, DECODER, HEADS, POSITIONS, SIZE, without
from .base import LLAMA_LAYER, Family, model_names, read_layer_types
from .mamba2 import NO_LIMIT, mamba_names
from .mixtures import TRAINING

_FACTOR = BOUND.otherwise(1.0)
_OPTIONS = DECODER | {
    "max_position_embeddings": POSITIONS.otherwise(2048),
    "attention_bias": flag(),
    "embedding_multiplier": _FACTOR,
    "attention_multiplier": _FACTOR,
    "residual_multiplier": _FACTOR,
    "logits_scaling": _FACTOR,
}
_MAMBA = {
    "mamba_n_heads": HEADS.otherwise(128),
    "mamba_d_head": (SIZE | choice("auto")).otherwise("auto"),
    "mamba_n_groups": HEADS.otherwise(1),
    "mamba_d_state": SIZE.otherwise(256),
    "mamba_d_conv": integer(2, 64).otherwise(4),
    "mamba_expand": SIZE.otherwise(2),
    "mamba_conv_bias": flag(True),
    "mamba_proj_bias": flag(),
    "time_step_limit": NO_LIMIT,
}
"""The options of layers with Mamba-2."""


def _read(options: dict, where: str) -> dict:
    bias = options["attention_bias"]
    return dict(
        qkv_bias=bias,
        out_bias=bias,
        embedding_scale=options["embedding_multiplier"],
        attention_scale=options["attention_multiplier"],
        residual_scale=options["residual_multiplier"],
        logit_scale=1 / options["logits_scaling"],
    )


def _write(config: ModelConfig) -> dict:
    return {
        "attention_bias": config.qkv_bias,
        "embedding_multiplier": config.embedding_scale,
        "attention_multiplier": config.attention_scale,
        "residual_multiplier": config.residual_scale,
        "logits_scaling": 1 / config.logit_scale,
    }


def _read_granite4(options: dict, where: str) -> dict:
    kinds = read_layer_types(options, where)
    size = options["head_dim"] or options["hidden_size"] // options["num_attention_heads"]
    rotates = options["position_embedding_type"] == "rope"
    rope = read_rope(options, size, where, 10000.0, None) if rotates else Rope(rotated=0.0)
    recurrent = [kind in ("mamba", "linear_attention") for kind in kinds]
    if all(recurrent):
        raise ConfigError(f"{where}: layer_types has no attention; a layer must have it")
    mamba = _read_mamba(options, where) if any(recurrent) else None
    mixers = tuple(mamba if each else None for each in recurrent)
    return _read(options, where) | dict(rope=rope, mixers=mixers if mamba else ())


def _read_mamba(options: dict, where: str) -> Mamba2Config:
    heads, groups, size = options["mamba_n_heads"], options["mamba_n_groups"], options["mamba_d_head"]
    width = options["mamba_expand"] * options["hidden_size"]
    size = width // heads if size == "auto" else size
    if heads % groups or heads * size != width:
        raise ConfigError(
            f"{where}: mamba_n_heads is {heads}; it must be a multiple of mamba_n_groups, {groups}, and mamba_d_head "
            f"times it must be mamba_expand * hidden_size, {width}"
        )
    return Mamba2Config(
        heads, size, groups, options["mamba_d_state"], options["mamba_d_conv"],
        options["mamba_conv_bias"], options["mamba_proj_bias"],
    )  # fmt: skip


def _write_granite4(config: ModelConfig) -> dict:
    rotates = config.rope.rotated > 0
    kinds = ["linear_attention" if mixer else "full_attention" for mixer in config.mixers]
    mamba = next((mixer for mixer in config.mixers if isinstance(mixer, Mamba2Config)), None)
    own = {"mamba_n_heads": 1}  # transformers checks it in models without such layers too
    if mamba is not None:
        own = {
            "mamba_n_heads": mamba.heads,
            "mamba_d_head": mamba.head_dim,
            "mamba_n_groups": mamba.groups,
            "mamba_d_state": mamba.state_dim,
            "mamba_d_conv": mamba.kernel,
            "mamba_expand": mamba.heads * mamba.head_dim // config.hidden_size,
            "mamba_conv_bias": mamba.conv_bias,
            "mamba_proj_bias": mamba.bias,
        }
    return (
        _write(config)
        | own
        | {
            "num_local_experts": 0,
            "layer_types": kinds or ["full_attention"] * config.num_layers,
            "position_embedding_type": "rope" if rotates else "nope",
        }
        | ({} if rotates else {"rope_parameters": None})
    )


GRANITE = Family(
    "granite",
    "GraniteForCausalLM",
    "Granite 3.0 to 3.3 2B and 8B",
    _OPTIONS | {"mlp_bias": flag()},
    model_names(),
    read=lambda options, where: _read(options, where) | dict(mlp_bias=options["mlp_bias"]),
    write=lambda config: _write(config) | {"mlp_bias": config.mlp_bias},
)

GRANITE4 = Family(
    "granitemoehybrid",
    "GraniteMoeHybridForCausalLM",
    "Granite 4.0 350M, 1B and Micro, and H-350M, H-1B and H-Micro",
    without(_OPTIONS, "intermediate_size")
    | _MAMBA
    | {
        "shared_intermediate_size": SIZE.otherwise(1024),
        "num_local_experts": choice(0),
        "layer_types": list_of(choice("attention", "full_attention", "mamba", "linear_attention")),
        "position_embedding_type": choice("rope", "nope").optional(),
    },
    model_names(
        LLAMA_LAYER
        | {
            "mlp.gate_up": ["shared_mlp.input_linear.weight"] * 2,
            "mlp.down": ["shared_mlp.output_linear.weight"],
        }
        | mamba_names("mamba")
    ),
    refused="mixtures of experts",
    read=_read_granite4,
    write=_write_granite4,
    renamed={"intermediate_size": "shared_intermediate_size"},
    theta=None,
    harmless=TRAINING
    | {"mamba_chunk_size", "init_method", "intermediate_size", "normalization_function", "num_experts_per_tok"},
)
