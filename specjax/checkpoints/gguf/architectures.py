"""The architectures of GGUF files, and the options of each that the others do not share."""

import dataclasses
from collections.abc import Callable
from typing import Any

from ...errors import ConfigError
from .keys import Keys

Options = Callable[[Keys], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """An architecture.

    Attributes:
      model_type: the family of a file.
      options: the options of config.json that ``configs`` does not read for all.
      pairs: whether llama.cpp stores queries and keys with neighbouring dimensions paired.
      norm_offset: what llama.cpp adds to the weights of norms.
    """

    model_type: Callable[[Keys], str]
    options: Options = lambda keys: {}
    pairs: bool = False
    norm_offset: float = 0.0


def _of(model_type: str) -> Callable[[Keys], str]:
    return lambda keys: model_type


def _llama(keys: Keys) -> dict[str, Any]:
    """Mixtral is a file of Llama with experts. Mistral's windows are not in the files."""
    bias = keys.has("attn_q.bias")
    experts = {"num_local_experts": keys.get("expert_count"), "num_experts_per_tok": keys.get("expert_used_count")}
    window = {"sliding_window": keys.get("attention.sliding_window") or None}
    return experts | window | {"attention_bias": bias, "mlp_bias": keys.has("ffn_gate.bias")}


def _experts_of_qwen(keys: Keys) -> dict[str, Any]:
    return {
        "num_experts": keys.need("expert_count"),
        "num_experts_per_tok": keys.need("expert_used_count"),
        "moe_intermediate_size": keys.get("expert_feed_forward_length") or _expert_width(keys),
        "attention_bias": False,
    }


def _expert_width(keys: Keys) -> int | None:
    """The width of an expert. Files of before 2025 have it in the shape of a tensor only."""
    tensor = next((x for name, x in keys.file.tensors.items() if name.endswith("ffn_gate_exps.weight")), None)
    return None if tensor is None else tensor.get_shape()[1]


def _qwen2moe(keys: Keys) -> dict[str, Any]:
    shared = keys.get("expert_shared_feed_forward_length")
    if shared is None and keys.has("ffn_gate_shexp.weight"):
        shared = next(x.get_shape()[0] for name, x in keys.file.tensors.items() if name.endswith("gate_shexp.weight"))
    own = {"shared_expert_intermediate_size": shared, "norm_topk_prob": False, "qkv_bias": keys.has("attn_q.bias")}
    return _experts_of_qwen(keys) | own


def _qwen3moe(keys: Keys) -> dict[str, Any]:
    return _experts_of_qwen(keys) | {"norm_topk_prob": True}


def _gemma(largest: int) -> Options:
    """The options of a family whose model of ``largest`` layers scales scores by hidden_size.

    A file does not say so: llama.cpp too knows the largest model by its layers.
    """

    def read(keys: Keys) -> dict[str, Any]:
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


def _phi3(keys: Keys) -> dict[str, Any]:
    return {
        "sliding_window": keys.get("attention.sliding_window") or None,
        "original_max_position_embeddings": keys.get("rope.scaling.original_context_length"),
    }


def _biased(keys: Keys) -> dict[str, Any]:
    return {"attention_bias": keys.has("attn_q.bias", "attn_qkv.bias")}


def _gptneox(keys: Keys) -> dict[str, Any]:
    return {"use_parallel_residual": keys.get("use_parallel_residual"), "attention_bias": keys.has("attn_qkv.bias")}


def _starcoder2(keys: Keys) -> dict[str, Any]:
    return {"use_bias": keys.has("attn_q.bias"), "sliding_window": keys.get("attention.sliding_window") or None}


def _gpt_oss(keys: Keys) -> dict[str, Any]:
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


def _grouped(keys: Keys) -> dict[str, Any]:
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


def _qwen35(keys: Keys) -> dict[str, Any]:
    heads = keys.need("ssm.time_step_rank")
    return {
        "full_attention_interval": keys.get("full_attention_interval"),
        "linear_conv_kernel_dim": keys.need("ssm.conv_kernel"),
        "linear_key_head_dim": keys.need("ssm.state_size"),
        "linear_value_head_dim": keys.need("ssm.inner_size") // heads,
        "linear_num_key_heads": keys.need("ssm.group_count"),
        "linear_num_value_heads": heads,
        "attention_bias": keys.has("attn_q.bias"),
    }


def _qwen35moe(keys: Keys) -> dict[str, Any]:
    shared = {"shared_expert_intermediate_size": keys.need("expert_shared_feed_forward_length")}
    return _experts_of_qwen(keys) | _qwen35(keys) | shared


_SIGMOID = 2
"""The value of ``expert_gating_func`` for DeepSeek-V3's scores."""


def _deepseek_type(keys: Keys) -> str:
    return "deepseek_v3" if keys.get("expert_gating_func") == _SIGMOID else "deepseek_v2"


def _deepseek2(keys: Keys) -> dict[str, Any]:
    """Later files have the sizes of the compressed rows under the names of keys and values."""
    rotated = keys.need("rope.dimension_count")
    whole = keys.count("attention.key_length_mla") or keys.need("attention.key_length")
    options = _grouped(keys)
    if _deepseek_type(keys) == "deepseek_v2":
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


def _glm4moe(keys: Keys) -> dict[str, Any]:
    return _grouped(keys) | {"use_qk_norm": keys.has("attn_q_norm.weight")}


def _granite(keys: Keys) -> dict[str, Any]:
    """A file turns rotary positions off with ``rope.scaling.finetuned``, which others ignore."""
    if keys.get("rope.scaling.finetuned") is False:
        raise ConfigError(f"{keys.where('rope.scaling.finetuned')} is false; granite needs rotary positions")
    return {
        "attention_bias": keys.has("attn_q.bias"),
        "mlp_bias": keys.has("ffn_gate.bias"),
        "attention_multiplier": keys.get("attention.scale"),
        "embedding_multiplier": keys.get("embedding_scale"),
        "residual_multiplier": keys.get("residual_scale"),
        "logits_scaling": keys.get("logit_scale"),
    }


def _plain_llama(keys: Keys) -> dict[str, Any]:
    return {"attention_bias": keys.has("attn_q.bias"), "mlp_bias": keys.has("ffn_up.bias")}


def _seed_oss(keys: Keys) -> dict[str, Any]:
    return _plain_llama(keys) | {"attention_out_bias": keys.has("attn_output.bias")}


def _cohere(keys: Keys) -> dict[str, Any]:
    window = {"sliding_window": keys.get("attention.sliding_window")}
    return window | {"logit_scale": keys.get("logit_scale"), "attention_bias": keys.has("attn_q.bias")}


ARCHITECTURES = {
    "llama": Architecture(lambda keys: "mixtral" if keys.get("expert_count") else "llama", _llama, pairs=True),
    "qwen2": Architecture(_of("qwen2")),
    "qwen3": Architecture(_of("qwen3"), _biased),
    "qwen2moe": Architecture(_of("qwen2_moe"), _qwen2moe),
    "qwen3moe": Architecture(_of("qwen3_moe"), _qwen3moe),
    "qwen35": Architecture(_of("qwen3_5_text"), _qwen35, norm_offset=1.0),
    "qwen35moe": Architecture(_of("qwen3_5_moe_text"), _qwen35moe, norm_offset=1.0),
    "gemma2": Architecture(_of("gemma2"), _gemma(46), norm_offset=1.0),
    "gemma3": Architecture(_of("gemma3_text"), _gemma(62), norm_offset=1.0),
    "phi3": Architecture(_of("phi3"), _phi3),
    "chatglm": Architecture(_of("glm"), _biased),
    "glm4": Architecture(_of("glm4"), _biased),
    "glm4moe": Architecture(_of("glm4_moe"), _glm4moe),
    "olmo2": Architecture(_of("olmo2"), _biased),
    "gpt2": Architecture(_of("gpt2")),
    "gptneox": Architecture(_of("gpt_neox"), _gptneox),
    "starcoder2": Architecture(_of("starcoder2"), _starcoder2),
    "deepseek2": Architecture(_deepseek_type, _deepseek2),
    "gpt-oss": Architecture(_of("gpt_oss"), _gpt_oss),
    "smollm3": Architecture(_of("smollm3"), _plain_llama, pairs=True),
    "granite": Architecture(_of("granite"), _granite, pairs=True),
    "arcee": Architecture(_of("arcee"), _plain_llama, pairs=True),
    "seed_oss": Architecture(_of("seed_oss"), _seed_oss),
    "command-r": Architecture(_of("cohere"), _cohere),
    "cohere2": Architecture(_of("cohere2"), _cohere),
    "ernie4_5": Architecture(_of("ernie4_5"), lambda keys: {"use_bias": keys.has("attn_q.bias")}),
    "hunyuan-dense": Architecture(_of("hunyuan_v1_dense"), _biased),
    "phi2": Architecture(_of("phi")),
}
"""The supported values of ``general.architecture``."""
