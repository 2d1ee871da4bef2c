"""Mixtures of experts: Mixtral, Qwen2-MoE, Qwen3-MoE and gpt-oss."""

from ...errors import ConfigError
from ...models.config import ModelConfig
from ...models.feed_forwards import ExpertsConfig, GatedMlpConfig
from ...models.kinds import FeedForwardConfig
from ..json_fields import Field, flag, integer, list_of, number
from ..schemas import (
    HEAD_DIM,
    HEADS,
    LAYER_TYPES,
    LONGEST,
    NEVER,
    POSITIONS,
    ROTARY_DECODER,
    SIZE,
    SIZES,
    WINDOW,
)
from .base import LLAMA_LAYER, Family, every, first_window, layer_types, model_names, read_windows

COUNT = integer(1, 4096)
TRAINING = frozenset({"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"})
"""Options of routers that matter in training only."""

STACKS = {f"mlp.{name}s": [f"mlp.experts.{name}"] for name in ("gate", "up", "down")}
"""The stacks of ``checkpoints.experts``, which take the place of the tensors of experts."""

_SHARED = {
    "mlp.shared.gate_up": ["mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight"],
    "mlp.shared.down": ["mlp.shared_expert.down_proj.weight"],
    "mlp.shared_gate": ["mlp.shared_expert_gate.weight"],
}
QWEN_EXPERTS = STACKS | _SHARED | {"mlp.router": ["mlp.gate.weight"]}
"""The tensors of a mixture of Qwen, with or without an expert that all nodes read."""

_GPT_OSS_LAYER = (
    LLAMA_LAYER
    | STACKS
    | {f"{path}_bias": [f"{name}_bias"] for path, (name,) in STACKS.items()}
    | {
        "mlp.router": ["mlp.router.weight"],
        "mlp.router_bias": ["mlp.router.bias"],
        "mixer.sinks": ["self_attn.sinks"],
    }
)

_WINDOWED = ROTARY_DECODER | {"head_dim": HEAD_DIM, "attention_bias": flag(), "sliding_window": WINDOW.optional()}
_QWEN = _WINDOWED | {
    "max_position_embeddings": POSITIONS.otherwise(32768),
    "num_experts_per_tok": COUNT,
    "num_local_experts": COUNT.optional(),
    "moe_intermediate_size": SIZE,
    "norm_topk_prob": flag(),
    "decoder_sparse_step": integer(1, 1024).otherwise(1),
    "mlp_only_layers": list_of(integer(0, 1023)).optional(),
    "use_sliding_window": flag(),
    "sliding_window": WINDOW.optional(4096),
}


def of_layers(options: dict, experts: ExpertsConfig, where: str) -> tuple[FeedForwardConfig | None, ...]:
    """The feed-forward of each layer: ``experts``, or None for the dense MLP."""
    if experts.chosen > experts.count:
        raise ConfigError(f"{where}: num_experts_per_tok is {experts.chosen}; the model has {experts.count} experts")
    step, dense = options.get("decoder_sparse_step") or 1, options.get("mlp_only_layers") or ()
    layers = range(options["num_hidden_layers"])
    return tuple(None if i in dense or (i + 1) % step else experts for i in layers)


def local_experts(positions: int, count: int, chosen: int) -> dict[str, Field]:
    """The options of a family with ``num_local_experts`` and 8 key heads of size 128, by default.

    The arguments are the other defaults: positions, experts, and those that a token chooses.
    """
    return ROTARY_DECODER | {
        "num_key_value_heads": HEADS.otherwise(8),
        "head_dim": integer(2, 4096).otherwise(128),
        "max_position_embeddings": POSITIONS.otherwise(positions),
        "num_local_experts": COUNT.otherwise(count),
        "num_experts_per_tok": COUNT.otherwise(chosen),
    }


def experts_of(config: ModelConfig) -> ExpertsConfig:
    """The experts of a configuration, which are the same in all layers that have any."""
    return next(mlp for mlp in config.mlps if isinstance(mlp, ExpertsConfig))


def _read_mixtral(options: dict, where: str) -> dict:
    experts = ExpertsConfig(options["num_local_experts"], options["num_experts_per_tok"], options["intermediate_size"])
    windows = (options["sliding_window"],) * options["num_hidden_layers"]
    return dict(windows=windows, mlps=of_layers(options, experts, where))


def _write_mixtral(config: ModelConfig) -> dict:
    experts = experts_of(config)
    return {
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.chosen,
        "sliding_window": first_window(config),
    }


def _read_qwen(options: dict, where: str, windows: tuple, shared: GatedMlpConfig | None = None) -> dict:
    count = options["num_local_experts"] or options["num_experts"]
    sizes = count, options["num_experts_per_tok"], options["moe_intermediate_size"]
    experts = ExpertsConfig(*sizes, normed=options["norm_topk_prob"], shared=shared)
    return dict(windows=windows, mlps=of_layers(options, experts, where))


def _read_qwen2(options: dict, where: str) -> dict:
    """Windows are those of every other layer below ``max_window_layers``.

    The library transformers writes 0 for none.
    """
    used, first = options["use_sliding_window"], options["max_window_layers"]
    alternating = every(options["num_hidden_layers"], options["sliding_window"] or None if used else None, 2)
    default = tuple(window if i < first else None for i, window in enumerate(alternating))
    windows = read_windows(options, where, default)
    read = _read_qwen(options, where, windows, GatedMlpConfig(options["shared_expert_intermediate_size"]))
    return read | dict(qkv_bias=options["qkv_bias"])


def _read_qwen3(options: dict, where: str) -> dict:
    window = options["sliding_window"] if options["use_sliding_window"] else None
    bias = bool(options["attention_bias"])
    read = _read_qwen(options, where, (window,) * options["num_hidden_layers"])
    return read | dict(qkv_bias=bias, out_bias=bias, qk_norm=True)


def _write_qwen(config: ModelConfig) -> dict:
    experts, window = experts_of(config), first_window(config)
    return {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.chosen,
        "moe_intermediate_size": experts.width,
        "norm_topk_prob": experts.normed,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i, mlp in enumerate(config.mlps) if mlp is None],
        "use_sliding_window": window is not None,
        "sliding_window": window or 4096,
    }


def _write_qwen2(config: ModelConfig) -> dict:
    shared = experts_of(config).shared
    assert shared is not None
    sizes = {"shared_expert_intermediate_size": shared.intermediate_size}
    return _write_qwen(config) | sizes | {"qkv_bias": config.qkv_bias, "layer_types": layer_types(config)}


def _read_gpt_oss(options: dict, where: str) -> dict:
    if not (options["rope_scaling"] or options["rope_parameters"]):
        raise ConfigError(f"{where}: rope_parameters is missing; gpt_oss needs it")
    experts = ExpertsConfig(
        options["num_local_experts"], options["num_experts_per_tok"], options["intermediate_size"],
        bias=True, clamp=(options["swiglu_alpha"], options["swiglu_limit"]),
    )  # fmt: skip
    windows = read_windows(options, where, every(options["num_hidden_layers"], options["sliding_window"], 2))
    bias = bool(options["attention_bias"])
    mlps = of_layers(options, experts, where)
    return dict(windows=windows, mlps=mlps, sinks=True, qkv_bias=bias, out_bias=bias)


def _write_gpt_oss(config: ModelConfig) -> dict:
    experts = experts_of(config)
    assert experts.clamp is not None
    alpha, limit = experts.clamp
    return {
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.chosen,
        "swiglu_alpha": alpha,
        "swiglu_limit": limit,
        "attention_bias": config.qkv_bias,
        "sliding_window": first_window(config) or 128,
        "layer_types": layer_types(config),
    }


MIXTRAL = Family(
    "mixtral",
    "MixtralForCausalLM",
    "Mixtral 8x7B and 8x22B",
    _WINDOWED
    | {
        "num_key_value_heads": HEADS.optional(8),
        "max_position_embeddings": POSITIONS.otherwise(131072),
        "attention_bias": NEVER,
        "num_local_experts": COUNT.otherwise(8),
        "num_experts_per_tok": COUNT.otherwise(2),
    },
    model_names(LLAMA_LAYER | STACKS | {"mlp.router": ["block_sparse_moe.gate.weight"]}),
    refused="attention_bias",
    read=_read_mixtral,
    write=_write_mixtral,
    theta=1e6,
    harmless=TRAINING,
    drafters="EAGLE",
    experts=("block_sparse_moe", {"gate": "w1", "up": "w3", "down": "w2"}),
)

QWEN2_MOE = Family(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B",
    _QWEN
    | {
        "attention_bias": NEVER,
        "num_key_value_heads": HEADS.optional(16),
        "num_experts": COUNT.otherwise(60),
        "num_experts_per_tok": COUNT.otherwise(4),
        "moe_intermediate_size": SIZE.otherwise(1408),
        "shared_expert_intermediate_size": SIZE.otherwise(5632),
        "max_window_layers": integer(0, 2**20).otherwise(28),
        "layer_types": LAYER_TYPES,
        "qkv_bias": flag(True),
        "sliding_window": integer(0, LONGEST).optional(4096),
    },
    model_names(LLAMA_LAYER | QWEN_EXPERTS),
    refused="attention_bias",
    read=_read_qwen2,
    write=_write_qwen2,
    harmless=TRAINING,
)

QWEN3_MOE = Family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder",
    _QWEN
    | {
        "num_key_value_heads": HEADS.optional(4),
        "num_experts": COUNT.otherwise(128),
        "num_experts_per_tok": COUNT.otherwise(8),
        "moe_intermediate_size": SIZE.otherwise(768),
    },
    model_names(LLAMA_LAYER | QWEN_EXPERTS),
    read=_read_qwen3,
    write=lambda config: _write_qwen(config) | {"attention_bias": config.qkv_bias},
    harmless=TRAINING | {"max_window_layers"},
    drafters="EAGLE-3, DFlash",
)

GPT_OSS = Family(
    "gpt_oss",
    "GptOssForCausalLM",
    "gpt-oss-20b, gpt-oss-120b; MXFP4 becomes the dtype of the model when it is read",
    _WINDOWED
    | {
        "head_dim": HEAD_DIM.optional(64),
        "num_key_value_heads": HEADS.optional(8),
        "max_position_embeddings": POSITIONS.otherwise(131072),
        "rms_norm_eps": SIZES["rms_norm_eps"].otherwise(1e-5),
        "attention_bias": flag(True),
        "sliding_window": WINDOW.optional(128),
        "layer_types": LAYER_TYPES,
        "num_local_experts": COUNT.otherwise(128),
        "num_experts_per_tok": COUNT.otherwise(4),
        "swiglu_alpha": number(0, 1e3).otherwise(1.702),
        "swiglu_limit": number(0, 1e6).otherwise(7.0),
    },
    model_names(_GPT_OSS_LAYER),
    read=_read_gpt_oss,
    write=_write_gpt_oss,
    theta=150000.0,
    harmless=TRAINING | {"experts_per_token", "initial_context_length"},
    drafters="EAGLE-3",
)
