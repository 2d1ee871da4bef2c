"""Tiny models with recurrent states: the config.json of each."""

from .shapes import EXPERTS, FEW, GRANITE_FACTORS, HEADS, SHAPE, SMALL

HYBRID = dict(
    SHAPE | HEADS, num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"],
    linear_key_head_dim=4, linear_value_head_dim=6, linear_num_key_heads=2, linear_num_value_heads=4,
    linear_conv_kernel_dim=3, rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5),
)  # fmt: skip
LFM2 = dict(model_type="lfm2", num_attention_heads=4, num_key_value_heads=2, norm_eps=0.001, conv_L_cache=3)
MAMBA = dict(n_groups=2, conv_kernel=3, expand=2, use_bias=True, layer_norm_epsilon=0.001)

HYBRIDS = {
    "qwen3_5": dict(HYBRID, model_type="qwen3_5_text"),
    "qwen3_5_biases": dict(HYBRID, model_type="qwen3_5_text", attention_bias=True, tie_word_embeddings=True),
    "qwen3_next": dict(HYBRID, model_type="qwen3_next", mlp_only_layers=[0, 1, 2]),
    "qwen3_next_experts": dict(
        HYBRID | EXPERTS, model_type="qwen3_next", mlp_only_layers=[0], shared_expert_intermediate_size=12,
        norm_topk_prob=False,
    ),
    "qwen3_5_experts": dict(HYBRID | EXPERTS, model_type="qwen3_5_moe_text", shared_expert_intermediate_size=12),
    "granite4": dict(
        SHAPE | FEW | GRANITE_FACTORS, model_type="granitemoehybrid", mamba_n_heads=4, num_local_experts=0,
        shared_intermediate_size=12, layer_types=["attention"] * 2, position_embedding_type="rope",
    ),
    "granite4_hybrid": dict(
        SHAPE | FEW | GRANITE_FACTORS, model_type="granitemoehybrid", num_local_experts=0, shared_intermediate_size=12,
        num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"], mamba_n_heads=4, mamba_n_groups=2,
        mamba_d_state=6, mamba_expand=1, mamba_d_conv=3, mamba_proj_bias=True,
    ),
    "lfm2": dict(
        SMALL | LFM2, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], conv_bias=True,
        block_ffn_dim_multiplier=1.5, block_multiple_of=10,
    ),
    "mamba2": dict(
        MAMBA, model_type="mamba2", vocab_size=32, hidden_size=16, num_hidden_layers=2, num_heads=4, head_dim=8,
        state_size=6,
    ),
    "nemotron_h": dict(
        SMALL | HEADS | MAMBA, model_type="nemotron_h", num_hidden_layers=5, hybrid_override_pattern="M-M*-",
        mamba_num_heads=4, mamba_head_dim=6, ssm_state_size=6, mlp_bias=True,
    ),
}  # fmt: skip
