"""Gemma 4, text: global layers with heads of their own.

Layers share keys and values. Each layer has inputs of its own.
"""

import re

from ...errors import ConfigError
from ...kernels.gpu.attention import Scores
from ...models.config import ModelConfig
from ...models.feed_forwards import GatedMlpConfig
from ...models.mixers import AttentionConfig
from ...models.rope import Rope
from ..json_fields import choice, flag, integer, read_fields, table
from ..rope_options import read_table, write_rope
from ..schemas import (
    ACTIVATION,
    ACTIVATIONS,
    BOUND,
    CORE,
    HEAD_DIM,
    HEADS,
    LAYER_TYPES,
    NEVER,
    POSITIONS,
    SIZES,
    WINDOW,
    without,
)
from .base import LLAMA_LAYER, Family, every, first_window, layer_types, model_names, read_windows

_NAMES = model_names(
    LLAMA_LAYER
    | {
        "mixer_out_norm": ["post_attention_layernorm.weight"],
        "mlp_norm": ["pre_feedforward_layernorm.weight"],
        "mlp_out_norm": ["post_feedforward_layernorm.weight"],
        "per_layer.gate": ["per_layer_input_gate.weight"],
        "per_layer.project": ["per_layer_projection.weight"],
        "per_layer.norm": ["post_per_layer_input_norm.weight"],
        "scalar": ["layer_scalar"],
    }
) | {
    "per_layer.embed": ["model.embed_tokens_per_layer.weight"],
    "per_layer.project": ["model.per_layer_model_projection.weight"],
    "per_layer.norm": ["model.per_layer_projection_norm.weight"],
}

_OWN = {"head_dim": HEAD_DIM, "num_key_value_heads": HEADS.optional()}
"""The options of one layer."""

_SHARED = re.compile(r"\.layers\.(\d+)\.self_attn\.(k_proj|v_proj|k_norm)\.weight$")


def _read(options: dict, where: str) -> dict:
    layers, window = options["num_hidden_layers"], options["sliding_window"]
    windows = read_windows(options, where, every(layers, window, 6))[:-1] + (None,)  # the last layer is global
    local, whole = (_read_rope(options, kind, where) for kind in ("sliding_attention", "full_attention"))
    first = layers - options["num_kv_shared_layers"]
    mixers = [_read_mixer(options, i, windows[i], whole if windows[i] is None else local, where) for i in range(layers)]
    wide = GatedMlpConfig(2 * options["intermediate_size"], ACTIVATIONS[options["hidden_act"]])
    sharing = range(first, layers)
    sources = {i: max((j for j in range(first) if windows[j] == windows[i]), default=None) for i in sharing}
    if None in sources.values():
        raise ConfigError(
            f"{where}: num_kv_shared_layers is {len(sharing)}; a layer of each kind must keep its own keys and values"
        )
    return dict(
        normed="both",
        embedding_scale=options["hidden_size"] ** 0.5,
        logit_softcap=options["final_logit_softcapping"],
        qk_norm=True,
        attention_scale=1.0,
        rope=whole,
        local_rope=local,
        windows=windows,
        layer_scalar=True,
        per_layer_size=options["hidden_size_per_layer_input"],
        per_layer_vocab=options["vocab_size_per_layer_input"],
        mixers=tuple(AttentionConfig(**mixer, reads=sources.get(i)) for i, mixer in enumerate(mixers)),
        mlps=tuple(wide if options["use_double_wide_mlp"] and i >= first else None for i in range(layers)),
    )


def _read_mixer(options: dict, number: int, window: int | None, rope: Rope, where: str) -> dict:
    """The attention of a layer.

    Global layers have another size of heads, and may use keys as values.
    """
    as_values = False
    heads = options["num_key_value_heads"]
    size = options["head_dim"]
    if window is None:
        as_values = options["attention_k_eq_v"]
        size = options["global_head_dim"] or 512
        heads = options["num_global_key_value_heads"] if as_values else None
    if options["per_layer_config"] is not None:  # as transformers writes it
        own = options["per_layer_config"].get(str(number), {})
        fields = read_fields(own, _OWN, where, f"per_layer_config.{number}")
        heads = fields["num_key_value_heads"]
        size = fields["head_dim"] or options["head_dim"]
    return dict(
        num_heads=options["num_attention_heads"],
        num_kv_heads=heads or options["num_key_value_heads"] or options["num_attention_heads"],
        head_dim=size,
        rope=rope,
        scores=Scores(window, scale=1.0),
        qk_norm=True,
        value_norm=True,
        keys_as_values=as_values,
    )


def _read_rope(options: dict, kind: str, where: str) -> Rope:
    default = {"rope_theta": 1e4}
    if kind == "full_attention":
        default = {"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.25}
    raw = (options["rope_parameters"] or {}).get(kind) or default
    size = options["head_dim"] if kind == "sliding_attention" else options["global_head_dim"] or 512
    return read_table(
        {"partial_rotary_factor": 1.0} | raw, size, options, where, f"rope_parameters.{kind}", partly=True
    )


def _write(config: ModelConfig) -> dict:
    mixers = [layer.mixer for layer in config.layers if isinstance(layer.mixer, AttentionConfig)]
    sizes = lambda of: {"head_dim": of.head_dim, "num_key_value_heads": of.num_kv_heads // of.kv_copies}
    own = {str(i): sizes(mixer) for i, mixer in enumerate(mixers) if sizes(mixer) != sizes(config)}
    ropes = {
        "full_attention": write_rope(config.rope),
        "sliding_attention": write_rope(config.local_rope or config.rope),
    }
    sharing = sum(mixer.reads is not None for mixer in mixers)
    return {
        "per_layer_config": own,
        "rope_parameters": ropes,
        "sliding_window": first_window(config, 512),
        "layer_types": layer_types(config),
        "final_logit_softcapping": config.logit_softcap,
        "hidden_size_per_layer_input": config.per_layer_size,
        "vocab_size_per_layer_input": config.per_layer_vocab,
        "attention_k_eq_v": any(mixer.keys_as_values for mixer in mixers),
        "num_kv_shared_layers": sharing,
        "use_double_wide_mlp": any(config.mlps),
    }


def _is_unused(config: ModelConfig, name: str) -> bool:
    """Whether a tensor projects keys or values in a layer that reads those of another layer."""
    match = _SHARED.search(name)
    return match is not None and config.layer(int(match[1])).mixer.source is not None


GEMMA4 = Family(
    "gemma4_text",
    "Gemma4ForCausalLM",
    "Gemma 4 E2B, E4B and 31B",
    CORE
    | without(SIZES, "hidden_act")
    | {
        "tie_word_embeddings": flag(True),
        "num_attention_heads": HEADS.otherwise(8),
        "num_key_value_heads": HEADS.optional(4),
        "head_dim": integer(2, 4096).otherwise(256),
        "global_head_dim": HEAD_DIM,
        "num_global_key_value_heads": HEADS.optional(),
        "per_layer_config": table().optional(),
        "hidden_activation": ACTIVATION.optional("gelu_pytorch_tanh"),
        "max_position_embeddings": POSITIONS.otherwise(131072),
        "rope_parameters": table().optional(),
        "sliding_window": WINDOW.optional(512),
        "layer_types": LAYER_TYPES,
        "attention_bias": NEVER,
        "attention_k_eq_v": flag(),
        "final_logit_softcapping": BOUND.optional(),
        # Tokens of images see one another in both directions. Tokens of text do not.
        "use_bidirectional_attention": choice("vision", False).optional(),
        "hidden_size_per_layer_input": integer(0, 2**16).optional(256),
        "vocab_size_per_layer_input": integer(1, 2**24).otherwise(262144),
        "num_kv_shared_layers": integer(0, 1023).otherwise(0),
        "use_double_wide_mlp": flag(),
        "enable_moe_block": NEVER,
    },
    _NAMES,
    refused="images and sound; enable_moe_block, attention_bias, use_bidirectional_attention",
    read=_read,
    write=_write,
    renamed={"hidden_act": "hidden_activation"},
    theta=None,
    is_unused=_is_unused,
    drafters="assistants",
)
