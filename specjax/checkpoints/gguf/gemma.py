"""The options of GGUF files of Gemma."""

from collections.abc import Callable
from typing import Any

from ...errors import ConfigError
from ..json_fields import show
from .metadata import Metadata

_NOT_ROTATED = 1e20
"""Divisors from here on leave a dimension as it is."""


def gemma(largest: int) -> Callable[[Metadata], dict[str, Any]]:
    """The options of a family whose model of ``largest`` layers scales scores by hidden_size.

    A file does not say so: llama.cpp too knows the largest model by its layers.
    """

    def read(keys: Metadata) -> dict[str, Any]:
        heads = keys.need("attention.head_count")
        width = keys.need("embedding_length") // heads
        size = width if keys.need("block_count") == largest else keys.count("attention.key_length") or width
        return {
            "query_pre_attn_scalar": size,
            "sliding_window": keys.get("attention.sliding_window"),
            "sliding_window_pattern": keys.get("attention.sliding_window_pattern"),
            "final_logit_softcapping": keys.get("final_logit_softcapping"),
            "attn_logit_softcapping": keys.get("attn_logit_softcapping"),
            "rope_local_base_freq": keys.get("rope.freq_base_swa"),
        }

    return read


def gemma4(keys: Metadata) -> dict[str, Any]:
    """The options of Gemma 4, whose layers without a window have heads of another size."""
    layers, size = keys.need("block_count"), keys.need("attention.key_length_swa")
    pattern = _each_layer(keys, "attention.sliding_window_pattern")
    whole = [i for i, local in enumerate(pattern) if not local]  # the layers without a window
    shared = keys.count("attention.shared_kv_layers")
    heads = _each_layer(keys, "attention.head_count_kv")
    own = {"head_dim": keys.need("attention.key_length")}
    without_values = [i for i in whole if i < layers - shared and f"blk.{i}.attn_v.weight" not in keys.file.tensors]
    inputs = keys.count("embedding_length_per_layer_input")
    return _units(keys, layers - shared) | {
        "head_dim": size,
        "num_key_value_heads": next((heads[i] for i in range(layers) if i not in whole), heads[0]),
        "per_layer_config": {str(i): own | {"num_key_value_heads": heads[i]} for i in whole},
        "rope_parameters": {"full_attention": _global_rope(keys), "sliding_attention": _local_rope(keys, size)},
        "sliding_window": keys.get("attention.sliding_window"),
        "layer_types": ["full_attention" if i in whole else "sliding_attention" for i in range(layers)],
        "attention_k_eq_v": bool(without_values),
        "num_kv_shared_layers": shared,
        "final_logit_softcapping": keys.get("final_logit_softcapping"),
        "hidden_size_per_layer_input": inputs,
        "vocab_size_per_layer_input": keys.rows("per_layer_token_embd.weight") if inputs else None,
    }


def _each_layer(keys: Metadata, key: str) -> list:
    """The values of a key for each layer. Raises ConfigError for another number of them."""
    values, layers = keys.per_layer(key), keys.need("block_count")
    if len(values) not in (1, layers):
        raise ConfigError(f"{keys.where(key)} has {len(values)} entries; it must have one for each of {layers} layers")
    return values * layers if len(values) == 1 else values


def _units(keys: Metadata, first: int) -> dict[str, Any]:
    """The units of layers. Those from ``first`` on, which share keys, may have twice as many."""
    units = _each_layer(keys, "feed_forward_length")
    wide = units[-1] == 2 * units[0]
    if units != [units[0]] * first + [units[0] * (1 + wide)] * (len(units) - first):
        raise ConfigError(
            f"{keys.where('feed_forward_length')} is {show(units)}; layers that differ must be those that share keys"
        )
    return {"intermediate_size": units[0], "use_double_wide_mlp": wide}


def _global_rope(keys: Metadata) -> dict[str, Any]:
    """The rotary positions without a window. The divisors say which of the dimensions turn."""
    if not keys.has("rope_freqs.weight"):
        raise ConfigError(f"{keys.file.path}: rope_freqs.weight is missing; use a file that a current llama.cpp wrote")
    divisors = keys.file.tensors["rope_freqs.weight"][:]
    turning = int((divisors == 1).sum())
    if (divisors[:turning] != 1).any() or (divisors[turning:] < _NOT_ROTATED).any():
        raise ConfigError(f"{keys.file.path}: rope_freqs.weight scales frequencies; gemma4 needs them as they are")
    return {
        "rope_type": "proportional",
        "rope_theta": keys.number("rope.freq_base"),
        "partial_rotary_factor": turning / len(divisors),
    }


def _local_rope(keys: Metadata, size: int) -> dict[str, Any]:
    return {
        "rope_theta": keys.number("rope.freq_base_swa"),
        "partial_rotary_factor": (keys.count("rope.dimension_count_swa") or size) / size,
    }
