"""Tiny models with experts: the config.json of each."""

from .shapes import EXPERTS, HEADS, LLAMA3, MSCALE, SHAPE, YARN

SPREAD = dict(YARN, beta_fast=4.0, beta_slow=0.5, truncate=False)
GPT_OSS = dict(model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, sliding_window=6, swiglu_limit=1.0)
LATENT = dict(
    num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5,
    n_shared_experts=2, moe_intermediate_size=4, attention_bias=True,
)  # fmt: skip
V3 = dict(
    model_type="deepseek_v3", n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
    first_k_dense_replace=1, routed_scaling_factor=1.5,
)  # fmt: skip
LLAMA4 = dict(
    SHAPE | HEADS, model_type="llama4_text", num_hidden_layers=3, no_rope_layers=[1, 0, 1], attention_chunk_size=6,
    floor_scale=4, attn_scale=0.5, num_local_experts=4, intermediate_size_mlp=10,
    rope_parameters=dict(LLAMA3, rope_theta=100.0),
)  # fmt: skip

MIXTURES = {
    "mixtral": dict(SHAPE | HEADS, model_type="mixtral", num_local_experts=4, sliding_window=9),
    "qwen2_moe": dict(
        SHAPE | EXPERTS, model_type="qwen2_moe", num_attention_heads=2, num_key_value_heads=2, mlp_only_layers=[0],
        shared_expert_intermediate_size=12,
    ),
    "qwen2_moe_sliding": dict(
        SHAPE | EXPERTS, model_type="qwen2_moe", num_attention_heads=2, num_key_value_heads=1, norm_topk_prob=True,
        shared_expert_intermediate_size=12, use_sliding_window=True, sliding_window=6,
    ),
    "qwen3_moe": dict(SHAPE | HEADS | EXPERTS, model_type="qwen3_moe", norm_topk_prob=True, decoder_sparse_step=2),
    "gpt_oss": dict(SHAPE | HEADS | GPT_OSS, rope_parameters=SPREAD),
    "gpt_oss_mxfp4": dict(
        SHAPE | HEADS | GPT_OSS, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        layer_types=["full_attention"], rope_parameters=SPREAD,
    ),
    "deepseek_v3": dict(SHAPE | LATENT | V3, q_lora_rank=7, rope_parameters=MSCALE),
    "deepseek_v3_dense": dict(SHAPE | LATENT | V3, q_lora_rank=None, first_k_dense_replace=2, attention_bias=False),
    "deepseek_v2": dict(
        SHAPE | LATENT, model_type="deepseek_v2", q_lora_rank=None, n_routed_experts=6, num_experts_per_tok=2,
        n_group=3, topk_group=2, topk_method="group_limited_greedy", routed_scaling_factor=1.5, rope_parameters=MSCALE,
    ),
    "glm4_moe": dict(
        SHAPE | HEADS, model_type="glm4_moe", n_routed_experts=6, num_experts_per_tok=2, n_group=2, n_shared_experts=1,
        moe_intermediate_size=8, attention_bias=True, use_qk_norm=True, routed_scaling_factor=1.5,
    ),
    "glm4_moe_lite": dict(
        SHAPE | LATENT, model_type="glm4_moe_lite", q_lora_rank=7, n_routed_experts=5, num_experts_per_tok=2,
        norm_topk_prob=False,
    ),
    "ernie4_5_moe": dict(
        SHAPE | HEADS, model_type="ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=8,
        moe_num_shared_experts=1,
    ),
    "minimax_m2": dict(
        SHAPE | HEADS, model_type="minimax_m2", num_local_experts=4, num_experts_per_tok=2, rotary_dim=4,
    ),
    "llama4": dict(LLAMA4, moe_layers=[1, 2], num_experts_per_tok=2),
    "llama4_without_norms": dict(
        LLAMA4, interleave_moe_layer_step=2, use_qk_norm=False, attention_bias=True, num_hidden_layers=2,
        no_rope_layers=[0, 1], tie_word_embeddings=True,
        rope_parameters=dict(LLAMA3, rope_theta=100.0, high_freq_factor=1.0),
    ),
}  # fmt: skip
