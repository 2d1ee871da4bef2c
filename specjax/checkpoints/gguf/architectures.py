"""The architectures of GGUF files, and the options of each that the others do not share."""

import dataclasses
from collections.abc import Callable
from typing import Any

from ...errors import ConfigError
from ...models.feed_forwards.plain import XIELU_BETA
from ..json_fields import show
from .gemma import gemma, gemma4
from .metadata import Metadata
from .mixtures import (
    deepseek2,
    deepseek_type,
    ernie_moe,
    experts_of_qwen,
    glm4moe,
    gpt_oss,
    llama4,
    minimax,
    qwen2moe,
    qwen3moe,
)
from .ropes import read_rope_options
from .state_spaces import SSM_HEADS, mamba2_options, nemotron_h_options

Options = Callable[[Metadata], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """An architecture.

    Attributes:
      model_type: the family of a file.
      options: the options of config.json that ``configs`` does not read for all.
      pairs: whether llama.cpp stores queries and keys with neighbouring dimensions paired.
      norm_offset: what llama.cpp adds to the weights of norms.
      heads: the key of the number of heads.
      nullable: options whose absence from a file stands for null, and not for the family's default.
      by_layer: whether layers may differ in their key heads and units, which ``options`` reads.
    """

    model_type: Callable[[Metadata], str]
    options: Options = lambda keys: {}
    pairs: bool = False
    norm_offset: float = 0.0
    heads: str = "attention.head_count"
    nullable: tuple[str, ...] = ()
    by_layer: bool = False


def _of(model_type: str) -> Callable[[Metadata], str]:
    return lambda keys: model_type


def _llama(keys: Metadata) -> dict[str, Any]:
    """Mixtral is a file of Llama with experts. Mistral's windows are not in the files."""
    bias = keys.has("attn_q.bias")
    experts = {"num_local_experts": keys.get("expert_count"), "num_experts_per_tok": keys.get("expert_used_count")}
    window = {"sliding_window": keys.get("attention.sliding_window") or None}
    return experts | window | {"attention_bias": bias, "mlp_bias": keys.has("ffn_gate.bias")}


def _phi3(keys: Metadata) -> dict[str, Any]:
    return {
        "sliding_window": keys.get("attention.sliding_window") or None,
        "original_max_position_embeddings": keys.get("rope.scaling.original_context_length"),
    }


def _biased(keys: Metadata) -> dict[str, Any]:
    return {"attention_bias": keys.has("attn_q.bias", "attn_qkv.bias")}


def _gptneox(keys: Metadata) -> dict[str, Any]:
    return {"use_parallel_residual": keys.get("use_parallel_residual"), "attention_bias": keys.has("attn_qkv.bias")}


def _starcoder2(keys: Metadata) -> dict[str, Any]:
    return {"use_bias": keys.has("attn_q.bias"), "sliding_window": keys.get("attention.sliding_window") or None}


def _qwen35(keys: Metadata) -> dict[str, Any]:
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


def _qwen35moe(keys: Metadata) -> dict[str, Any]:
    shared = {"shared_expert_intermediate_size": keys.need("expert_shared_feed_forward_length")}
    return experts_of_qwen(keys) | _qwen35(keys) | shared


def _qwen3next(keys: Metadata) -> dict[str, Any]:
    return _qwen35moe(keys) | {"norm_topk_prob": True}


def _apertus(keys: Metadata) -> dict[str, Any]:
    """The options beside xIELU's, whose slopes below and above zero are tensors of a checkpoint."""
    slopes = Metadata(keys.file, "xielu")
    if any(abs(value - XIELU_BETA) > 1e-6 for value in slopes.per_layer("beta")):
        raise ConfigError(f"{slopes.where('beta')} is {show(slopes.per_layer('beta'))}; it must be {XIELU_BETA}")
    scaling = read_rope_options(keys, keys.need("rope.dimension_count"))["rope_scaling"]
    return _biased(keys) | {"rope_scaling": scaling or {"rope_type": "default"}}


def _granite(keys: Metadata) -> dict[str, Any]:
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


def _plain_llama(keys: Metadata) -> dict[str, Any]:
    return {"attention_bias": keys.has("attn_q.bias"), "mlp_bias": keys.has("ffn_up.bias")}


def _seed_oss(keys: Metadata) -> dict[str, Any]:
    return _plain_llama(keys) | {"attention_out_bias": keys.has("attn_output.bias")}


def _cohere(keys: Metadata) -> dict[str, Any]:
    window = {"sliding_window": keys.get("attention.sliding_window")}
    return window | {"logit_scale": keys.get("logit_scale"), "attention_bias": keys.has("attn_q.bias")}


def _windows(keys: Metadata) -> dict[str, Any]:
    """The windows of layers, which the pattern lists; without it each fourth layer has none."""
    window, listed = keys.get("attention.sliding_window") or None, keys.per_layer("attention.sliding_window_pattern")
    kinds = ["sliding_attention" if local else "full_attention" for local in listed]
    return {"sliding_window": window, "layer_types": kinds if window and kinds else None}


def _olmo2_type(keys: Metadata) -> str:
    return "olmo3" if keys.get("attention.sliding_window") else "olmo2"


def _olmo2(keys: Metadata) -> dict[str, Any]:
    """OLMo 3 stretches the positions of layers without a window only.

    Files repeat the factor of scores that YaRN implies, so it is left out.
    """
    if _olmo2_type(keys) == "olmo2":
        return _biased(keys)
    rope = read_rope_options(keys, 2)
    scaling = {name: value for name, value in (rope["rope_scaling"] or {}).items() if name != "attention_factor"}
    local = {"sliding_attention": {"rope_theta": rope["rope_theta"] or 10000.0}}
    return _biased(keys) | _windows(keys) | {"rope_scaling": scaling or None, "rope_parameters": local}


def _falcon(keys: Metadata) -> dict[str, Any]:
    return {
        "new_decoder_architecture": True,  # keys and values lie by key heads, as ``names`` turns them back
        "num_ln_in_parallel_attn": 2 if keys.has("attn_norm_2.weight") else 1,
        "bias": keys.has("attn_qkv.bias"),
    }


def _lfm2(keys: Metadata) -> dict[str, Any]:
    kinds = ["full_attention" if heads else "conv" for heads in keys.per_layer("attention.head_count_kv")]
    return {
        "layer_types": kinds,
        "conv_L_cache": keys.need("shortconv.l_cache"),
        "conv_bias": keys.has("shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,
    }


def _t5(keys: Metadata) -> dict[str, Any]:
    """T5, whose activation no file names. As in llama.cpp it is GELU with gates, else ReLU."""
    keys.get("attention.layer_norm_epsilon")  # the number also stands under the key of RMSNorm
    gated = keys.has("ffn_gate.weight")
    return {
        "num_decoder_layers": keys.count("decoder_block_count") or None,
        "relative_attention_num_buckets": keys.need("attention.relative_buckets_count"),
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        "dense_act_fn": "gelu_new" if gated else "relu",
        "decoder_start_token_id": keys.count("decoder_start_token_id"),
    }


ARCHITECTURES = {
    "llama": Architecture(lambda keys: "mixtral" if keys.get("expert_count") else "llama", _llama, pairs=True),
    "llama4": Architecture(_of("llama4_text"), llama4),
    "qwen2": Architecture(_of("qwen2")),
    "qwen3": Architecture(_of("qwen3"), _biased),
    "qwen2moe": Architecture(_of("qwen2_moe"), qwen2moe),
    "qwen3moe": Architecture(_of("qwen3_moe"), qwen3moe),
    "qwen35": Architecture(_of("qwen3_5_text"), _qwen35, norm_offset=1.0),
    "qwen35moe": Architecture(_of("qwen3_5_moe_text"), _qwen35moe, norm_offset=1.0),
    "qwen3next": Architecture(_of("qwen3_next"), _qwen3next, norm_offset=1.0),
    "gemma2": Architecture(_of("gemma2"), gemma(46), norm_offset=1.0),
    "gemma3": Architecture(_of("gemma3_text"), gemma(62), norm_offset=1.0),
    "gemma4": Architecture(_of("gemma4_text"), gemma4, by_layer=True),
    "phi3": Architecture(_of("phi3"), _phi3),
    "chatglm": Architecture(_of("glm"), _biased),
    "glm4": Architecture(_of("glm4"), _biased),
    "glm4moe": Architecture(_of("glm4_moe"), glm4moe),
    "olmo2": Architecture(_olmo2_type, _olmo2),
    "exaone4": Architecture(_of("exaone4"), _windows, nullable=("sliding_window",)),
    "gpt2": Architecture(_of("gpt2")),
    "gptneox": Architecture(_of("gpt_neox"), _gptneox),
    "starcoder2": Architecture(_of("starcoder2"), _starcoder2),
    "deepseek2": Architecture(deepseek_type, deepseek2),
    "gpt-oss": Architecture(_of("gpt_oss"), gpt_oss),
    "smollm3": Architecture(_of("smollm3"), _plain_llama, pairs=True),
    "granite": Architecture(_of("granite"), _granite, pairs=True),
    "arcee": Architecture(_of("arcee"), _plain_llama, pairs=True),
    "apertus": Architecture(_of("apertus"), _apertus),
    "seed_oss": Architecture(_of("seed_oss"), _seed_oss),
    "command-r": Architecture(_of("cohere"), _cohere),
    "cohere2": Architecture(_of("cohere2"), _cohere),
    "ernie4_5": Architecture(_of("ernie4_5"), lambda keys: {"use_bias": keys.has("attn_q.bias")}),
    "hunyuan-dense": Architecture(_of("hunyuan_v1_dense"), _biased),
    "ernie4_5-moe": Architecture(_of("ernie4_5_moe"), ernie_moe),
    "minimax-m2": Architecture(_of("minimax_m2"), minimax),
    "falcon": Architecture(_of("falcon"), _falcon),
    "bloom": Architecture(_of("bloom")),
    "lfm2": Architecture(_of("lfm2"), _lfm2),
    "mamba2": Architecture(_of("mamba2"), mamba2_options, heads=SSM_HEADS),
    "nemotron_h": Architecture(_of("nemotron_h"), nemotron_h_options),
    "phi2": Architecture(_of("phi")),
    "t5": Architecture(_of("t5"), _t5),
}
"""The supported values of ``general.architecture``."""
