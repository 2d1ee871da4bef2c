"""Reads and writes the ``config.json`` of a Hugging Face checkpoint.

Reading is strict. ``SCHEMAS`` gives the type, the range and the default of each option, family by
family. An option that is not in the family's schema is refused, because it may change the maths.
Only options listed as harmless are ignored.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from ..errors import CheckpointError, ConfigError, RequestError
from ..models.config import ModelConfig, Rope
from .fields import read_fields, show, text
from .files import read_json
from .hub import ZOO, zoo
from .schemas import (
    DTYPES,
    FAMILIES,
    HARMLESS,
    LONGEST,
    ROPE,
    ROPE_NEEDS,
    ROPE_OPTIONS,
    SAME_DECODER,
    SCHEMAS,
    TOKEN_IDS,
)


def read_config(directory: str | Path) -> ModelConfig:
    """The configuration in ``directory/config.json``.

    The end-of-text ids of ``generation_config.json`` take precedence.

    Raises CheckpointError for a file that is missing or not JSON, ConfigError for a model that is
    not supported.
    """
    path = Path(directory) / "config.json"
    config = from_hf(read_json(path), str(path))
    generation = path.with_name("generation_config.json")
    if not generation.exists():
        return config
    ids = read_fields(read_json(generation), {"eos_token_id": TOKEN_IDS}, str(generation))["eos_token_id"]
    if ids is None:
        return config
    return config.replace(eos_token_ids=_check_ids("eos_token_id", ids, config.vocab_size, str(generation)))


def read_shape(given: str | Path) -> ModelConfig:
    """The configuration in a config.json, in a directory with a config.json, or of an embedded model.

    Raises CheckpointError for a file that is missing or not JSON, ConfigError for a model that is
    not supported.
    """
    if str(given) in zoo():
        return read_config(ZOO / given)
    path = Path(given).expanduser()
    if not path.exists():
        raise CheckpointError(f"no model shape {str(given)!r}; name a config.json, or a directory with one")
    return read_config(path) if path.is_dir() else from_hf(read_json(path), str(path))


def from_hf(raw: dict, where: str = "config.json") -> ModelConfig:
    """The ModelConfig of a parsed ``config.json``.

    Args:
      raw: the object in the file. Its rotary positions stand in ``rope_theta`` and
        ``rope_scaling``, or in ``rope_parameters``.
      where: the file, for messages.

    Raises ConfigError, which names the option, its value and the allowed values.
    """
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: the configuration is {show(raw)}; it must be an object")
    model_type = read_fields(raw, {"model_type": text().optional()}, where)["model_type"]
    family = SAME_DECODER.get(model_type, model_type)
    if family not in SCHEMAS:
        raise ConfigError(f"{where}: model_type {show(model_type)} is not supported; use one of {', '.join(FAMILIES)}")
    check_options(raw, SCHEMAS[family], where)
    options = read_fields(raw, SCHEMAS[family], where)
    heads, vocab_size = options["num_attention_heads"], options["vocab_size"]
    _check_ids("bos_token_id", options["bos_token_id"], vocab_size, where)
    config = ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=options["hidden_size"],
        intermediate_size=options["intermediate_size"],
        num_layers=options["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=options["num_key_value_heads"] or heads,
        head_dim=_head_dim(options, where),
        max_position_embeddings=options["max_position_embeddings"],
        norm_eps=options["rms_norm_eps"],
        rope=_rope(options, where),
        windows=_windows(options, family, where),
        tie_embeddings=options["tie_word_embeddings"],
        qkv_bias=family == "qwen2" or bool(options["attention_bias"]),
        out_bias=bool(options["attention_bias"]) and family in ("llama", "qwen3"),
        mlp_bias=bool(options["mlp_bias"]),
        qk_norm=family == "qwen3",
        bos_token_id=options["bos_token_id"],
        eos_token_ids=_check_ids("eos_token_id", options["eos_token_id"], vocab_size, where),
        dtype=(options["dtype"] or options["torch_dtype"] or "float32").removeprefix("torch."),
    )
    if heads % config.num_kv_heads:
        raise ConfigError(
            f"{where}: num_key_value_heads is {config.num_kv_heads}; it must divide num_attention_heads, {heads}"
        )
    if config.context > LONGEST:
        raise ConfigError(
            f"{where}: max_position_embeddings is {config.max_position_embeddings}, which rope scaling stretches to"
            f" {config.context}; at most {LONGEST} positions are supported"
        )
    return config


def check_options(raw: dict, known, where: str) -> None:
    """Raises ConfigError for an option in ``raw`` that is set, and neither known nor harmless."""
    for key, value in raw.items():
        if key not in known and key not in HARMLESS and value not in (None, False, [], {}):
            raise ConfigError(
                f"{where}: option {key!r} = {show(value)} is not supported; remove it if it does not change the model"
            )


def check_dtype(dtype: Any) -> str:
    """The name of a dtype of weights.

    Raises RequestError for a dtype that is not among ``DTYPES``.
    """
    try:
        name = str(jnp.dtype(dtype))
    except TypeError:
        name = str(dtype)
    if name not in DTYPES:
        raise RequestError(f"dtype is {name!r}; it must be one of {', '.join(DTYPES)}")
    return name


def check_scheme(name: str, value: Any, schemes: Iterable[str]) -> str | None:
    """The form of quantised numbers, or None. Raises RequestError for one not among ``schemes``."""
    if value is not None and value not in [*schemes]:
        raise RequestError(f"{name} is {value!r}; it must be one of {', '.join(schemes)}")
    return value


def to_hf(config: ModelConfig) -> dict:
    """The ``config.json`` of a model, which ``from_hf`` and transformers read."""
    options = {name: getattr(config.rope, name) for name in ROPE_OPTIONS[config.rope.rope_type]}
    options = {name: value for name, value in options.items() if value is not None}
    raw = {
        "architectures": [FAMILIES[config.family]],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads // config.kv_copies,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_theta": config.rope.theta, "rope_type": config.rope.rope_type} | options,
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


def _head_dim(options: dict, where: str) -> int:
    width, heads, size = options["hidden_size"], options["num_attention_heads"], options["head_dim"]
    if size is None and width % heads:
        raise ConfigError(
            f"{where}: hidden_size is {width}; without head_dim it must be a multiple of num_attention_heads, {heads}"
        )
    size = size or width // heads
    if size % 2:
        raise ConfigError(f"{where}: head_dim is {size}; it must be even, because rotary positions rotate pairs")
    return size


def _check_ids(name: str, ids: int | list[int] | None, vocab_size: int, where: str) -> tuple[int, ...]:
    """The ids as a tuple, empty for null. Raises ConfigError for an id outside the vocabulary."""
    listed = () if ids is None else tuple(ids) if isinstance(ids, list) else (ids,)
    for token in listed:
        if token >= vocab_size:
            raise ConfigError(f"{where}: {name} is {token}; the vocabulary has ids 0 to {vocab_size - 1}")
    return listed


def _rope(options: dict, where: str) -> Rope:
    """Rotary positions. As in transformers, ``rope_scaling`` goes before ``rope_parameters``."""
    within = "rope_scaling" if options["rope_scaling"] else "rope_parameters"
    raw = options[within] or {}
    check_options(raw, ROPE, f"{where}: {within}")
    given = {name: value for name, value in read_fields(raw, ROPE, where, within).items() if value is not None}
    kind = given.get("rope_type") or given.get("type") or "default"
    for name in ROPE_OPTIONS[kind]:
        if name in ROPE_NEEDS and name not in given:
            raise ConfigError(f"{where}: {within}.{name} is missing; rope scaling {kind!r} needs it")
    given.setdefault("original_max_position_embeddings", options["max_position_embeddings"])
    theta = given.get("rope_theta") or options["rope_theta"] or 10000.0
    rope = Rope(theta, kind, **{name: given[name] for name in ROPE_OPTIONS[kind] if name in given})
    for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        if low in ROPE_OPTIONS[kind] and getattr(rope, low) >= getattr(rope, high):
            raise ConfigError(f"{where}: {within}.{high} is {getattr(rope, high)}; it must be above {low}")
    if kind == "dynamic" and (rope.factor < 1 or _head_dim(options, where) < 4):
        raise ConfigError(
            f"{where}: {within}.rope_type 'dynamic' needs a factor of at least 1 and a head_dim of at least 4"
        )
    return rope


def _windows(options: dict, family: str, where: str) -> tuple[int | None, ...]:
    """The attention window of each layer in tokens, None for a layer that attends to all tokens."""
    layers, window, kinds = options["num_hidden_layers"], options["sliding_window"], options["layer_types"]
    if kinds is not None and len(kinds) != layers:
        raise ConfigError(f"{where}: layer_types has {len(kinds)} entries; give one for each of the {layers} layers")
    if family in ("llama", "mistral"):
        return (window,) * layers
    if kinds is not None:
        if "sliding_attention" in kinds and not window:
            raise ConfigError(f"{where}: sliding_window is null; layer_types names sliding_attention, which needs it")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    return tuple(
        window if options["use_sliding_window"] and i >= options["max_window_layers"] else None for i in range(layers)
    )
