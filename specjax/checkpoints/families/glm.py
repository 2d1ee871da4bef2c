"""GLM-4: rotary positions in neighbouring dimensions of half a head.

The later models norm outputs too. GLM-4.5 has experts, and pairs the halves of the rotated
dimensions.
"""

from ...models.config import ModelConfig
from ..blocks import Tensor, interleave
from ..json_fields import flag
from ..schemas import EPS, HEAD_DIM, HEADS, POSITIONS, ROPE, ROTARY_DECODER, SIZE
from .base import LLAMA_LAYER, Family, model_names
from .grouped import COUNT, GROUPED, GROUPED_HARMLESS, GROUPED_LAYER, read_experts, read_routing, write_experts

_LAYER = LLAMA_LAYER | {
    "mixer.qkv": [Tensor(f"self_attn.{x}_proj.weight", interleave) for x in "qkv"],
    "mixer.qkv_bias": [Tensor(f"self_attn.{x}_proj.bias", interleave) for x in "qkv"],
    "mlp.gate_up": ["mlp.gate_up_proj.weight"] * 2,
}
_NORMS = {
    "mixer_out_norm": ["post_self_attn_layernorm.weight"],
    "mlp_out_norm": ["post_mlp_layernorm.weight"],
}
_OPTIONS = ROTARY_DECODER | {
    "num_key_value_heads": HEADS.optional(2),
    "head_dim": HEAD_DIM.optional(128),
    "max_position_embeddings": POSITIONS.otherwise(131072),
    "partial_rotary_factor": ROPE["partial_rotary_factor"],
    "rms_norm_eps": EPS.otherwise(1.5625e-07),
    "attention_bias": flag(True),
}


def _read(options: dict, where: str) -> dict:
    return dict(qkv_bias=options["attention_bias"])


def _write(config: ModelConfig) -> dict:
    # The default padding of transformers need not lie in the vocabulary.
    return {"attention_bias": config.qkv_bias, "pad_token_id": None}


GLM = Family(
    "glm",
    "GlmForCausalLM",
    "GLM-4-9B-Chat-HF",
    _OPTIONS,
    model_names(_LAYER),
    read=_read,
    write=_write,
    rotated=0.5,
)

GLM4 = Family(
    "glm4",
    "Glm4ForCausalLM",
    "GLM-4-0414 9B and 32B, GLM-Z1",
    _OPTIONS,
    model_names(_LAYER | _NORMS),
    read=lambda options, where: _read(options, where) | dict(normed="both"),
    write=_write,
    rotated=0.5,
)


def _read_moe(options: dict, where: str) -> dict:
    mlps = read_experts(options, where, read_routing(options))
    return dict(qkv_bias=options["attention_bias"], qk_norm=options["use_qk_norm"], mlps=mlps)


GLM4_MOE = Family(
    "glm4_moe",
    "Glm4MoeForCausalLM",
    "GLM-4.5, 4.5-Air, 4.6 and 4.7",
    ROTARY_DECODER
    | GROUPED
    | {
        "num_key_value_heads": HEADS.otherwise(8),
        "head_dim": HEAD_DIM,
        "max_position_embeddings": POSITIONS.otherwise(131072),
        "partial_rotary_factor": ROPE["partial_rotary_factor"],
        "rms_norm_eps": EPS.otherwise(1e-5),
        "attention_bias": flag(),
        "use_qk_norm": flag(),
        "n_routed_experts": COUNT.otherwise(128),
        "num_experts_per_tok": COUNT.otherwise(8),
        "moe_intermediate_size": SIZE.otherwise(1408),
    },
    model_names(LLAMA_LAYER | GROUPED_LAYER),
    read=_read_moe,
    write=lambda config: write_experts(config) | {"attention_bias": config.qkv_bias, "use_qk_norm": config.qk_norm},
    rotated=0.5,
    harmless=GROUPED_HARMLESS,
    drafters="modules in each",
)
