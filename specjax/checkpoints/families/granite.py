"""Granite: Llama's layers with factors on embeddings, scores, sub-layers and logits.

Granite 4 has the same layers where it is neither a hybrid nor a mixture of experts.
"""

from ...errors import ConfigError
from ...models.config import ModelConfig
from ...models.rope import Rope
from ..json_fields import choice, flag, list_of
from ..rope_options import read_rope
from ..schemas import BOUND, DECODER, POSITIONS, SIZE
from .base import LLAMA_LAYER, Family, model_names
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
_MAMBA = frozenset({
    "mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_head", "mamba_d_conv", "mamba_expand",
    "mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias", "time_step_limit",
})  # fmt: skip
"""Options of layers that a dense model lacks."""


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
    layers, kinds = options["num_hidden_layers"], options["layer_types"]
    if len(kinds) != layers:
        raise ConfigError(f"{where}: layer_types has {len(kinds)} entries; give one for each of the {layers} layers")
    size = options["head_dim"] or options["hidden_size"] // options["num_attention_heads"]
    rotates = options["position_embedding_type"] == "rope"
    rope = read_rope(options, size, where, 10000.0, None) if rotates else Rope(rotated=0.0)
    return _read(options, where) | dict(rope=rope)


def _write_granite4(config: ModelConfig) -> dict:
    rotates = config.rope.rotated > 0
    return (
        _write(config)
        | {
            "num_local_experts": 0,
            "mamba_n_heads": 1,  # transformers checks it in models without such layers too
            "layer_types": ["full_attention"] * config.num_layers,
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
    "Granite 4.0 350M, 1B and Micro",
    {name: field for name, field in _OPTIONS.items() if name != "intermediate_size"}
    | {
        "shared_intermediate_size": SIZE.otherwise(1024),
        "num_local_experts": choice(0),
        "layer_types": list_of(choice("attention", "full_attention")),
        "position_embedding_type": choice("rope", "nope").optional(),
    },
    model_names(
        LLAMA_LAYER
        | {
            "mlp.gate_up": ["shared_mlp.input_linear.weight"] * 2,
            "mlp.down": ["shared_mlp.output_linear.weight"],
        }
    ),
    refused="layers of Mamba, mixtures of experts",
    read=_read_granite4,
    write=_write_granite4,
    renamed={"intermediate_size": "shared_intermediate_size"},
    theta=None,
    harmless=TRAINING | _MAMBA | {"init_method", "intermediate_size", "normalization_function", "num_experts_per_tok"},
)
