"""A tiny model with latent attention, and the config.json of published models with it."""

from specjax import ModelConfig
from specjax.models.mixers import LatentAttentionConfig
from specjax.models.rope import Rope

from .models import TINY

YARN = Rope(100.0, "yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=1.5)
MIXER = LatentAttentionConfig(4, rank=12, query_rank=10, key_dim=6, rope_dim=4, value_dim=5, rope=YARN, bias=True)
LATENT: ModelConfig = TINY.replace(
    family="deepseek_v3", head_dim=MIXER.rope_dim, num_kv_heads=4, rope=YARN, mixers=(MIXER,) * 2, mlps=(None,) * 2
)
"""Two layers with compressed queries and dense MLPs."""

_V3 = dict(
    model_type="deepseek_v3", vocab_size=129280, hidden_size=7168, intermediate_size=18432, moe_intermediate_size=2048,
    num_hidden_layers=61, num_attention_heads=128, num_key_value_heads=128, q_lora_rank=1536, kv_lora_rank=512,
    qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=256, n_shared_experts=1,
    num_experts_per_tok=8, n_group=8, topk_group=4, first_k_dense_replace=3, routed_scaling_factor=2.5,
    norm_topk_prob=True, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1, ep_size=1, seq_aux=True,
    aux_loss_alpha=0.001, attention_bias=False, attention_dropout=0.0, num_nextn_predict_layers=1, rms_norm_eps=1e-6,
    max_position_embeddings=163840, rope_theta=10000, tie_word_embeddings=False, torch_dtype="bfloat16",
    rope_scaling=dict(
        type="yarn", factor=40, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1, mscale=1.0,
        mscale_all_dim=1.0,
    ),
)  # fmt: skip
PUBLISHED = {
    "DeepSeek-V3": _V3,
    "Kimi-K2": _V3
    | dict(
        model_type="kimi_k2", vocab_size=163840, num_attention_heads=64, num_key_value_heads=64, n_routed_experts=384,
        n_group=1, topk_group=1, first_k_dense_replace=1, routed_scaling_factor=2.827, rope_theta=50000,
    ),
    "DeepSeek-V2-Lite": {name: value for name, value in _V3.items() if name not in ("scoring_func", "topk_method")}
    | dict(
        model_type="deepseek_v2", vocab_size=102400, hidden_size=2048, intermediate_size=10944,
        moe_intermediate_size=1408, num_hidden_layers=27, num_attention_heads=16, num_key_value_heads=16,
        q_lora_rank=None, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6, n_group=1, topk_group=1,
        topk_method="greedy", scoring_func="softmax", norm_topk_prob=False, first_k_dense_replace=1,
        routed_scaling_factor=1.0,
    ),
}  # fmt: skip
"""The sizes of published models."""
