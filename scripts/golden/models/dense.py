"""Tiny models of dense families: the config.json of each.

Small windows and small bounds of the scores make local layers and soft caps matter.
"""

from .shapes import FEW, GPT2, GRANITE_FACTORS, HEADS, LLAMA3, SHAPE, SMALL, YARN

LLAMA, MISTRAL, QWEN2, QWEN3 = (dict(model_type=family, **SHAPE) for family in ("llama", "mistral", "qwen2", "qwen3"))
DYNAMIC = dict(rope_theta=100.0, rope_type="dynamic", factor=4.0)

SAVED = {
    "llama_gqa": LLAMA | HEADS,
    "llama_tied": dict(LLAMA | HEADS, tie_word_embeddings=True),
    "llama_biases": dict(LLAMA | HEADS, attention_bias=True, mlp_bias=True),
    "rope_dynamic_short": dict(LLAMA | HEADS, max_position_embeddings=24, rope_parameters=DYNAMIC),
    "rope_dynamic_cached": dict(LLAMA | HEADS, max_position_embeddings=16, rope_parameters=DYNAMIC),
    "rope_yarn_mscale": dict(
        LLAMA | HEADS, rope_parameters=dict(YARN, mscale=1.5, mscale_all_dim=0.5, beta_fast=4.0, beta_slow=0.5),
    ),
    "rope_yarn_attention_factor": dict(
        LLAMA | HEADS, rope_parameters=dict(YARN, attention_factor=1.3, beta_fast=2.0, truncate=False),
    ),
    "mistral": dict(MISTRAL | HEADS, sliding_window=None),
    "mistral_sliding": dict(
        MISTRAL | HEADS, sliding_window=6, rope_parameters=dict(rope_theta=100.0, rope_type="default"),
    ),
    "qwen2": dict(QWEN2, num_attention_heads=2, num_key_value_heads=2),
    "qwen3": QWEN3 | HEADS,
    "qwen3_sliding": dict(
        QWEN3 | HEADS, attention_bias=True, use_sliding_window=True, sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "qwen3_tied": dict(QWEN3 | HEADS, tie_word_embeddings=True),
}  # fmt: skip
"""Models recorded with the config.json that transformers saves."""

OLD = {
    "llama_mha": dict(LLAMA, num_attention_heads=2, rope_theta=500.0),
    "rope_linear": dict(LLAMA | HEADS, rope_scaling=dict(type="linear", factor=3.0)),
    "rope_dynamic_long": dict(
        LLAMA | HEADS, max_position_embeddings=16, rope_theta=100.0, rope_scaling=dict(type="dynamic", factor=2.0)
    ),
    "rope_llama3": dict(LLAMA | HEADS, rope_theta=100.0, rope_scaling=LLAMA3),
    "rope_yarn": dict(
        LLAMA | HEADS, max_position_embeddings=16, rope_theta=10.0, rope_scaling=dict(type="yarn", factor=4.0)
    ),
    "qwen2_sliding": dict(
        QWEN2 | HEADS, use_sliding_window=True, sliding_window=6, max_window_layers=1, rope_theta=100.0
    ),
}
"""Models recorded with this config.json: in the older style, without optional fields."""

LONGROPE = dict(type="longrope", short_factor=[1.0, 1.2, 1.5], long_factor=[1.5, 2.0, 3.0])
GEMMA = dict(SHAPE | HEADS, sliding_window=6, query_pre_attn_scalar=12, num_hidden_layers=3)
PHI3_LONGROPE = dict(
    SHAPE, model_type="phi3", num_attention_heads=2, num_key_value_heads=1, original_max_position_embeddings=16,
    rope_theta=100.0, partial_rotary_factor=0.75, rope_scaling=LONGROPE, tie_word_embeddings=True,
)  # fmt: skip
NEOX = dict(
    model_type="gpt_neox", vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=2, max_position_embeddings=64, layer_norm_eps=0.001,
)  # fmt: skip
OPT = dict(
    model_type="opt", vocab_size=32, hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=2,
    max_position_embeddings=64, dropout=0.0,
)  # fmt: skip
GEMMA4 = dict(
    SHAPE, model_type="gemma4_text", num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
    global_head_dim=16, sliding_window=6, layer_types=["sliding_attention", "full_attention"] * 2,
    final_logit_softcapping=2.0,
    rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=100.0), full_attention=dict(rope_type="proportional", rope_theta=1000.0, partial_rotary_factor=0.5)),
)  # fmt: skip
COHERE = dict(SMALL | HEADS, layer_norm_eps=0.001, logit_scale=0.5)
HYBRID_WINDOWS = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=6)
FALCON = dict(
    model_type="falcon", vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=64, layer_norm_epsilon=0.001, ffn_hidden_size=24,
)  # fmt: skip

DENSE = {
    "gemma2": dict(GEMMA, model_type="gemma2", attn_logit_softcapping=1.5, final_logit_softcapping=2.0),
    "gemma3": dict(
        GEMMA, model_type="gemma3_text", layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=100.0), full_attention=dict(rope_type="linear", rope_theta=1000.0, factor=4.0)),
    ),
    "phi3": dict(SHAPE, model_type="phi3", num_attention_heads=2, num_key_value_heads=1, sliding_window=7),
    "phi3_longrope": PHI3_LONGROPE,
    "phi3_longrope_cached": PHI3_LONGROPE,
    "glm": dict(SHAPE | HEADS, model_type="glm", attention_bias=True),
    "glm4": dict(SHAPE | HEADS, model_type="glm4", attention_bias=True),
    "olmo2": dict(SHAPE, model_type="olmo2", num_attention_heads=4, num_key_value_heads=2),
    "gpt2": GPT2,
    "gpt_neox": NEOX,
    "gpt_neox_sequential": dict(NEOX, use_parallel_residual=False, rotary_pct=1.0, tie_word_embeddings=True),
    "opt": OPT,
    "opt_350m": dict(OPT, do_layer_norm_before=False, word_embed_proj_dim=8),
    "gemma4": dict(
        GEMMA4, hidden_size_per_layer_input=4, vocab_size_per_layer_input=32, num_kv_shared_layers=2,
        use_double_wide_mlp=True,
    ),
    "gemma4_keys_as_values": dict(
        GEMMA4, hidden_size_per_layer_input=0, attention_k_eq_v=True, num_key_value_heads=2,
        num_global_key_value_heads=1,
    ),
    "starcoder2": dict(
        SMALL, model_type="starcoder2", num_attention_heads=4, num_key_value_heads=2, norm_epsilon=0.001,
        sliding_window=9,
    ),
    "smollm3": dict(
        SHAPE, model_type="smollm3", num_attention_heads=4, num_key_value_heads=2, no_rope_layers=[1, 0],
        use_sliding_window=True, sliding_window=6, attention_bias=True,
    ),
    "granite": dict(SHAPE | GRANITE_FACTORS, model_type="granite", num_attention_heads=4, num_key_value_heads=2),
    "phi": dict(SMALL, model_type="phi", num_attention_heads=2, layer_norm_eps=0.001),
    "cohere": dict(COHERE, model_type="cohere", attention_bias=True),
    "cohere2": dict(COHERE, model_type="cohere2", sliding_window=6, sliding_window_pattern=2),
    "olmo3": dict(
        SHAPE | FEW | HYBRID_WINDOWS, model_type="olmo3", rope_theta=10.0,
        rope_scaling={name: value for name, value in YARN.items() if name != "rope_theta"},
    ),
    "exaone4": dict(SHAPE | HEADS | HYBRID_WINDOWS, model_type="exaone4", rope_theta=100.0),
    "exaone4_full": dict(
        SHAPE | HEADS, model_type="exaone4", sliding_window=None, layer_types=["full_attention"] * 2,
        num_hidden_layers=2,
    ),
    "ernie4_5": dict(SHAPE | HEADS, model_type="ernie4_5", use_bias=True),
    "seed_oss": dict(SHAPE | HEADS, model_type="seed_oss", attention_out_bias=True, mlp_bias=True),
    "helium": dict(SHAPE | HEADS, model_type="helium", head_dim=4, attention_bias=True),
    "arcee": dict(SHAPE | HEADS, model_type="arcee", mlp_bias=True),
    "apertus": dict(SHAPE | FEW, model_type="apertus", rope_parameters=dict(LLAMA3, rope_theta=100.0)),
    "gptj": dict(GPT2, model_type="gptj", rotary_dim=4),
    "falcon": dict(FALCON, bias=True),
    "falcon_new": dict(FALCON, new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False),
    "bloom": dict(model_type="bloom", vocab_size=32, hidden_size=12, n_layer=2, n_head=6, layer_norm_epsilon=0.001),
    "hunyuan_v1_dense": dict(
        SHAPE | HEADS, model_type="hunyuan_v1_dense", rope_theta=10.0,
        rope_scaling=dict(type="dynamic", alpha=20.0, factor=1.0),
    ),
}  # fmt: skip
