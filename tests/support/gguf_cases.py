"""A configuration of each architecture that GGUF files have."""

import jax
import numpy as np
from flax import nnx

from support.golden import read_file

YARN = {"rope_type": "yarn", "rope_theta": 10.0, "factor": 4.0, "original_max_position_embeddings": 16}
GEMMA3 = {
    "full_attention": {"factor": 4.0, "rope_theta": 1000.0, "rope_type": "linear"},
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
}
NO_EXPERTS = dict.fromkeys(
    (
        "n_routed_experts",
        "num_experts_per_tok",
        "n_shared_experts",
        "moe_intermediate_size",
        "routed_scaling_factor",
        "n_group",
        "topk_group",
    )
)
OLMO3 = {"full_attention": YARN, "sliding_attention": {"rope_theta": 10.0, "rope_type": "default"}}
EXPERTS = {"mlp_only_layers": [], "norm_topk_prob": False, "use_sliding_window": False, "layer_types": None}
DELTA_RULE = {"layer_types": None, "full_attention_interval": 2}
QWEN3_NEXT = DELTA_RULE | {
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "linear_value_head_dim": 4,
    "rms_norm_eps": 1e-6,
}
LLAMA4 = dict.fromkeys(
    ("attention_chunk_size", "attn_scale", "floor_scale", "layer_types", "moe_layers", "no_rope_layers")
) | {
    "interleave_moe_layer_step": 2,
    "num_hidden_layers": 5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}
T5 = {"relative_attention_max_distance": 128, "scale_decoder_outputs": None, "pad_token_id": None}
FOURTH = {"layer_types": None, "no_rope_layers": None}
CASES = {
    "llama": ("llama_gqa", {}),
    "llama with biases": ("llama_biases", {}),
    "llama, tied": ("llama_tied", {}),
    "linear": ("rope_linear", {}),
    "yarn": ("rope_yarn", {"rope_scaling": YARN, "rope_theta": 10.0}),
    "mixtral": ("mixtral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3, tied": ("qwen3_tied", {}),
    "qwen2_moe": ("qwen2_moe_sliding", EXPERTS),
    "qwen3_moe": ("qwen3_moe", {"decoder_sparse_step": 1}),
    "qwen3_5": ("qwen3_5", DELTA_RULE),
    "qwen3_5_moe": ("qwen3_5_experts", DELTA_RULE),
    "qwen3_next": ("qwen3_next_experts", QWEN3_NEXT),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 8}),
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 8, "layer_types": None, "num_hidden_layers": 7, "rope_parameters": GEMMA3}),
    "llama4": ("llama4", LLAMA4),
    "gemma4": ("gemma4", {}),
    "gemma4, keys as values": ("gemma4_keys_as_values", {}),
    "phi3": ("phi3", {"original_max_position_embeddings": None}),
    "phi3 with longrope": ("phi3_longrope", {}),
    "glm": ("glm", {}),
    "glm4": ("glm4", {}),
    "glm4_moe": ("glm4_moe", {}),
    "olmo2": ("olmo2", {}),
    "gpt2": ("gpt2", {}),
    "gpt_neox": ("gpt_neox", {}),
    "gpt_neox, sequential": ("gpt_neox_sequential", {}),
    "starcoder2": ("starcoder2", {"sliding_window": None}),
    "deepseek_v2": ("deepseek_v2", {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.7}}),
    "deepseek_v3": ("deepseek_v3", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}),
    "deepseek_v3, dense": ("deepseek_v3_dense", {}),
    "gpt_oss": ("gpt_oss", {"swiglu_limit": 7.0, "rope_parameters": YARN | {"truncate": False}}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5} | FOURTH | {"use_sliding_window": False, "sliding_window": None}),
    "granite": ("granite", {}),
    "arcee": ("arcee", {}),
    "apertus": ("apertus", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    "seed_oss": ("seed_oss", {}),
    "cohere": ("cohere", {}),
    "cohere2": ("cohere2", {"num_hidden_layers": 5, "layer_types": None}),
    "phi": ("phi", {}),
    "t5": ("t5", T5),
    "t5, gated": ("t5_1.1", T5 | {"tie_word_embeddings": False}),
    "ernie4_5": ("ernie4_5", {"use_bias": False}),
    "olmo3": ("olmo3", {"rope_parameters": OLMO3}),
    "exaone4": ("exaone4", {}),
    "exaone4, full": ("exaone4_full", {}),
    "ernie4_5_moe": ("ernie4_5_moe", {}),
    "minimax_m2": ("minimax_m2", {}),
    "falcon": ("falcon_new", {}),
    "falcon, one key head": ("falcon", {"num_kv_heads": None}),
    "bloom": ("bloom", {}),
    "lfm2": ("lfm2", {"block_auto_adjust_ff_dim": False}),
    "mamba2": ("mamba2", {}),
    "nemotron_h": ("nemotron_h", NO_EXPERTS),
    "hunyuan": ("hunyuan_v1_dense", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
}  # fmt: skip
"""The configuration of a recorded model, with changes to what a GGUF file can say."""


def raw_config(name: str) -> dict:
    golden, changes = CASES[name]
    raw = read_file(golden)[1] | changes
    kept = {key: value for key, value in raw.items() if value is not None or key == "sliding_window"}
    return kept | {"bos_token_id": 1, "eos_token_id": 2}


def assert_same(ours: nnx.Module, theirs: nnx.Module, most: float = 1e-6) -> None:
    """Compares the parameters of two models. The weights of Gemma's norms lose a bit in a file."""
    close = lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=most)
    jax.tree.map(close, nnx.state(ours), nnx.state(theirs))
