"""llama.cpp, through its Python package. The package has prompt lookup and no draft models."""

import argparse
import itertools
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
from safetensors import safe_open

from specjax.checkpoints.hub import find

_LOOKUPS = (2, 5, 10)
"""Looked up tokens in a round."""

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Names of a layer's tensors: in Hugging Face's layout, and in llama.cpp's."""


def contenders(args: argparse.Namespace, longest: int) -> dict:
    """Functions from token ids to new token ids. Raises ImportError without llama_cpp or gguf."""
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    def run(model, prompt):
        model.reset()
        return list(itertools.islice(model.generate(prompt, temp=0.0), args.max_new_tokens))

    threads = len(os.sched_getaffinity(0))
    make = partial(
        Llama,
        str(convert(args.model, args.converted)),
        n_ctx=longest + args.max_new_tokens + 16,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )
    found = {"llama.cpp plain": partial(run, make())}
    for K in _LOOKUPS:
        lookup = LlamaPromptLookupDecoding(num_pred_tokens=K, max_ngram_size=3)
        found[f"llama.cpp lookup, {K} tokens"] = partial(run, make(draft_model=lookup))
    return found


def convert(name: str, converted: Path) -> Path:
    """The model of Llama's architecture as a GGUF file in bfloat16. It is written where it is missing."""
    import gguf

    source = find(name)
    output = converted / f"{source.name}.gguf"
    if output.exists():
        return output
    converted.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    if config["model_type"] != "llama":
        raise ImportError(f"the model type {config['model_type']!r} is not written as GGUF here")
    writer = gguf.GGUFWriter(output, "llama")
    _write_settings(writer, config)
    _write_tokens(writer, json.loads((source / "tokenizer.json").read_text())["model"], config["vocab_size"])
    for file in sorted(source.glob("*.safetensors")):
        with safe_open(file, "numpy") as tensors:
            for key in tensors.keys():
                _write_tensor(writer, gguf, key, tensors.get_tensor(key), config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return output


def _write_settings(writer, config: dict) -> None:
    heads = config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_parameters", config)["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])


def _write_tokens(writer, bpe: dict, vocab_size: int) -> None:
    """The vocabulary. Prompts are token ids, so the way to split a text does not matter here."""
    tokens = [f"[unused{i}]" for i in range(vocab_size)]
    for token, i in bpe["vocab"].items():
        tokens[i] = token
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * vocab_size)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]])


def _write_tensor(writer, gguf, key: str, values: np.ndarray, config: dict) -> None:
    *_, layer, rest = key.removesuffix(".weight").removeprefix("model.").partition("layers.")
    if not layer:
        name = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[key.split(".")[-2]]
    else:
        number, _, part = rest.partition(".")
        name = f"blk.{number}.{_LAYER[part]}"
    for part, heads in (("attn_q", "num_attention_heads"), ("attn_k", "num_key_value_heads")):
        if name.endswith(part):
            values = _interleaved(values, config[heads])
    if values.ndim == 1:  # llama.cpp computes norms in float32
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
    else:
        kind = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(
            f"{name}.weight", values.view(np.uint8), raw_shape=values.view(np.uint8).shape, raw_dtype=kind
        )


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of query or key heads, dimension i beside dimension i + D / 2, as llama.cpp rotates them."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
