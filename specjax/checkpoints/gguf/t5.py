"""T5 in GGUF files: the options of its encoder and decoder."""

from typing import Any

from .metadata import Metadata


def t5(keys: Metadata) -> dict[str, Any]:
    """A file does not name the activation. As in llama.cpp it is GELU with gates, and else ReLU."""
    keys.get("attention.layer_norm_epsilon")  # the number also stands under the key of RMSNorm
    gated = keys.has("ffn_gate.weight")
    return {
        "num_decoder_layers": keys.count("decoder_block_count") or None,
        "relative_attention_num_buckets": keys.need("attention.relative_buckets_count"),
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        "dense_act_fn": "gelu_new" if gated else "relu",
        "decoder_start_token_id": keys.count("decoder_start_token_id"),
    }
