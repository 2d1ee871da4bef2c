"""Records logits of Hugging Face models in tests/models/golden, the oracle of the golden tests.

    python scripts/golden/make_golden.py

It takes a few seconds and needs torch and transformers. The same versions write the same bytes.

Each file holds one tiny random model: its tensors under their Hugging Face names, and the text of
config.json as the metadata ``config``. The file also holds ``tokens`` int32 [B, S], ``logits``
float32 [B, S, V] and ``prompt`` int32 []. The model read the first ``prompt`` tokens in one call,
and the others one at a time with the key/value cache. The file of an encoder-decoder, in the folder
``encoder_decoders``, also holds ``source`` int32 [B, S], of which the encoder read the first ``lengths``.
"""

import json
import re
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.utils import logging

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "models" / "golden"
BATCH, LENGTH = 2, 20
SHAPE = dict(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=12,
    num_hidden_layers=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-3,
)
HEADS = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
LLAMA, MISTRAL, QWEN2, QWEN3 = (dict(model_type=family, **SHAPE) for family in ("llama", "mistral", "qwen2", "qwen3"))

# Small thetas spread the four wavelengths of eight dimensions over 6 to 200 positions. So scaling
# by wavelength meets short, long and blended ones.
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
YARN = dict(rope_theta=10.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
DYNAMIC = dict(rope_theta=100.0, rope_type="dynamic", factor=4.0)

# Models recorded with the config.json that transformers saves.
SAVED = {
    "llama_gqa": LLAMA | HEADS,
    "llama_tied": LLAMA | HEADS | dict(tie_word_embeddings=True),
    "llama_biases": LLAMA | HEADS | dict(attention_bias=True, mlp_bias=True),
    "rope_dynamic_short": LLAMA | HEADS | dict(max_position_embeddings=24, rope_parameters=DYNAMIC),
    "rope_dynamic_cached": LLAMA | HEADS | dict(max_position_embeddings=16, rope_parameters=DYNAMIC),
    "rope_yarn_mscale": LLAMA
    | HEADS
    | dict(rope_parameters=YARN | dict(mscale=1.5, mscale_all_dim=0.5, beta_fast=4.0, beta_slow=0.5)),
    "rope_yarn_attention_factor": LLAMA
    | HEADS
    | dict(rope_parameters=YARN | dict(attention_factor=1.3, beta_fast=2.0, truncate=False)),
    "mistral": MISTRAL | HEADS | dict(sliding_window=None),
    "mistral_sliding": MISTRAL
    | HEADS
    | dict(sliding_window=6, rope_parameters=dict(rope_theta=100.0, rope_type="default")),
    "qwen2": QWEN2 | dict(num_attention_heads=2, num_key_value_heads=2),
    "qwen3": QWEN3 | HEADS,
    "qwen3_sliding": QWEN3
    | HEADS
    | dict(
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "qwen3_tied": QWEN3 | HEADS | dict(tie_word_embeddings=True),
}

# Models recorded with the config.json below: in the older style, without optional fields.
OLD = {
    "llama_mha": LLAMA | dict(num_attention_heads=2, rope_theta=500.0),
    "rope_linear": LLAMA | HEADS | dict(rope_scaling=dict(type="linear", factor=3.0)),
    "rope_dynamic_long": LLAMA
    | HEADS
    | dict(max_position_embeddings=16, rope_theta=100.0, rope_scaling=dict(type="dynamic", factor=2.0)),
    "rope_llama3": LLAMA | HEADS | dict(rope_theta=100.0, rope_scaling=LLAMA3),
    "rope_yarn": LLAMA
    | HEADS
    | dict(max_position_embeddings=16, rope_theta=10.0, rope_scaling=dict(type="yarn", factor=4.0)),
    "qwen2_sliding": QWEN2
    | HEADS
    | dict(use_sliding_window=True, sliding_window=6, max_window_layers=1, rope_theta=100.0),
}

# Further families, with the config.json that transformers saves. Small windows and small bounds of the
# scores make local layers and soft caps matter.
SMALL = {name: value for name, value in SHAPE.items() if name != "rms_norm_eps"}
LONGROPE = dict(type="longrope", short_factor=[1.0, 1.2, 1.5], long_factor=[1.5, 2.0, 3.0])
GEMMA = SHAPE | HEADS | dict(sliding_window=6, query_pre_attn_scalar=12, num_hidden_layers=3)
PHI3_LONGROPE = SHAPE | dict(
    model_type="phi3",
    num_attention_heads=2,
    num_key_value_heads=1,
    original_max_position_embeddings=16,
    rope_theta=100.0,
    partial_rotary_factor=0.75,
    rope_scaling=LONGROPE,
    tie_word_embeddings=True,
)
FAMILIES = {
    "gemma2": GEMMA | dict(model_type="gemma2", attn_logit_softcapping=1.5, final_logit_softcapping=2.0),
    "gemma3": GEMMA
    | dict(
        model_type="gemma3_text",
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=100.0),
            full_attention=dict(rope_type="linear", rope_theta=1000.0, factor=4.0),
        ),
    ),
    "phi3": SHAPE | dict(model_type="phi3", num_attention_heads=2, num_key_value_heads=1, sliding_window=7),
    "phi3_longrope": PHI3_LONGROPE,
    "phi3_longrope_cached": PHI3_LONGROPE,
    "glm": SHAPE | HEADS | dict(model_type="glm", attention_bias=True),
    "glm4": SHAPE | HEADS | dict(model_type="glm4", attention_bias=True),
    "olmo2": SHAPE | dict(model_type="olmo2", num_attention_heads=4, num_key_value_heads=2),
}
NEOX = dict(model_type="gpt_neox", vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2)
NEOX |= dict(num_attention_heads=2, max_position_embeddings=64, layer_norm_eps=1e-3)
OPT = dict(model_type="opt", vocab_size=32, hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=2)
OPT |= dict(max_position_embeddings=64, dropout=0.0)
GPT2 = dict(model_type="gpt2", vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=64, layer_norm_epsilon=1e-3)
GEMMA4 = SHAPE | dict(
    model_type="gemma4_text",
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    global_head_dim=16,
    sliding_window=6,
    layer_types=["sliding_attention", "full_attention"] * 2,
    final_logit_softcapping=2.0,
    rope_parameters=dict(
        sliding_attention=dict(rope_type="default", rope_theta=100.0),
        full_attention=dict(rope_type="proportional", rope_theta=1000.0, partial_rotary_factor=0.5),
    ),
)
FAMILIES |= {
    "gpt2": GPT2,
    "gpt_neox": NEOX,
    "gpt_neox_sequential": NEOX | dict(use_parallel_residual=False, rotary_pct=1.0, tie_word_embeddings=True),
    "opt": OPT,
    "opt_350m": OPT | dict(do_layer_norm_before=False, word_embed_proj_dim=8),
    "gemma4": GEMMA4
    | dict(hidden_size_per_layer_input=4, vocab_size_per_layer_input=32, num_kv_shared_layers=2)
    | dict(use_double_wide_mlp=True),
    "gemma4_keys_as_values": GEMMA4
    | dict(hidden_size_per_layer_input=0, attention_k_eq_v=True, num_key_value_heads=2, num_global_key_value_heads=1),
    "starcoder2": SMALL
    | dict(model_type="starcoder2", num_attention_heads=4, num_key_value_heads=2, norm_epsilon=1e-3, sliding_window=9),
}
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=8)
SPREAD = YARN | dict(beta_fast=4.0, beta_slow=0.5, truncate=False)
GPT_OSS = dict(model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, sliding_window=6, swiglu_limit=1.0)
FAMILIES |= {
    "mixtral": SHAPE | HEADS | dict(model_type="mixtral", num_local_experts=4, sliding_window=9),
    "qwen2_moe": SHAPE
    | EXPERTS
    | dict(model_type="qwen2_moe", num_attention_heads=2, num_key_value_heads=2, mlp_only_layers=[0])
    | dict(shared_expert_intermediate_size=12),
    "qwen2_moe_sliding": SHAPE
    | EXPERTS
    | dict(model_type="qwen2_moe", num_attention_heads=2, num_key_value_heads=1, norm_topk_prob=True)
    | dict(shared_expert_intermediate_size=12, use_sliding_window=True, sliding_window=6),
    "qwen3_moe": SHAPE | HEADS | EXPERTS | dict(model_type="qwen3_moe", norm_topk_prob=True, decoder_sparse_step=2),
    "gpt_oss": SHAPE | HEADS | GPT_OSS | dict(rope_parameters=SPREAD),
    "gpt_oss_mxfp4": SHAPE
    | HEADS
    | GPT_OSS
    | dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, layer_types=["full_attention"])
    | dict(rope_parameters=SPREAD),
}
LATENT = dict(num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4)
LATENT |= dict(v_head_dim=5, n_shared_experts=2, moe_intermediate_size=4, attention_bias=True)
V3 = dict(model_type="deepseek_v3", n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2)
V3 |= dict(first_k_dense_replace=1, routed_scaling_factor=1.5)
MSCALE = YARN | dict(mscale=0.7, mscale_all_dim=1.5, beta_fast=4.0, beta_slow=0.5)
FAMILIES |= {
    "deepseek_v3": SHAPE | LATENT | V3 | dict(q_lora_rank=7, rope_parameters=MSCALE),
    "deepseek_v3_dense": SHAPE | LATENT | V3 | dict(q_lora_rank=None, first_k_dense_replace=2, attention_bias=False),
    "deepseek_v2": SHAPE
    | LATENT
    | dict(model_type="deepseek_v2", q_lora_rank=None, n_routed_experts=6, num_experts_per_tok=2, n_group=3)
    | dict(topk_group=2, topk_method="group_limited_greedy", routed_scaling_factor=1.5, rope_parameters=MSCALE),
    "glm4_moe": SHAPE
    | HEADS
    | dict(model_type="glm4_moe", n_routed_experts=6, num_experts_per_tok=2, n_group=2, n_shared_experts=1)
    | dict(moe_intermediate_size=8, attention_bias=True, use_qk_norm=True, routed_scaling_factor=1.5),
    "glm4_moe_lite": SHAPE
    | LATENT
    | dict(model_type="glm4_moe_lite", q_lora_rank=7, n_routed_experts=5, num_experts_per_tok=2, norm_topk_prob=False),
}
HYBRID = (
    SHAPE
    | HEADS
    | dict(
        num_hidden_layers=3,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        linear_key_head_dim=4,
        linear_value_head_dim=6,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_conv_kernel_dim=3,
        rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5),
    )
)
FAMILIES |= {
    "qwen3_5": HYBRID | dict(model_type="qwen3_5_text"),
    "qwen3_5_biases": HYBRID | dict(model_type="qwen3_5_text", attention_bias=True, tie_word_embeddings=True),
    "qwen3_next": HYBRID | dict(model_type="qwen3_next", mlp_only_layers=[0, 1, 2]),
    "qwen3_next_experts": HYBRID
    | EXPERTS
    | dict(model_type="qwen3_next", mlp_only_layers=[0], shared_expert_intermediate_size=12, norm_topk_prob=False),
    "qwen3_5_experts": HYBRID | EXPERTS | dict(model_type="qwen3_5_moe_text", shared_expert_intermediate_size=12),
}
GRANITE_FACTORS = dict(embedding_multiplier=3.0, attention_multiplier=0.4, residual_multiplier=0.6, logits_scaling=0.7)
COHERE = SMALL | HEADS | dict(layer_norm_eps=1e-3, logit_scale=0.5)
FAMILIES |= {
    "smollm3": SHAPE
    | dict(model_type="smollm3", num_attention_heads=4, num_key_value_heads=2, no_rope_layers=[1, 0])
    | dict(use_sliding_window=True, sliding_window=6, attention_bias=True),
    "granite": SHAPE | GRANITE_FACTORS | dict(model_type="granite", num_attention_heads=4, num_key_value_heads=2),
    "phi": SMALL | dict(model_type="phi", num_attention_heads=2, layer_norm_eps=1e-3),
    "cohere": COHERE | dict(model_type="cohere", attention_bias=True),
    "cohere2": COHERE | dict(model_type="cohere2", sliding_window=6, sliding_window_pattern=2),
}
HYBRID_WINDOWS = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=6)
FEW = dict(num_attention_heads=4, num_key_value_heads=2)
FAMILIES |= {
    "olmo3": SHAPE
    | FEW
    | HYBRID_WINDOWS
    | dict(model_type="olmo3", rope_theta=10.0)
    | dict(rope_scaling={name: value for name, value in YARN.items() if name != "rope_theta"}),
    "exaone4": SHAPE | HEADS | HYBRID_WINDOWS | dict(model_type="exaone4", rope_theta=100.0),
    "exaone4_full": SHAPE
    | HEADS
    | dict(model_type="exaone4", sliding_window=None, layer_types=["full_attention"] * 2, num_hidden_layers=2),
    "ernie4_5": SHAPE | HEADS | dict(model_type="ernie4_5", use_bias=True),
    "ernie4_5_moe": SHAPE
    | HEADS
    | dict(model_type="ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=8, moe_num_shared_experts=1),
    "seed_oss": SHAPE | HEADS | dict(model_type="seed_oss", attention_out_bias=True, mlp_bias=True),
    "helium": SHAPE | HEADS | dict(model_type="helium", head_dim=4, attention_bias=True),
    "arcee": SHAPE | HEADS | dict(model_type="arcee", mlp_bias=True),
    "apertus": SHAPE | FEW | dict(model_type="apertus", rope_parameters=LLAMA3 | dict(rope_theta=100.0)),
    "minimax_m2": SHAPE
    | HEADS
    | dict(model_type="minimax_m2", num_local_experts=4, num_experts_per_tok=2, rotary_dim=4),
    "gptj": GPT2 | dict(model_type="gptj", rotary_dim=4),
    "granite4": SHAPE
    | FEW
    | GRANITE_FACTORS
    | dict(model_type="granitemoehybrid", mamba_n_heads=4, num_local_experts=0, shared_intermediate_size=12)
    | dict(layer_types=["attention"] * 2, position_embedding_type="rope"),
    "granite4_hybrid": SHAPE
    | FEW
    | GRANITE_FACTORS
    | dict(model_type="granitemoehybrid", num_local_experts=0, shared_intermediate_size=12, num_hidden_layers=3)
    | dict(layer_types=["mamba", "attention", "mamba"], mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=6)
    | dict(mamba_expand=1, mamba_d_conv=3, mamba_proj_bias=True),
}
LLAMA4 = (
    SHAPE
    | HEADS
    | dict(
        model_type="llama4_text",
        num_hidden_layers=3,
        no_rope_layers=[1, 0, 1],
        attention_chunk_size=6,
        floor_scale=4,
        attn_scale=0.5,
        num_local_experts=4,
        intermediate_size_mlp=10,
        rope_parameters=LLAMA3 | dict(rope_theta=100.0),
    )
)
FAMILIES |= {
    "llama4": LLAMA4 | dict(moe_layers=[1, 2], num_experts_per_tok=2),
    "llama4_without_norms": LLAMA4
    | dict(interleave_moe_layer_step=2, use_qk_norm=False, attention_bias=True, num_hidden_layers=2)
    | dict(no_rope_layers=[0, 1], tie_word_embeddings=True)
    | dict(rope_parameters=LLAMA3 | dict(rope_theta=100.0, high_freq_factor=1.0)),
}
FALCON = dict(model_type="falcon", vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=4)
FALCON |= dict(max_position_embeddings=64, layer_norm_epsilon=1e-3, ffn_hidden_size=24)
FAMILIES |= {
    "falcon": FALCON | dict(bias=True),
    "falcon_new": FALCON | dict(new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False),
    "bloom": dict(model_type="bloom", vocab_size=32, hidden_size=12, n_layer=2, n_head=6, layer_norm_epsilon=1e-3),
}
LFM2 = dict(model_type="lfm2", num_attention_heads=4, num_key_value_heads=2, norm_eps=1e-3, conv_L_cache=3)
FAMILIES |= {
    "lfm2": SMALL
    | LFM2
    | dict(num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], conv_bias=True)
    | dict(block_ffn_dim_multiplier=1.5, block_multiple_of=10),
}
FAMILIES |= {
    "hunyuan_v1_dense": SHAPE
    | HEADS
    | dict(model_type="hunyuan_v1_dense", rope_theta=10.0, rope_scaling=dict(type="dynamic", alpha=20.0, factor=1.0)),
}
T5 = dict(model_type="t5", vocab_size=32, d_model=16, d_kv=6, d_ff=12, num_layers=1, num_decoder_layers=2, num_heads=3)
T5 |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=12, layer_norm_epsilon=1e-3)
BART = dict(model_type="bart", vocab_size=32, d_model=16, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=12)
BART |= dict(decoder_ffn_dim=10, encoder_attention_heads=2, decoder_attention_heads=4, max_position_embeddings=64)
ENCODER_DECODERS = {
    "t5": T5,
    "t5_1.1": T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "bart": BART | dict(scale_embedding=True, forced_bos_token_id=1),
}
for raw in ENCODER_DECODERS.values():
    raw |= dict(decoder_start_token_id=0, pad_token_id=3)
for raw in (FAMILIES | ENCODER_DECODERS).values():
    raw |= dict(pad_token_id=0, bos_token_id=1, eos_token_id=2) | raw

# The number of tokens in the first call, where it is not all of them.
PROMPTS = {"rope_dynamic_cached": 11, "phi3_longrope_cached": 11, "qwen3_next": 12}

ZERO_CENTRED = ("gemma2", "gemma3_text", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
"""Families whose norms add one to their weights, but for the norms of the delta rule."""


def main():
    logging.disable_progress_bar()
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, raw in ENCODER_DECODERS.items():
        torch.manual_seed(0)
        model = build(raw, AutoModelForSeq2SeqLM)
        source, tokens = torch.randint(raw["vocab_size"], (2, BATCH, LENGTH)).unbind()
        lengths = torch.tensor([LENGTH, LENGTH - 7])
        with torch.no_grad():
            mask = torch.arange(LENGTH) < lengths[:, None]
            logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=tokens).logits
        weights, text = save(model)
        recorded = {"source": source.int(), "lengths": lengths.int(), "tokens": tokens.int(), "logits": logits.float()}
        write(GOLDEN / "encoder_decoders" / f"{name}.safetensors", weights | recorded, text, logits)
    for name, raw in (SAVED | OLD | FAMILIES).items():
        torch.manual_seed(0)
        model = build(raw)
        packed = pack(model) if name.endswith("mxfp4") else {}
        tokens = torch.randint(raw["vocab_size"], (BATCH, LENGTH))
        prompt = PROMPTS.get(name, LENGTH)
        logits = score(model, tokens, prompt)
        weights, text = save(model)
        if packed:
            weights = {key: value for key, value in weights.items() if f"{key}_blocks" not in packed} | packed
            text = json.dumps(json.loads(text) | dict(quantization_config=dict(quant_method="mxfp4")))
        recorded = {"tokens": tokens.int(), "logits": logits.float(), "prompt": torch.tensor(prompt, dtype=torch.int32)}
        config = json.dumps(raw) if name in OLD else text
        write(GOLDEN / f"{name}.safetensors", weights | recorded, config, logits)


def write(path: Path, tensors: dict, config: str, logits: torch.Tensor) -> None:
    """Writes one file. Its metadata has one entry only, because safetensors writes several in any order."""
    path.parent.mkdir(exist_ok=True)
    save_file(tensors, path, {"config": config})
    print(f"{path.stem:28} logits std {logits.std():.2f}, {path.stat().st_size} bytes")


def build(raw: dict, kind=AutoModelForCausalLM) -> PreTrainedModel:
    """A random model of the architecture that transformers reads from the config.json ``raw``."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(raw))
        config = AutoConfig.from_pretrained(directory)
    model = kind.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    if raw["model_type"] == "t5" and not config.scale_decoder_outputs:  # transformers ties all T5 models at first
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    for name, param in model.named_parameters():
        # transformers starts all norms at one and all biases at zero. Equal values would hide a
        # mix-up of two norms or two biases.
        is_norm = re.search(r"norm|ln_", name) and not name.endswith("bias")
        zero_centred = raw["model_type"] in ZERO_CENTRED and "linear_attn" not in name
        mean, std = (1 if is_norm and not zero_centred else 0), 0.2
        if not is_norm and not name.endswith("bias"):
            std = 1.5 * param.shape[-1] ** -0.5
        torch.nn.init.normal_(param, mean, std)
    for name, buffer in model.named_buffers():
        if name.endswith(("layer_scalar", "e_score_correction_bias", "final_logits_bias")):
            torch.nn.init.normal_(buffer, 1, 0.2)
    return model


@torch.no_grad()
def pack(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Random MXFP4 experts, which the model gets as transformers unpacks them, by their names in a checkpoint."""
    packed = {}
    for name, param in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            X, inputs, outputs = param.shape
            blocks = torch.randint(256, (X, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(122, 126, (X, outputs, inputs // 32), dtype=torch.uint8)
            param.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return packed


@torch.no_grad()
def score(model: PreTrainedModel, tokens: torch.Tensor, prompt: int) -> torch.Tensor:
    """Logits [B, S, V]: the first ``prompt`` tokens in one call, the others one by one."""
    out = model(tokens[:, :prompt], use_cache=True)
    logits = [out.logits]
    for i in range(prompt, tokens.shape[1]):
        out = model(tokens[:, i : i + 1], past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits)
    return torch.cat(logits, 1)


def save(model: PreTrainedModel) -> tuple[dict, str]:
    """The tensors and the config.json that transformers writes for a model."""
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        return load_file(Path(directory, "model.safetensors")), Path(directory, "config.json").read_text()


if __name__ == "__main__":
    main()
