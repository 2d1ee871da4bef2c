"""Small GGUF files, written as llama.cpp's conversion writes them: names, forms and metadata."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from flax import nnx
from gguf.quants import quantize

from specjax.checkpoints.blocks import blocks
from specjax.checkpoints.config import from_hf
from specjax.checkpoints.experts import unstack_experts
from specjax.checkpoints.families import NAMES
from specjax.checkpoints.shape_check import least_shapes
from specjax.checkpoints.tensors import abstract_decoder, dotted
from support.gguf_forms import change, key_heads, split_experts, split_projections, stack_experts
from support.gguf_gemma4 import add_gemma4
from support.gguf_t5 import add_t5

ARCHITECTURES = {
    "llama": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe", "gemma2": "gemma2", "gemma3_text": "gemma3", "gemma4_text": "gemma4", "phi3": "phi3", "glm": "chatglm", "glm4": "glm4",
    "glm4_moe": "glm4moe", "olmo2": "olmo2", "gpt2": "gpt2", "gpt_neox": "gptneox", "starcoder2": "starcoder2",
    "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "gpt_oss": "gpt-oss",
    "smollm3": "smollm3", "granite": "granite", "arcee": "arcee", "seed_oss": "seed_oss", "cohere": "command-r",
    "cohere2": "cohere2", "phi": "phi2", "ernie4_5": "ernie4_5", "hunyuan_v1_dense": "hunyuan-dense",
    "olmo3": "olmo2", "apertus": "apertus", "qwen3_next": "qwen3next", "llama4_text": "llama4", "t5": "t5", "exaone4": "exaone4", "ernie4_5_moe": "ernie4_5-moe", "minimax_m2": "minimax-m2", "falcon": "falcon",
    "bloom": "bloom", "lfm2": "lfm2", "mamba2": "mamba2", "nemotron_h": "nemotron_h",
}  # fmt: skip


HYBRIDS = ("lfm2", "nemotron_h")
"""The architectures of which a file lists the sizes of each layer's parts."""


def replace(name: str, value):
    """A function for ``more`` of ``write_gguf``: gives a key another value."""

    def more(writer):
        for fields in writer.kv_data:
            fields.pop(name, None)
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(name, value, kind)

    return more


TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]


def random_tensors(raw: Mapping, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 tensors of the checkpoint that a config.json describes."""
    config = from_hf(dict(raw))
    rng = np.random.default_rng(seed)
    tensors = {}
    for path, param in nnx.to_flat_state(nnx.state(abstract_decoder(config, "float32"))):
        row_blocks = blocks(dotted(path), param.shape[0], NAMES[config.family], config)
        for name, shape in least_shapes(row_blocks, param.shape[1:]).items():
            if shape > (tensors[name].shape if name in tensors else ()):
                tensors[name] = rng.normal(0, 0.4, shape).astype(np.float32)
    return unstack_experts(tensors, config)


def write_gguf(
    path: Path, tensors: Mapping[str, np.ndarray], raw: Mapping, more=lambda writer: None, kind="F32", form=dict
) -> Path:
    """Writes a checkpoint as one GGUF file.

    Args:
      tensors, raw: those of the checkpoint, with the names of Hugging Face.
      more: adds metadata to a GGUFWriter, such as a tokenizer; by default 259 tokens of SentencePiece.
      form: changes the tensors, which have the names of a GGUF file.
      kind: the type of matrices. Those whose rows it does not divide are float32, as vectors are.
    """
    name = ARCHITECTURES[raw["model_type"]]
    writer = gguf.GGUFWriter(path, name)
    if raw["model_type"] == "t5":
        add_t5(writer, raw)
    else:
        add_sizes(writer, name, raw)
        add_options(writer, raw)
    if raw["model_type"] not in ("bloom", "falcon", "mamba2", "nemotron_h", "t5"):
        add_rope(writer, raw)
    add_xielu(writer, tensors)
    add_gemma4(writer, raw)
    if more(writer) is None and "tokenizer.ggml.model" not in writer.kv_data[0]:
        add_tokens(writer, raw)
    for full, values in form(converted(tensors, raw)).items():
        add_tensor(writer, full, values, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: str) -> None:
    """Writes a tensor in the type ``kind``, where its rows allow it; only experts are MXFP4."""
    wanted = gguf.GGMLQuantizationType["F32" if kind == "MXFP4" and "exps.weight" not in name else kind]
    if values.ndim < 2 or values.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0]:
        wanted = gguf.GGMLQuantizationType.F32
    writer.add_tensor(name, quantize(np.ascontiguousarray(values), wanted), raw_dtype=wanted)


def add_tokens(writer: gguf.GGUFWriter, raw: Mapping) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS[: raw["vocab_size"]])
    writer.add_token_scores([0.0] * min(len(TOKENS), raw["vocab_size"]))
    writer.add_token_types(([2, 3, 3] + [6] * 256)[: raw["vocab_size"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def add_sizes(writer: gguf.GGUFWriter, name: str, raw: Mapping) -> None:
    width = raw.get("hidden_size") or raw.get("n_embd")
    heads = raw.get("num_attention_heads") or raw.get("n_head")
    kinds = raw.get("layers_block_type") or raw.get("layer_types")
    parts = lambda size, part: [size if kind == part else 0 for kind in kinds] if name in HYBRIDS else size
    writer.add_context_length(raw.get("max_position_embeddings") or raw.get("n_positions") or 2**20)
    writer.add_embedding_length(width)
    writer.add_block_count(raw.get("num_hidden_layers") or raw.get("n_layer") or len(kinds))
    units = raw.get("intermediate_size") or raw.get("ffn_hidden_size") or 4 * width
    writer.add_feed_forward_length(parts(units, "mlp") if name == "nemotron_h" else 0 if name == "mamba2" else units)
    writer.add_head_count(0 if name == "mamba2" else heads)
    writer.add_vocab_size(raw["vocab_size"])
    if keys := key_heads(raw):
        writer.add_head_count_kv(parts(keys, "full_attention"))
    if "rms_norm_eps" in raw:
        writer.add_layer_norm_rms_eps(raw["rms_norm_eps"])
    else:
        eps = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
        writer.add_layer_norm_eps(next(raw[key] for key in eps if key in raw))
    if name == "deepseek2":
        writer.add_key_length(raw["qk_nope_head_dim"] + raw["qk_rope_head_dim"])
        writer.add_value_length(raw["v_head_dim"])
    elif raw.get("head_dim") and name != "mamba2":
        writer.add_key_length(raw["head_dim"])
        writer.add_value_length(raw["head_dim"])


def add_rope(writer: gguf.GGUFWriter, raw: Mapping) -> None:
    table = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    table = {"rope_theta": raw.get("rope_theta")} | table.get("full_attention", table)
    heads = raw.get("num_attention_heads") or raw["n_head"]
    size = raw.get("qk_rope_head_dim") or raw.get("head_dim") or (raw.get("hidden_size") or raw["n_embd"]) // heads
    if table["rope_theta"]:
        writer.add_rope_freq_base(table["rope_theta"])
    if raw["model_type"] != "gpt2":
        writer.add_rope_dimension_count(int(size * table.get("partial_rotary_factor", 1)))
    kind = table.get("rope_type") or table.get("type")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(table["factor"])
    if kind in ("yarn", "longrope") and "original_max_position_embeddings" in table:
        writer.add_rope_scaling_orig_ctx_len(table["original_max_position_embeddings"])
    if kind == "yarn" and "mscale_all_dim" in table:
        writer.add_rope_scaling_yarn_log_mul(0.1 * table["mscale_all_dim"])
    for name in ("short", "long") if kind == "longrope" else ():
        writer.add_tensor(f"rope_factors_{name}.weight", np.float32(table[f"{name}_factor"]))


def add_options(writer: gguf.GGUFWriter, raw: Mapping) -> None:
    """The options that only some architectures have."""
    for option, add in {
        "attn_logit_softcapping": writer.add_attn_logit_softcapping,
        "final_logit_softcapping": writer.add_final_logit_softcapping,
        "use_parallel_residual": writer.add_parallel_residual,
        "num_experts": writer.add_expert_count,
        "num_local_experts": writer.add_expert_count,
        "n_routed_experts": writer.add_expert_count,
        "num_experts_per_tok": writer.add_expert_used_count,
        "n_shared_experts": writer.add_expert_shared_count,
        "moe_intermediate_size": writer.add_expert_feed_forward_length,
        "shared_expert_intermediate_size": writer.add_expert_shared_feed_forward_length,
        "first_k_dense_replace": writer.add_leading_dense_block_count,
        "routed_scaling_factor": writer.add_expert_weights_scale,
        "n_group": writer.add_expert_group_count,
        "topk_group": writer.add_expert_group_used_count,
        "q_lora_rank": writer.add_q_lora_rank,
        "kv_lora_rank": writer.add_kv_lora_rank,
        "full_attention_interval": writer.add_full_attention_interval,
        "attention_multiplier": writer.add_attention_scale,
        "embedding_multiplier": writer.add_embedding_scale,
        "residual_multiplier": writer.add_residual_scale,
        "logits_scaling": writer.add_logit_scale,
        "logit_scale": writer.add_logit_scale,
        "linear_conv_kernel_dim": writer.add_ssm_conv_kernel,
        "linear_key_head_dim": writer.add_ssm_state_size,
        "linear_num_key_heads": writer.add_ssm_group_count,
        "linear_num_value_heads": writer.add_ssm_time_step_rank,
        "moe_num_experts": writer.add_expert_count,
        "moe_k": writer.add_expert_used_count,
        "moe_num_shared_experts": writer.add_expert_shared_count,
        "moe_layer_start_index": writer.add_leading_dense_block_count,
        "moe_layer_interval": writer.add_interleave_moe_layer_step,
        "conv_L_cache": writer.add_shortconv_l_cache,
        "conv_kernel": writer.add_ssm_conv_kernel,
        "state_size": writer.add_ssm_state_size,
        "ssm_state_size": writer.add_ssm_state_size,
        "n_groups": writer.add_ssm_group_count,
        "mamba_num_heads": writer.add_ssm_time_step_rank,
        "num_heads": writer.add_ssm_time_step_rank,
    }.items():
        if raw.get(option) is not None:
            add(raw[option])
    if "linear_value_head_dim" in raw:
        writer.add_ssm_inner_size(raw["linear_value_head_dim"] * raw["linear_num_value_heads"])
    if raw["model_type"] in ("mamba2", "nemotron_h"):
        heads = raw.get("num_heads") or raw["mamba_num_heads"]
        writer.add_ssm_inner_size(heads * (raw.get("mamba_head_dim") or raw["head_dim"]))
    if raw["model_type"] in ("olmo3", "exaone4") and raw.get("sliding_window"):
        writer.add_sliding_window(raw["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in raw["layer_types"]])
    if raw["model_type"] == "llama4_text":
        writer.add_feed_forward_length(raw["intermediate_size_mlp"])
        writer.add_expert_feed_forward_length(raw["intermediate_size"])
        writer.add_interleave_moe_layer_step(raw["interleave_moe_layer_step"])
    if raw["model_type"] == "minimax_m2":
        writer.add_expert_feed_forward_length(raw["intermediate_size"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if raw["model_type"] in ("gemma2", "gemma3_text", "gpt_oss", "phi3", "cohere2"):
        writer.add_sliding_window(raw.get("sliding_window") or 0)
    if raw["model_type"] in ("deepseek_v2", "deepseek_v3", "glm4_moe"):
        writer.add_expert_weights_norm(raw["norm_topk_prob"])
        softmax = raw["model_type"] == "deepseek_v2"
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType["SOFTMAX" if softmax else "SIGMOID"])


def add_xielu(writer: gguf.GGUFWriter, tensors: Mapping[str, np.ndarray]) -> None:
    """The parameters of xIELU of each layer, which are no tensors of a file."""
    of = lambda name: [values.item() for key, values in sorted(tensors.items()) if key.endswith(f"act_fn.{name}")]
    if layers := len(of("alpha_p")):
        writer.add_xielu_alpha_p(of("alpha_p"))
        writer.add_xielu_alpha_n(of("alpha_n"))
        writer.add_xielu_beta([0.5] * layers)
        writer.add_xielu_eps([-1e-6] * layers)


def converted(tensors: Mapping[str, np.ndarray], raw: Mapping) -> dict[str, np.ndarray]:
    """The tensors with the names and in the forms of a GGUF file."""
    kind = raw["model_type"]
    layers = raw.get("num_hidden_layers") or raw.get("n_layer") or raw.get("num_decoder_layers")
    layers = layers or len(raw["layers_block_type"])
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == ARCHITECTURES[kind])
    names = gguf.get_tensor_name_map(number, layers)
    written = {}
    for name, values in split_projections(split_experts(stack_experts(tensors)), raw).items():
        for old, new in {
            "e_score_correction_b": "e_score_correction.b",
            "sinks": "sinks.weight",
            "layer_scalar": "layer_scalar.weight",
            ".dt_b": ".dt_proj.b",
        }.items():
            name = name.replace(old, new)
        if "act_fn" in name:
            continue  # the metadata have it
        ends = (".weight", ".bias")
        full = names.get_name(name, ends) or names.get_name(name.removeprefix("transformer."), ends)
        assert full, f"{name} has no name in GGUF files"
        written[full] = change(name, values, raw)
    if raw.get("tie_word_embeddings") or kind in ("gemma2", "gemma3_text"):
        written.pop("output.weight", None)
    return written


def their_model(torch, path, raw=None):
    """transformers' model with the tensors that it reads from the file, and its own configuration or ``raw``."""
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    options = raw and {"pad_token_id": None} | {name: value for name, value in raw.items() if name != "architectures"}
    config = (
        transformers.AutoConfig.for_model(**options)
        if options
        else transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= ({"lm_head.weight"} if config.tie_word_embeddings else set())
    model.tie_weights()
    return model.eval()
