"""Reads and writes the ``config.json`` of a Hugging Face checkpoint.

Reading is strict. An option that changes the maths and is not supported is refused by name. An unknown option is refused too.
Only options listed as harmless are ignored.
"""

import dataclasses
import json
from pathlib import Path

from ..errors import CheckpointError, ConfigError
from ..models.config import ModelConfig, Rope

FAMILIES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

_SAME = {"mimo": "qwen2"}
"""Architectures under another name; what they add are heads, see ``heads.layouts``."""

_DEFAULTS = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096, "attention_bias": True},
    "qwen3": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128},
}
"""What transformers takes where a config.json does not say."""

_READ = {
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "sliding_window",
    "use_sliding_window", "max_window_layers", "layer_types", "tie_word_embeddings", "attention_bias", "mlp_bias", "bos_token_id",
    "eos_token_id", "dtype", "torch_dtype", "hidden_act", "architectures",
}  # fmt: skip
_HARMLESS = {
    "_name_or_path", "attention_dropout", "attn_implementation", "auto_map", "chunk_size_feed_forward", "finetuning_task", "id2label",
    "initializer_range", "is_decoder", "is_encoder_decoder", "label2id", "max_sequence_length", "output_attentions", "output_hidden_states",
    "pad_token_id", "pretraining_tp", "problem_type", "return_dict", "task_specific_params", "transformers_version", "transformers.js_config",
    "use_cache", "unsloth_version", "unsloth_fixed", "use_return_dict", "tokenizer_class", "num_nextn_predict_layers",
}  # fmt: skip
_ROPE_OPTIONS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate",
    ),
}  # fmt: skip
"""What each kind of rope scaling reads."""

_DTYPES = ("float32", "bfloat16", "float16")


def read_config(directory: str | Path) -> ModelConfig:
    """The configuration in ``directory/config.json``; end-of-text ids also from ``generation_config.json``.

    Raises CheckpointError where the file is missing or not JSON, ConfigError where the model is not supported.
    """
    path = Path(directory) / "config.json"
    raw = read_json(path)
    generation = path.with_name("generation_config.json")
    if generation.exists():
        raw = {**raw, **{k: v for k, v in read_json(generation).items() if k == "eos_token_id" and v is not None}}
    return from_hf(raw, str(path))


def from_hf(raw: dict, where: str = "config.json") -> ModelConfig:
    """ModelConfig of a parsed ``config.json``. Accepts ``rope_theta`` / ``rope_scaling`` and ``rope_parameters``."""
    family = _SAME.get(raw.get("model_type"), raw.get("model_type"))
    if family not in FAMILIES:
        raise ConfigError(f"{where}: model_type {family!r} is not supported; use one of {', '.join(FAMILIES)}")
    raw = _DEFAULTS[family] | raw
    check_options(raw, _READ, where)
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ConfigError(f"{where}: hidden_act {raw['hidden_act']!r} is not supported; only 'silu' is")
    if raw.get("is_encoder_decoder"):
        raise ConfigError(f"{where}: encoder-decoder models are not supported")
    dtype = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    if dtype not in _DTYPES:
        raise ConfigError(f"{where}: dtype {dtype!r} is not supported; use one of {', '.join(_DTYPES)}")
    try:
        heads, width, layers = raw["num_attention_heads"], raw["hidden_size"], raw["num_hidden_layers"]
        attention_bias = bool(raw.get("attention_bias", False))
        config = ModelConfig(
            family=family,
            vocab_size=raw["vocab_size"],
            hidden_size=width,
            intermediate_size=raw["intermediate_size"],
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or width // heads,
            max_position_embeddings=raw["max_position_embeddings"],
            norm_eps=raw.get("rms_norm_eps", 1e-6),
            rope=_rope(raw, where),
            windows=_windows(raw, family, layers, where),
            tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=True if family == "qwen2" else attention_bias and family != "mistral",
            out_bias=attention_bias and family in ("llama", "qwen3"),
            mlp_bias=bool(raw.get("mlp_bias", False)) and family == "llama",
            qk_norm=family == "qwen3",
            bos_token_id=raw.get("bos_token_id"),
            eos_token_ids=_ids(raw.get("eos_token_id")),
            dtype=dtype,
        )
    except KeyError as missing:
        raise ConfigError(f"{where}: option {missing} is missing") from None
    if attention_bias and family == "mistral" or raw.get("mlp_bias") and family != "llama":
        raise ConfigError(f"{where}: biases are not part of the {family} architecture; remove attention_bias / mlp_bias")
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise ConfigError(f"{where}: num_key_value_heads must divide num_attention_heads and head_dim must be even")
    return config


def check_options(raw: dict, known, where: str) -> None:
    """Raises ConfigError for the first option that is neither among the ``known`` ones nor harmless, and is set."""
    for key, value in raw.items():
        if key not in known and key not in _HARMLESS and value not in (None, False, [], {}):
            raise ConfigError(f"{where}: option {key!r} = {value!r} is not supported; remove it if it does not change the model")


def to_hf(config: ModelConfig) -> dict:
    """The ``config.json`` from which ``from_hf`` reads ``config`` again, also understood by transformers."""
    options = {name: getattr(config.rope, name) for name in _ROPE_OPTIONS[config.rope.rope_type]}
    rope = {"rope_theta": config.rope.theta, "rope_type": config.rope.rope_type} | {k: v for k, v in options.items() if v is not None}
    raw = {
        "architectures": [FAMILIES[config.family]],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": rope,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "dtype": config.dtype,
    }
    if config.family in ("llama", "qwen3"):
        raw["attention_bias"] = config.qkv_bias
    if config.family == "llama":
        raw["mlp_bias"] = config.mlp_bias
    window = next((w for w in config.windows if w), None)
    if config.family == "mistral":
        raw["sliding_window"] = window
    elif window:
        raw |= {"use_sliding_window": True, "sliding_window": window, "max_window_layers": config.windows.index(window)}
        raw["layer_types"] = ["sliding_attention" if w else "full_attention" for w in config.windows]
    return raw


def _rope(raw: dict, where: str) -> Rope:
    options = raw.get("rope_scaling") or raw.get("rope_parameters") or {}  # where both are given, transformers reads the older
    options = {k: v for k, v in options.items() if v is not None}
    kind = options.get("rope_type") or options.get("type") or "default"
    options.pop("type", None)
    if kind not in _ROPE_OPTIONS:
        raise ConfigError(f"{where}: rope scaling {kind!r} is not supported; use one of {', '.join(_ROPE_OPTIONS)}")
    theta = float(options.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0)
    unknown = set(options) - {f.name for f in dataclasses.fields(Rope)}
    if unknown:
        raise ConfigError(f"{where}: rope option {sorted(unknown)[0]!r} is not supported")
    missing = [name for name in _ROPE_OPTIONS[kind] if name not in options and name in ("factor", "low_freq_factor", "high_freq_factor")]
    if missing:
        raise ConfigError(f"{where}: rope scaling {kind!r} needs {missing[0]}")
    options.setdefault("original_max_position_embeddings", raw["max_position_embeddings"])
    return Rope(theta, kind, **{name: options[name] for name in _ROPE_OPTIONS[kind] if name in options})


def _windows(raw: dict, family: str, layers: int, where: str) -> tuple[int | None, ...]:
    """The attention window of each layer in tokens, None where it sees all."""
    window = raw.get("sliding_window")
    kinds = raw.get("layer_types")
    if kinds is not None and (len(kinds) != layers or set(kinds) - {"full_attention", "sliding_attention"}):
        raise ConfigError(f"{where}: layer_types must hold 'full_attention' or 'sliding_attention' for each of the {layers} layers")
    if family in ("llama", "mistral"):
        if "sliding_attention" in (kinds or ()) or family == "llama" and window:
            raise ConfigError(f"{where}: option {'layer_types' if kinds else 'sliding_window'!r} is not part of the {family} architecture")
        return (window,) * layers
    if kinds is not None:
        if "sliding_attention" in kinds and not window:
            raise ConfigError(f"{where}: layer_types names sliding_attention but sliding_window is not set")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    first = raw.get("max_window_layers", 28)
    return tuple(window if raw.get("use_sliding_window") and i >= first else None for i in range(layers))


def _ids(value) -> tuple[int, ...]:
    return () if value is None else tuple(value) if isinstance(value, list) else (value,)


def read_json(path: Path) -> dict:
    """Raises CheckpointError where the file is missing or not JSON."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(raw, dict):
            raise ValueError("not an object")
        return raw
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent}: no {path.name} here; name a directory with a Hugging Face checkpoint") from None
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error}); download it again") from None
