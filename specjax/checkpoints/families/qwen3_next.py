"""Qwen3-Next and Qwen3.5: the gated delta rule in three of four layers, gated attention in the others."""

from ...errors import ConfigError
from ...models.config import ModelConfig
from ...models.mixers import AttentionConfig, DeltaRuleConfig
from ..fields import choice, flag, integer, list_of
from ..rope_options import read_rope
from ..schemas import CORE, HEAD_DIM, HEADS, POSITIONS, ROPE, ROTARY, SIZES
from .base import LLAMA_LAYER, Family, model_names

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
_OPTIONS = (
    CORE
    | SIZES
    | ROTARY
    | {
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
)
_IMAGES = frozenset({"mrope_section", "mrope_interleaved"})
"""Rotary options that give the parts of a picture positions of their own. Text has one position."""


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


def _layer_types(options: dict, where: str) -> list[str]:
    layers, every, kinds = options["num_hidden_layers"], options["full_attention_interval"], options["layer_types"]
    if kinds is None:
        kinds = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    if len(kinds) != layers:
        raise ConfigError(f"{where}: layer_types has {len(kinds)} entries; give one for each of the {layers} layers")
    if "full_attention" not in kinds:
        raise ConfigError(f"{where}: layer_types has no full_attention; a layer must have it")
    return kinds


def _read_qwen3_next(options: dict, where: str) -> dict:
    layers, dense, every = (
        options["num_hidden_layers"],
        options["mlp_only_layers"] or (),
        options["decoder_sparse_step"],
    )
    sparse = [i for i in range(layers) if options["num_experts"] and i not in dense and not (i + 1) % every]
    if sparse:
        raise ConfigError(
            f"{where}: mlp_only_layers lacks layer {sparse[0]}, so it has experts, which are not supported; "
            "use a model of dense layers"
        )
    return _read(options, where)


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


QWEN3_NEXT = Family(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    "models of the architecture of Qwen3-Next with dense layers",
    _OPTIONS
    | {
        "mlp_only_layers": list_of(integer(0, 1023)).optional(),
        "decoder_sparse_step": integer(1, 1024).otherwise(1),
        "num_experts": integer(0, 2**16).otherwise(512),
    },
    model_names(_LAYER | _WHOLE),
    refused="experts",
    read=_read_qwen3_next,
    write=lambda config: _write(config) | {"mlp_only_layers": list(range(config.num_layers))},
    theta=None,
    rotated=0.25,
    harmless=frozenset(
        {"moe_intermediate_size", "norm_topk_prob", "num_experts_per_tok", "output_router_logits"}
        | {"router_aux_loss_coef", "shared_expert_intermediate_size"}
    ),
)

QWEN3_5 = Family(
    "qwen3_5_text",
    "Qwen3_5ForCausalLM",
    "Qwen3.5 and Qwen3.6 with dense layers",
    _OPTIONS,
    model_names(_LAYER | _PARTS),
    refused="images; experts",
    read=_read,
    write=_write,
    theta=None,
    rotated=0.25,
    harmless=frozenset({"mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"}),
)
