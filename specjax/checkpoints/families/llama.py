"""Llama and the families with its layers: Mistral, Qwen2, Qwen3."""

from ...models.config import ModelConfig
from ..json_fields import choice, flag, integer, list_of
from ..schemas import DECODER, HEADS, LAYER_TYPES, NEVER, POSITIONS, WINDOW, without
from .base import Family, first_window, layer_types, model_names, read_windows

_COMMON = DECODER | {
    "max_position_embeddings": POSITIONS.otherwise(32768),
    "sliding_window": WINDOW.optional(),
    "use_sliding_window": flag(),
    "max_window_layers": integer(0, 2**20).otherwise(28),
    "layer_types": LAYER_TYPES,
    "attention_bias": flag(),
    "mlp_bias": NEVER,
}

_QWEN = _COMMON | {"num_key_value_heads": HEADS.optional(32), "sliding_window": WINDOW.optional(4096)}


def _read(options: dict, where: str) -> dict:
    bias = bool(options["attention_bias"])
    windows = read_windows(options, where, default=(options["sliding_window"],) * options["num_hidden_layers"])
    return dict(qkv_bias=bias, out_bias=bias, mlp_bias=bool(options["mlp_bias"]), windows=windows)


def _read_mistral(options: dict, where: str) -> dict:
    return _read(options, where) | dict(windows=(options["sliding_window"],) * options["num_hidden_layers"])


def _read_qwen(options: dict, where: str) -> dict:
    used, first = options["use_sliding_window"], options["max_window_layers"]
    layers = range(options["num_hidden_layers"])
    default = tuple(options["sliding_window"] if used and i >= first else None for i in layers)
    return _read(options, where) | dict(windows=read_windows(options, where, default))


def _write_qwen(config: ModelConfig) -> dict:
    window = first_window(config)
    bias = {"attention_bias": config.qkv_bias} if config.family == "qwen3" else {}
    if window is None:
        return bias
    first = config.windows.index(window)
    return bias | {
        "use_sliding_window": True,
        "sliding_window": window,
        "max_window_layers": first,
        "layer_types": layer_types(config),
    }


_NAMES = model_names()

LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    "Llama 1 to 3.3, and models with its architecture (TinyLlama, Yi, DeepSeek-LLM, SmolLM 1 and 2)",
    without(_COMMON, "sliding_window")
    | {
        "max_position_embeddings": POSITIONS.otherwise(2048),
        "layer_types": list_of(choice("full_attention")).optional(),
        "mlp_bias": flag(),
    },
    _NAMES,
    read=lambda options, where: _read(options | {"sliding_window": None}, where),
    write=lambda config: {"attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias},
    drafters="Medusa, Hydra, EAGLE, EAGLE-3, DFlash",
)

MISTRAL = Family(
    "mistral",
    "MistralForCausalLM",
    "Mistral 7B, Mistral Nemo, Mistral Small (text)",
    _COMMON
    | {
        "max_position_embeddings": POSITIONS.otherwise(131072),
        "num_key_value_heads": HEADS.optional(8),
        "sliding_window": WINDOW.optional(4096),
        "layer_types": list_of(choice("full_attention")).optional(),
        "attention_bias": NEVER,
    },
    _NAMES,
    read=_read_mistral,
    write=lambda config: {"sliding_window": first_window(config)},
)

QWEN2 = Family(
    "qwen2",
    "Qwen2ForCausalLM",
    "Qwen1.5, Qwen2, Qwen2.5, DeepSeek-R1-Distill-Qwen, MiMo-7B",
    _QWEN,
    _NAMES,
    read=lambda options, where: _read_qwen(options, where) | dict(qkv_bias=True, out_bias=False),
    write=_write_qwen,
    drafters="EAGLE; modules in MiMo-7B",
)

QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    "Qwen3 0.6B to 32B",
    _QWEN | {"head_dim": integer(2, 4096).optional(128)},
    _NAMES,
    read=lambda options, where: _read_qwen(options, where) | dict(qk_norm=True),
    write=_write_qwen,
    drafters="EAGLE-3, DFlash, JetSpec, DSpark",
)
