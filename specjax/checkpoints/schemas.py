"""The options of ``config.json`` of each family: their types, ranges and defaults."""

from .fields import Field, choice, flag, integer, list_of, number, table, text

FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""The supported values of ``model_type``, each with its class in transformers."""

DTYPES = ("float32", "bfloat16", "float16")
"""The types that weights may have in memory."""

SAME_DECODER = {"mimo": "qwen2"}
"""Families whose decoder is that of another family. ``layouts`` reads MiMo's drafting heads."""

LONGEST = 2**30
"""The longest context in tokens. Positions are int32."""

_ID = integer(0, 2**24 - 1)
TOKEN_IDS = (_ID | list_of(_ID)).optional()
_DTYPE = choice(*DTYPES, *(f"torch.{name}" for name in DTYPES)).optional()
_THETA = number(1, 1e15).optional()
_WINDOW = integer(1, LONGEST)
_HEADS = integer(1, 4096)
_NEVER = choice(False).optional()

_COMMON = {
    "model_type": text(),
    "architectures": list_of(text()).optional(),
    "is_encoder_decoder": _NEVER,
    "vocab_size": integer(1, 2**24),
    "hidden_size": integer(1, 2**18),
    "intermediate_size": integer(1, 2**20),
    "num_hidden_layers": integer(1, 1024),
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS.optional(),
    "head_dim": integer(2, 4096).optional(),
    "hidden_act": choice("silu", "swish").otherwise("silu"),
    "max_position_embeddings": integer(1, LONGEST).otherwise(32768),
    "rms_norm_eps": number(1e-20, 1).otherwise(1e-6),
    "rope_theta": _THETA,
    "rope_scaling": table().optional(),
    "rope_parameters": table().optional(),
    "sliding_window": _WINDOW.optional(),
    "use_sliding_window": flag(),
    "max_window_layers": integer(0, 2**20).otherwise(28),
    "layer_types": list_of(choice("full_attention", "sliding_attention")).optional(),
    "tie_word_embeddings": flag(),
    "attention_bias": flag(),
    "mlp_bias": _NEVER,
    "bos_token_id": _ID.optional(),
    "eos_token_id": TOKEN_IDS,
    "dtype": _DTYPE,
    "torch_dtype": _DTYPE,
}

_QWEN = _COMMON | {
    "num_key_value_heads": _HEADS.optional(32),
    "sliding_window": _WINDOW.optional(4096),
}

SCHEMAS: dict[str, dict[str, Field]] = {
    "llama": _COMMON
    | {
        "max_position_embeddings": integer(1, LONGEST).otherwise(2048),
        "sliding_window": Field("null", lambda value: value is None, None),
        "layer_types": list_of(choice("full_attention")).optional(),
        "mlp_bias": flag(),
    },
    "mistral": _COMMON
    | {
        "max_position_embeddings": integer(1, LONGEST).otherwise(131072),
        "num_key_value_heads": _HEADS.optional(8),
        "sliding_window": _WINDOW.optional(4096),
        "layer_types": list_of(choice("full_attention")).optional(),
        "attention_bias": _NEVER,
    },
    "qwen2": _QWEN,
    "qwen3": _QWEN | {"head_dim": integer(2, 4096).optional(128)},
}
"""The options of each family. The defaults are those of transformers."""

HARMLESS = {
    "_name_or_path", "attention_dropout", "attn_implementation", "auto_map", "chunk_size_feed_forward",
    "finetuning_task", "id2label", "initializer_range", "is_decoder", "label2id", "max_sequence_length",
    "num_nextn_predict_layers", "output_attentions", "output_hidden_states", "pad_token_id", "pretraining_tp",
    "problem_type", "return_dict", "task_specific_params", "tokenizer_class", "transformers.js_config",
    "transformers_version", "unsloth_fixed", "unsloth_version", "use_cache", "use_return_dict",
}  # fmt: skip
"""Options of all families that do not change the maths."""

ROPE_OPTIONS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale",
        "mscale_all_dim", "truncate",
    ),
}  # fmt: skip
"""The options of each kind of rope scaling. Options of other kinds are checked and then ignored."""

ROPE_NEEDS = ("factor", "low_freq_factor", "high_freq_factor")
"""Options that have no default. A kind that uses them needs them in the file."""

ROPE = {
    "rope_type": choice(*ROPE_OPTIONS).optional(),
    "type": choice(*ROPE_OPTIONS).optional(),
    "rope_theta": _THETA,
    "factor": number(1e-3, 1e6).optional(),
    "original_max_position_embeddings": integer(1, LONGEST).optional(),
    "low_freq_factor": number(0, 1e6).optional(),
    "high_freq_factor": number(0, 1e6).optional(),
    "beta_fast": number(0, 1e6).optional(),
    "beta_slow": number(0, 1e6).optional(),
    "attention_factor": number(0, 1e6).optional(),
    "mscale": number(-1, 1e6).optional(),
    "mscale_all_dim": number(-1, 1e6).optional(),
    "truncate": flag(None),
}
"""Options in ``rope_scaling`` and ``rope_parameters``; ``type`` is the old ``rope_type``."""
