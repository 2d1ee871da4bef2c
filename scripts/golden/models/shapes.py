"""Sizes and rotary positions that tiny models share."""

SHAPE = dict(
    vocab_size=32, hidden_size=16, intermediate_size=12, num_hidden_layers=2, max_position_embeddings=64,
    rms_norm_eps=0.001,
)  # fmt: skip
HEADS = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
# Small thetas spread the four wavelengths of eight dimensions over 6 to 200 positions. So scaling
# by wavelength meets short, long and blended ones.
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
YARN = dict(rope_theta=10.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
SMALL = {name: value for name, value in SHAPE.items() if name != "rms_norm_eps"}
GPT2 = dict(model_type="gpt2", vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=64, layer_norm_epsilon=0.001)
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=8)
MSCALE = dict(YARN, mscale=0.7, mscale_all_dim=1.5, beta_fast=4.0, beta_slow=0.5)
GRANITE_FACTORS = dict(embedding_multiplier=3.0, attention_multiplier=0.4, residual_multiplier=0.6, logits_scaling=0.7)
FEW = dict(num_attention_heads=4, num_key_value_heads=2)
