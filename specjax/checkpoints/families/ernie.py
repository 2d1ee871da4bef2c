"""ERNIE 4.5: rotary positions in neighbouring dimensions; experts whose choice is corrected."""

from ...errors import ConfigError
from ...models.config import ModelConfig
from ...models.feed_forwards import ExpertsConfig, GatedMlpConfig
from ...models.feed_forwards.grouped_routing import GroupedRouting
from ..blocks import Tensor, interleave, one_row
from ..json_fields import flag, integer, number
from ..schemas import EPS, HEAD_DIM, HEADS, NEVER, POSITIONS, ROTARY_DECODER, SIZE
from .base import LLAMA_LAYER, Family, model_names
from .grouped import COUNT, GROUPED_LAYER
from .mixtures import TRAINING, experts_of

_LAYER = LLAMA_LAYER | {
    "mixer.qkv": [Tensor(f"self_attn.{x}_proj.weight", interleave) for x in "qkv"],
    "mixer.qkv_bias": [Tensor(f"self_attn.{x}_proj.bias", interleave) for x in "qkv"],
}
_OPTIONS = ROTARY_DECODER | {
    "tie_word_embeddings": flag(True),
    "head_dim": HEAD_DIM,
    "max_position_embeddings": POSITIONS.otherwise(131072),
    "rms_norm_eps": EPS.otherwise(1e-5),
}


def _read(options: dict, where: str) -> dict:
    bias = options["use_bias"]
    return dict(qkv_bias=bias, out_bias=bias, mlp_bias=bias)


def _read_moe(options: dict, where: str) -> dict:
    layers, shared = options["num_hidden_layers"], options["moe_num_shared_experts"]
    count, chosen, width = (options[name] for name in ("moe_num_experts", "moe_k", "moe_intermediate_size"))
    if chosen > count:
        raise ConfigError(f"{where}: moe_k is {chosen}; the model has {count} experts")
    experts = ExpertsConfig(
        count, chosen, width, shared=GatedMlpConfig(shared * width) if shared else None, shared_gate=False,
        routing=GroupedRouting("softmax"),
    )  # fmt: skip
    last = layers - 1 if options["moe_layer_end_index"] == -1 else options["moe_layer_end_index"]
    first, step = options["moe_layer_start_index"], options["moe_layer_interval"]
    mlps = tuple(experts if first <= i <= last and (i + 1) % step == 0 else None for i in range(layers))
    return dict(mlps=mlps if any(mlps) else ())


def _write_moe(config: ModelConfig) -> dict:
    sparse = [i for i, mlp in enumerate(config.mlps) if mlp]
    if not sparse:
        return {"moe_layer_start_index": config.num_layers}
    experts = experts_of(config)
    return {
        "moe_num_experts": experts.count,
        "moe_k": experts.chosen,
        "moe_intermediate_size": experts.width,
        "moe_num_shared_experts": experts.shared.intermediate_size // experts.width if experts.shared else 0,
        "moe_layer_start_index": sparse[0],
        "moe_layer_end_index": sparse[-1],
        "moe_layer_interval": sparse[1] - sparse[0] if len(sparse) > 1 else 1,
    }


ERNIE4_5 = Family(
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    "ERNIE 4.5 0.3B",
    _OPTIONS | {"num_key_value_heads": HEADS.optional(2), "head_dim": HEAD_DIM.optional(128), "use_bias": flag()},
    model_names(_LAYER),
    read=_read,
    write=lambda config: {"use_bias": config.qkv_bias},
    theta=500000.0,
)

ERNIE4_5_MOE = Family(
    "ernie4_5_moe",
    "Ernie4_5_MoeForCausalLM",
    "ERNIE 4.5 21B-A3B and 300B-A47B",
    _OPTIONS
    | {
        "num_key_value_heads": HEADS.optional(4),
        "use_bias": NEVER,
        "moe_intermediate_size": SIZE.otherwise(1536),
        "moe_k": COUNT.otherwise(6),
        "moe_num_experts": COUNT.otherwise(64),
        "moe_num_shared_experts": integer(0, 4096).otherwise(2),
        "moe_layer_start_index": integer(0, 1024).otherwise(1),
        "moe_layer_end_index": integer(-1, 1024).otherwise(-1),
        "moe_layer_interval": integer(1, 1024).otherwise(1),
        "moe_norm_min": number(0, 1e-9).otherwise(1e-12),
    },
    model_names(
        _LAYER | GROUPED_LAYER | {"mlp.correction": [Tensor("mlp.moe_statics.e_score_correction_bias", one_row)]}
    ),
    refused="use_bias",
    read=_read_moe,
    write=_write_moe,
    theta=500000.0,
    harmless=TRAINING | {"moe_capacity", "moe_use_aux_free"},
    is_unused=lambda config, name: name.startswith("model.mtp_"),
)
