"""The configuration of a grown model, and the refusal of shapes that cannot hold the model."""

from ...checkpoints.families import FAMILIES
from ...errors import ConfigError
from ...models.config import ModelConfig

_AT_LEAST = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "max_position_embeddings",
}
"""Options of config.json that may not shrink, and their fields in ``ModelConfig``."""

_BIASES = {"attention_bias": ("qkv_bias", "out_bias"), "mlp_bias": ("mlp_bias",)}

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "dtype")
"""The fields that decoder layers of a head take from the grown target."""


def grow_config(old: ModelConfig, like: ModelConfig, name: str) -> ModelConfig:
    """The configuration of the model ``name``, grown to the shape of ``like``.

    ``like`` has the sizes, context, dtype, family, biases and tie of the embedding. Rotary
    positions, attention windows and end-of-text tokens stay those of the model. ``norm_eps``
    follows from the width, because a norm takes the mean over a wider stream.

    Raises ConfigError for a shape that cannot hold the model. The error names the field.
    """
    for config in (old, like):
        if not config.is_llama_like or "head_dim" not in FAMILIES[config.family].options:
            _refuse(name, "model_type", config.family, "a family with Llama's layers and head_dim, on both sides")
    windows = old.windows + old.windows[-1:] * (like.num_layers - old.num_layers)
    new = like.replace(
        norm_eps=old.norm_eps * old.hidden_size / like.hidden_size,
        rope=old.rope,
        windows=windows,
        bos_token_id=old.bos_token_id,
        eos_token_ids=old.eos_token_ids,
    )
    _check_sizes(old, new, name)
    if new.tie_embeddings and not old.tie_embeddings:
        _refuse(name, "tie_word_embeddings", "true", f"false, because {name} has an output matrix of its own")
    for option, fields in _BIASES.items():
        if any(getattr(old, field) and not getattr(new, field) for field in fields):
            _refuse(name, option, "false", f"true, because {name} has these biases, in a family that allows them")
    if new.qk_norm != old.qk_norm:
        family = "qwen3" if old.qk_norm else "llama, mistral or qwen2"
        _refuse(name, "model_type", new.family, f"{family}, because only qwen3 norms queries and keys")
    if any(windows) and (new.family == "llama" or new.family == "mistral" and len(set(windows)) > 1):
        _refuse(name, "model_type", new.family, f"{old.family}, because {name} has attention windows")
    if new.family == "llama" and new.hidden_size % new.num_heads:
        multiple = f"a multiple of num_attention_heads, {new.num_heads}, or transformers refuses it"
        _refuse(name, "hidden_size", new.hidden_size, multiple)
    return new


def grow_layers(old: ModelConfig, like: ModelConfig, name: str) -> ModelConfig:
    """The configuration of a head's decoder layers, grown to the sizes of the target ``like``.

    Raises ConfigError for sizes that cannot hold the layers. The error names the field.
    """
    sizes = {field: getattr(like, field) for field in _SIZES}
    new = old.replace(**sizes, norm_eps=old.norm_eps * old.hidden_size / like.hidden_size)
    _check_sizes(old, new, name)
    return new


def head_copies(old: ModelConfig, new: ModelConfig) -> int:
    """The number of new key heads that share the query heads of one old key head."""
    return -(-(old.num_heads // old.num_kv_heads) // (new.num_heads // new.num_kv_heads))


def _check_sizes(old: ModelConfig, new: ModelConfig, name: str) -> None:
    for option, field in _AT_LEAST.items():
        least = getattr(old, field)
        size = getattr(new, field)
        if size < least:
            _refuse(name, option, size, f"at least {least}")
    if new.head_dim % old.head_dim:
        _refuse(name, "head_dim", new.head_dim, f"a multiple of {old.head_dim}, so that rotary frequencies coincide")
    if old.num_kv_heads * head_copies(old, new) > new.num_kv_heads:
        least = old.num_kv_heads * head_copies(old, new)
        groups = f"because {new.num_heads // new.num_kv_heads} query heads share one"
        _refuse(name, "num_key_value_heads", new.num_kv_heads, f"at least {least}, {groups}")
    if old.rope.rope_type in ("dynamic", "yarn") and new.head_dim != old.head_dim:
        _refuse(name, "head_dim", new.head_dim, f"{old.head_dim}, because of rope scaling {old.rope.rope_type!r}")
    if old.rope.rope_type == "dynamic" and new.max_position_embeddings != old.max_position_embeddings:
        allowed = f"{old.max_position_embeddings}, because of rope scaling 'dynamic'"
        _refuse(name, "max_position_embeddings", new.max_position_embeddings, allowed)
    if new.vocab_size > old.vocab_size and new.hidden_size == old.hidden_size:
        allowed = f"at least {old.hidden_size + 1}, because a larger vocabulary needs one more dimension"
        _refuse(name, "hidden_size", new.hidden_size, allowed)


def _refuse(name: str, option: str, value, allowed: str) -> None:
    raise ConfigError(f"{name} cannot grow to this shape: {option} is {value}; it must be {allowed}")
