"""What a GGUF file of T5 says of its encoder and decoder."""

from collections.abc import Mapping

import gguf


def add_t5(writer: gguf.GGUFWriter, raw: Mapping) -> None:
    writer.add_context_length(512)
    writer.add_embedding_length(raw["d_model"])
    writer.add_feed_forward_length(raw["d_ff"])
    writer.add_block_count(raw["num_layers"])
    writer.add_decoder_block_count(raw["num_decoder_layers"])
    writer.add_head_count(raw["num_heads"])
    writer.add_key_length(raw["d_kv"])
    writer.add_value_length(raw["d_kv"])
    writer.add_layer_norm_eps(raw["layer_norm_epsilon"])
    writer.add_layer_norm_rms_eps(raw["layer_norm_epsilon"])
    writer.add_relative_attn_buckets_count(raw["relative_attention_num_buckets"])
    writer.add_decoder_start_token_id(raw["decoder_start_token_id"])
