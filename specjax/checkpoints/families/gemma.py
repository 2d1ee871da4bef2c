"""Gemma 2 and 3: norms around each sub-layer, local and global layers, scaled embeddings."""

from ...models.config import ModelConfig
from ..json_fields import flag, integer
from ..rope_options import read_table, write_rope
from ..schemas import (
    ACTIVATION,
    BOUND,
    CORE,
    HEAD_DIM,
    HEADS,
    LAYER_TYPES,
    NEVER,
    POSITIONS,
    ROTARY,
    ROTARY_DECODER,
    WINDOW,
    without,
)
from .base import LLAMA_LAYER, Family, every, model_names, read_windows, write_windows

_LAYER = LLAMA_LAYER | {
    "mixer_out_norm": ["post_attention_layernorm.weight"],
    "mlp_norm": ["pre_feedforward_layernorm.weight"],
    "mlp_out_norm": ["post_feedforward_layernorm.weight"],
}
_NAMES = model_names(_LAYER)

_OPTIONS = without(ROTARY_DECODER, "hidden_act") | {
    "tie_word_embeddings": flag(True),
    "num_key_value_heads": HEADS.optional(4),
    "head_dim": HEAD_DIM.optional(256),
    "hidden_activation": ACTIVATION.optional("gelu_pytorch_tanh"),
    "query_pre_attn_scalar": integer(1, 2**20).otherwise(256),
    "sliding_window": WINDOW.optional(4096),
    "layer_types": LAYER_TYPES,
    "attention_bias": NEVER,
    "use_bidirectional_attention": NEVER,
}
_HARMLESS = frozenset({"hidden_act", "cache_implementation", "_sliding_window_pattern"})


def _read(options: dict, where: str, pattern: int) -> dict:
    layers, window = options["num_hidden_layers"], options["sliding_window"]
    return dict(
        normed="both",
        norm_offset=1.0,
        embedding_scale=options["hidden_size"] ** 0.5,
        attention_scale=options["query_pre_attn_scalar"] ** -0.5,
        logit_softcap=options["final_logit_softcapping"],
        windows=read_windows(options, where, every(layers, window, pattern)),
    )


def _write(config: ModelConfig) -> dict:
    return {
        "query_pre_attn_scalar": round((config.attention_scale or config.head_dim**-0.5) ** -2),
        "final_logit_softcapping": config.logit_softcap,
        **write_windows(config),
    }


def _read_gemma3(options: dict, where: str) -> dict:
    """Global layers may be stretched. Local layers have a theta of their own."""
    kinds = options["rope_parameters"] or {}
    local = {"rope_theta": options["rope_local_base_freq"] or 1e4} | (kinds.get("sliding_attention") or {})
    whole = {"rope_theta": options["rope_theta"] or 1e6} | (kinds.get("full_attention") or {})
    whole |= options["rope_scaling"] or {}
    read = lambda table, name: read_table(table, options["head_dim"], options, where, f"rope_parameters.{name}")
    return _read(options, where, options["sliding_window_pattern"]) | dict(
        qk_norm=True, rope=read(whole, "full_attention"), local_rope=read(local, "sliding_attention")
    )


def _write_gemma3(config: ModelConfig) -> dict:
    local = config.local_rope or config.rope
    return _write(config) | {
        "rope_parameters": {"full_attention": write_rope(config.rope), "sliding_attention": write_rope(local)}
    }


GEMMA2 = Family(
    "gemma2",
    "Gemma2ForCausalLM",
    "Gemma 2 2B, 9B, 27B",
    _OPTIONS
    | {
        "max_position_embeddings": POSITIONS.otherwise(8192),
        "final_logit_softcapping": BOUND.optional(30.0),
        "attn_logit_softcapping": BOUND.optional(50.0),
    },
    _NAMES,
    refused="attention_bias, use_bidirectional_attention",
    read=lambda options, where: _read(options, where, 2) | dict(attention_softcap=options["attn_logit_softcapping"]),
    write=lambda config: _write(config) | {"attn_logit_softcapping": config.attention_softcap},
    renamed={"hidden_act": "hidden_activation"},
    harmless=_HARMLESS,
)

GEMMA3 = Family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    "Gemma 3 270M to 27B",
    _OPTIONS
    | {
        "vocab_size": CORE["vocab_size"].otherwise(262208),
        "num_attention_heads": HEADS.otherwise(8),
        "max_position_embeddings": POSITIONS.otherwise(131072),
        "final_logit_softcapping": BOUND.optional(),
        "attn_logit_softcapping": NEVER,
        "sliding_window_pattern": integer(1, 1024).otherwise(6),
        "rope_local_base_freq": ROTARY["rope_theta"],
    },
    _NAMES,
    refused="images; attention_bias, attn_logit_softcapping, use_bidirectional_attention",
    read=_read_gemma3,
    write=_write_gemma3,
    theta=None,
    renamed={"hidden_act": "hidden_activation"},
    harmless=_HARMLESS,
)
