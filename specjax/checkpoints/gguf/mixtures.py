"""The options of GGUF files with mixtures of experts."""

from typing import Any

from ...errors import ConfigError
from .metadata import Metadata

_SIGMOID = 2
"""The value of ``expert_gating_func`` for DeepSeek-V3's scores."""


def experts_of_qwen(keys: Metadata) -> dict[str, Any]:
    return {
        "num_experts": keys.need("expert_count"),
        "num_experts_per_tok": keys.need("expert_used_count"),
        "moe_intermediate_size": keys.get("expert_feed_forward_length") or _expert_width(keys),
        "attention_bias": False,
    }


def _expert_width(keys: Metadata) -> int | None:
    """The width of an expert. Files of before 2025 have it in the shape of a tensor only."""
    tensor = next((x for name, x in keys.file.tensors.items() if name.endswith("ffn_gate_exps.weight")), None)
    return None if tensor is None else tensor.get_shape()[1]


def qwen2moe(keys: Metadata) -> dict[str, Any]:
    shared = keys.get("expert_shared_feed_forward_length")
    if shared is None and keys.has("ffn_gate_shexp.weight"):
        shared = next(x.get_shape()[0] for name, x in keys.file.tensors.items() if name.endswith("gate_shexp.weight"))
    own = {"shared_expert_intermediate_size": shared, "norm_topk_prob": False, "qkv_bias": keys.has("attn_q.bias")}
    return experts_of_qwen(keys) | own


def qwen3moe(keys: Metadata) -> dict[str, Any]:
    return experts_of_qwen(keys) | {"norm_topk_prob": True}


def gpt_oss(keys: Metadata) -> dict[str, Any]:
    """YaRN without rounded ends, as in the published models; a file does not say so."""
    scaling = keys.get("rope.scaling.type") == "yarn"
    table = {
        "rope_type": "yarn",
        "factor": keys.get("rope.scaling.factor"),
        "original_max_position_embeddings": keys.get("rope.scaling.original_context_length"),
        "truncate": False,
    }
    return {
        "num_local_experts": keys.need("expert_count"),
        "num_experts_per_tok": keys.need("expert_used_count"),
        "intermediate_size": keys.get("expert_feed_forward_length") or _expert_width(keys),
        "sliding_window": keys.get("attention.sliding_window"),
        "attention_bias": keys.has("attn_q.bias"),
        "rope_scaling": table if scaling else {"rope_type": "default"},
    }


def _grouped(keys: Metadata) -> dict[str, Any]:
    """The options of experts that are routed in groups."""
    groups, kept = keys.count("expert_group_count"), keys.count("expert_group_used_count")
    if not groups and keys.get("expert_count") == 256:
        groups, kept = 8, 4  # the first files of DeepSeek-V3 lack its groups
    return {
        "n_routed_experts": keys.get("expert_count"),
        "n_shared_experts": keys.get("expert_shared_count"),
        "num_experts_per_tok": keys.get("expert_used_count"),
        "moe_intermediate_size": keys.get("expert_feed_forward_length"),
        "routed_scaling_factor": keys.get("expert_weights_scale"),
        "norm_topk_prob": bool(keys.get("expert_weights_norm")),
        "first_k_dense_replace": keys.get("leading_dense_block_count"),
        "n_group": groups or 1,
        "topk_group": kept or 1,
        "attention_bias": keys.has("attn_q.bias", "attn_q_a.bias"),
    }


def deepseek_type(keys: Metadata) -> str:
    return "deepseek_v3" if keys.get("expert_gating_func") == _SIGMOID else "deepseek_v2"


def deepseek2(keys: Metadata) -> dict[str, Any]:
    """Later files have the sizes of the compressed rows under the names of keys and values."""
    rotated = keys.need("rope.dimension_count")
    whole = keys.count("attention.key_length_mla") or keys.need("attention.key_length")
    options = _grouped(keys)
    if deepseek_type(keys) == "deepseek_v2":
        if options["norm_topk_prob"]:
            raise ConfigError(f"{keys.where('expert_weights_norm')} is true; softmax scores must not be normed")
        options["topk_method"] = "group_limited_greedy" if options["n_group"] > 1 else "greedy"
    return options | {
        "num_key_value_heads": keys.need("attention.head_count"),
        "q_lora_rank": keys.get("attention.q_lora_rank") or None,
        "kv_lora_rank": keys.need("attention.kv_lora_rank"),
        "head_dim": rotated,
        "qk_nope_head_dim": whole - rotated,
        "v_head_dim": keys.get("attention.value_length_mla") or keys.need("attention.value_length"),
        "partial_rotary_factor": None,
    }


def glm4moe(keys: Metadata) -> dict[str, Any]:
    return _grouped(keys) | {"use_qk_norm": keys.has("attn_q_norm.weight")}


def ernie_moe(keys: Metadata) -> dict[str, Any]:
    keys.get("expert_shared_feed_forward_length")  # the conversion divides a width by the key heads
    return {
        "moe_num_experts": keys.need("expert_count"),
        "moe_k": keys.need("expert_used_count"),
        "moe_intermediate_size": keys.need("expert_feed_forward_length"),
        "moe_num_shared_experts": keys.count("expert_shared_count"),
        "moe_layer_start_index": keys.count("leading_dense_block_count"),
        "moe_layer_interval": keys.get("interleave_moe_layer_step"),
    }


def minimax(keys: Metadata) -> dict[str, Any]:
    return {
        "num_local_experts": keys.need("expert_count"),
        "num_experts_per_tok": keys.need("expert_used_count"),
        "intermediate_size": keys.need("expert_feed_forward_length"),
        "scoring_func": "sigmoid" if keys.get("expert_gating_func") in (None, _SIGMOID) else "softmax",
    }


def llama4(keys: Metadata) -> dict[str, Any]:
    """Chunks and temperatures are those of the published models. A file does not say them.

    The published model of 128 experts alone has no norms of queries and keys.
    """
    if keys.get("attention.sliding_window") == 0:
        raise ConfigError(f"{keys.where('attention.sliding_window')} is 0; layers of llama4 must have chunks")
    return {
        "num_local_experts": keys.need("expert_count"),
        "num_experts_per_tok": keys.need("expert_used_count"),
        "intermediate_size": keys.need("expert_feed_forward_length"),
        "intermediate_size_mlp": keys.need("feed_forward_length"),
        "interleave_moe_layer_step": keys.need("interleave_moe_layer_step"),
        "use_qk_norm": keys.get("expert_count") != 128,
        "attention_bias": keys.has("attn_q.bias"),
    }
