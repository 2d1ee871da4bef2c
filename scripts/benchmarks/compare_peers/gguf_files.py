"""GGUF files of a model, one for each type of weights, from which llama.cpp and OpenVINO read it."""

import json
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from safetensors import safe_open

from specjax.checkpoints.hub import find

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


def written(model: str, kind: str, folder: Path) -> Path:
    """The model's file of the type ``kind``, such as "Q4_0". It is written where it is missing.

    A GGUF file serves its own type as it is. The matrices of another type are its numbers, rounded
    anew. Raises ImportError for a model that cannot be written.
    """
    source = Path(model) if model.endswith(".gguf") else _converted(model, folder)
    if kind in source.name:
        return source
    output = folder / f"{source.stem.removesuffix('.BF16').rsplit('.', 1)[0]}.{kind}.gguf"
    if not output.exists():
        _round(source, output, gguf.GGMLQuantizationType[kind])
    return output


def _round(source: Path, output: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Writes ``source`` with its matrices as ``kind``; rows that no block divides stay float32."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    output.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(output, architecture)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.name}"])  # OpenVINO chooses its form by it
    block = gguf.GGML_QUANT_SIZES[kind][0]
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        of = kind if values.ndim > 1 and values.shape[-1] % block == 0 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quantize(values, of), raw_dtype=of)
    _close(writer)


def _converted(name: str, folder: Path) -> Path:
    """A checkpoint of Llama's architecture as a file in bfloat16. It is written where it is missing."""
    source = find(name)
    output = folder / f"{source.name}.BF16.gguf"
    if output.exists():
        return output
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    if config["model_type"] != "llama":
        raise ImportError(f"the model type {config['model_type']!r} is not written as GGUF here")
    writer = gguf.GGUFWriter(output, "llama")
    _write_settings(writer, config)
    _write_tokens(writer, json.loads((source / "tokenizer.json").read_text())["model"], config["vocab_size"])
    for file in sorted(source.glob("*.safetensors")):
        with safe_open(file, "numpy") as tensors:
            for key in tensors.keys():
                _write_tensor(writer, key, tensors.get_tensor(key), config)
    _close(writer)
    return output


def _close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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


def _write_tensor(writer, key: str, values: np.ndarray, config: dict) -> None:
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
