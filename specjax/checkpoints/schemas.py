"""The options of ``config.json`` of each family: their types, ranges and defaults."""

from collections.abc import Mapping

from .json_fields import Field, choice, flag, integer, list_of, number, table, text

DTYPES = ("float32", "bfloat16", "float16")
"""The types that weights may have in memory."""

LONGEST = 2**30
"""The longest context in tokens. Positions are int32."""

TOKEN_ID = integer(0, 2**24 - 1).optional()
TOKEN_IDS = (integer(0, 2**24 - 1) | list_of(TOKEN_ID)).optional()
_DTYPE = choice(*DTYPES, *(f"torch.{name}" for name in DTYPES)).optional()
_THETA = number(1, 1e15).optional()
WINDOW = integer(1, LONGEST)
HEADS = integer(1, 4096)
SIZE = integer(1, 2**20)
POSITIONS = integer(1, LONGEST)
EPS = number(1e-20, 1)
NEVER = choice(False).optional()
LAYER_TYPES = list_of(choice("full_attention", "sliding_attention")).optional()
HEAD_DIM = integer(2, 4096).optional()
BOUND = number(0, 1e6)

ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "relu": "relu", "relu2": "relu2", "xielu": "xielu",
}  # fmt: skip
"""The activations of ``models.layers`` by their names in transformers."""

WRITTEN_ACTIVATIONS = {
    "silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu", "relu2": "relu2",
    "xielu": "xielu",
}  # fmt: skip
"""The name with which each activation is written to ``hidden_act``."""

ACTIVATION = choice(*(name for name in ACTIVATIONS if name != "xielu"))
"""The activations without parameters."""

CORE = {
    "model_type": text(),
    "architectures": list_of(text()).optional(),
    "is_encoder_decoder": NEVER,
    "vocab_size": integer(1, 2**24),
    "tie_word_embeddings": flag(),
    "bos_token_id": TOKEN_ID,
    "eos_token_id": TOKEN_IDS,
    "dtype": _DTYPE,
    "torch_dtype": _DTYPE,
}
"""The options of all families."""

ROTARY = {
    "rope_theta": _THETA,
    "rope_scaling": table().optional(),
    "rope_parameters": table().optional(),
}
"""The options of families with rotary positions."""

SIZES = {
    "hidden_size": integer(1, 2**18),
    "intermediate_size": SIZE,
    "num_hidden_layers": integer(1, 1024),
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS.optional(),
    "max_position_embeddings": POSITIONS,
    "hidden_act": choice("silu", "swish").otherwise("silu"),
    "rms_norm_eps": EPS.otherwise(1e-6),
}
"""The sizes that most families have under these names."""

ROTARY_DECODER = CORE | SIZES | ROTARY
"""The options of decoders with rotary positions."""

DECODER = ROTARY_DECODER | {"head_dim": HEAD_DIM}
"""The options of Llama, which most families share."""

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
    "proportional": ("factor",),
    "longrope": ("factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale",
        "mscale_all_dim", "truncate",
    ),
}  # fmt: skip
"""The options of each kind of rope scaling. Options of other kinds are checked and then ignored."""

ROPE_NEEDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
}
"""The options that a kind of rope scaling needs in the file."""

_DIVISORS = list_of(number(0, 1e6)).optional()

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
    "short_factor": _DIVISORS,
    "long_factor": _DIVISORS,
    "partial_rotary_factor": number(0, 1).optional(),
}
"""Options in ``rope_scaling`` and ``rope_parameters``; ``type`` is the old ``rope_type``."""


def without(options: Mapping[str, Field], *names: str) -> dict[str, Field]:
    """The options but those of these names."""
    return {name: field for name, field in options.items() if name not in names}
