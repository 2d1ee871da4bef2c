"""Qwen3-Next and Qwen3.5: the gated delta rule, and gated attention in each fourth layer."""

from collections.abc import Sequence

from ...errors import ConfigError
from ...models.config import ModelConfig
from ...models.feed_forwards import ExpertsConfig, GatedMlpConfig
from ...models.mixers import AttentionConfig, DeltaRuleConfig
from ..json_fields import choice, flag, integer, list_of
from ..rope_options import read_rope
from ..schemas import HEAD_DIM, HEADS, POSITIONS, ROPE, ROTARY_DECODER, SIZE
from .base import LLAMA_LAYER, Family, model_names, read_layer_types
from .mixtures import COUNT, QWEN_EXPERTS, TRAINING, of_layers

_LAYER = LLAMA_LAYER | {
    "mixer.conv": ["linear_attn.conv1d.weight"] * 3,
    "mixer.log_rate": ["linear_attn.A_log"],
    "mixer.decay_bias": ["linear_attn.dt_bias"],
    "mixer.norm": ["linear_attn.norm.weight"],
    "mixer.out_proj": ["linear_attn.out_proj.weight"],
}
_WHOLE = {"mixer.qkvz": ["linear_attn.in_proj_qkvz.weight"], "mixer.ba": ["linear_attn.in_proj_ba.weight"]}
_PARTS = {
    "mixer.qkvz": [f"linear_attn.in_proj_{part}.weight" for part in ("qkv", "qkv", "qkv", "z")],
    "mixer.ba": [f"linear_attn.in_proj_{part}.weight" for part in "ba"],
}

_DIM = integer(1, 4096)
_OPTIONS = ROTARY_DECODER | {
    "head_dim": HEAD_DIM.optional(256),
    "max_position_embeddings": POSITIONS.otherwise(32768),
    "partial_rotary_factor": ROPE["partial_rotary_factor"],
    "attention_bias": flag(),
    "attn_output_gate": choice(True).optional(True),
    "layer_types": list_of(choice("linear_attention", "full_attention")).optional(),
    "full_attention_interval": integer(1, 1024).otherwise(4),
    "linear_conv_kernel_dim": integer(2, 64).otherwise(4),
    "linear_key_head_dim": _DIM.otherwise(128),
    "linear_value_head_dim": _DIM.otherwise(128),
    "linear_num_key_heads": HEADS.otherwise(16),
    "linear_num_value_heads": HEADS.otherwise(32),
}
_IMAGES = frozenset({"mrope_section", "mrope_interleaved"})
"""Rotary options that give the parts of a picture positions of their own. Text has one position."""

_HARMLESS = frozenset({"mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"})


def _read(options: dict, where: str) -> dict:
    keys, values = options["linear_num_key_heads"], options["linear_num_value_heads"]
    if values % keys:
        raise ConfigError(f"{where}: linear_num_key_heads is {keys}; it must divide linear_num_value_heads, {values}")
    table = {name: value for name, value in (options["rope_parameters"] or {}).items() if name not in _IMAGES}
    rope = read_rope(options | {"rope_parameters": table}, options["head_dim"], where, 10000.0, 0.25)
    bias, heads = options["attention_bias"], options["num_attention_heads"]
    attention = AttentionConfig(
        heads, options["num_key_value_heads"] or heads, options["head_dim"], rope,
        qkv_bias=bias, out_bias=bias, qk_norm=True, output_gate=True,
    )  # fmt: skip
    delta = DeltaRuleConfig(
        keys, values, options["linear_key_head_dim"], options["linear_value_head_dim"],
        options["linear_conv_kernel_dim"],
    )  # fmt: skip
    mixers = tuple(delta if kind == "linear_attention" else attention for kind in _layer_types(options, where))
    return dict(norm_offset=1.0, qk_norm=True, qkv_bias=bias, out_bias=bias, rope=rope, mixers=mixers)


def _layer_types(options: dict, where: str) -> Sequence[str]:
    layers, every = range(options["num_hidden_layers"]), options["full_attention_interval"]
    default = ["linear_attention" if (i + 1) % every else "full_attention" for i in layers]
    return read_layer_types(options, where, default, needed="full_attention")


def _read_experts(options: dict, where: str) -> dict:
    if not options["num_experts"]:
        return _read(options, where)
    experts = ExpertsConfig(
        options["num_experts"], options["num_experts_per_tok"], options["moe_intermediate_size"],
        normed=options["norm_topk_prob"], shared=GatedMlpConfig(options["shared_expert_intermediate_size"]),
    )  # fmt: skip
    mlps = of_layers(options, experts, where)
    return _read(options, where) | dict(mlps=mlps if any(mlps) else ())


def _write(config: ModelConfig) -> dict:
    mixers = [layer.mixer for layer in config.layers]
    delta = next((mixer for mixer in mixers if isinstance(mixer, DeltaRuleConfig)), None)
    kinds = ["linear_attention" if isinstance(mixer, DeltaRuleConfig) else "full_attention" for mixer in mixers]
    written = {"attention_bias": config.qkv_bias, "layer_types": kinds}
    if delta is None:
        return written
    return written | {
        "linear_conv_kernel_dim": delta.kernel,
        "linear_key_head_dim": delta.key_dim,
        "linear_value_head_dim": delta.value_dim,
        "linear_num_key_heads": delta.key_heads,
        "linear_num_value_heads": delta.value_heads,
    }


def _write_experts(config: ModelConfig) -> dict:
    experts = next((mlp for mlp in config.mlps if isinstance(mlp, ExpertsConfig)), None)
    if experts is None:
        return _write(config) | {"num_experts": 0}
    assert experts.shared is not None
    return _write(config) | {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.chosen,
        "moe_intermediate_size": experts.width,
        "shared_expert_intermediate_size": experts.shared.intermediate_size,
    }


def _write_qwen3_next(config: ModelConfig) -> dict:
    normed = next((mlp.normed for mlp in config.mlps if isinstance(mlp, ExpertsConfig)), True)
    dense = [i for i, mlp in enumerate(config.mlps) if mlp is None]
    return _write_experts(config) | {"norm_topk_prob": normed, "mlp_only_layers": dense}


_EXPERTS = {
    "num_experts_per_tok": COUNT.otherwise(10),
    "moe_intermediate_size": SIZE.otherwise(512),
    "shared_expert_intermediate_size": SIZE.otherwise(512),
}

QWEN3_NEXT = Family(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    "Qwen3-Next-80B-A3B, Qwen3-Coder-Next",
    _OPTIONS
    | _EXPERTS
    | {
        "mlp_only_layers": list_of(integer(0, 1023)).optional(),
        "decoder_sparse_step": integer(1, 1024).otherwise(1),
        "num_experts": integer(0, 4096).otherwise(512),
        "norm_topk_prob": flag(True),
    },
    model_names(_LAYER | QWEN_EXPERTS | _WHOLE),
    read=_read_experts,
    write=_write_qwen3_next,
    theta=None,
    rotated=0.25,
    harmless=TRAINING,
    drafters="modules in each",
)

QWEN3_5 = Family(
    "qwen3_5_text",
    "Qwen3_5ForCausalLM",
    "Qwen3.5 and Qwen3.6 with dense layers",
    _OPTIONS,
    model_names(_LAYER | _PARTS),
    refused="images",
    read=_read,
    write=_write,
    theta=None,
    rotated=0.25,
    harmless=_HARMLESS,
    drafters="modules in each",
)

QWEN3_5_MOE = Family(
    "qwen3_5_moe_text",
    "Qwen3_5MoeForCausalLM",
    "Qwen3.5 and Qwen3.6 with experts",
    _OPTIONS
    | _EXPERTS
    | {
        "intermediate_size": SIZE.otherwise(512),
        "num_experts": COUNT.otherwise(256),
        "num_experts_per_tok": COUNT.otherwise(8),
        "norm_topk_prob": choice(True).optional(True),
    },
    model_names(_LAYER | QWEN_EXPERTS | _PARTS),
    refused="images",
    read=_read_experts,
    write=_write_experts,
    theta=None,
    rotated=0.25,
    harmless=_HARMLESS | TRAINING,
    drafters="modules in each",
)
