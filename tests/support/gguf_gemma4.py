"""What a GGUF file of Gemma 4 says beside those of other families."""

from collections.abc import Mapping

import gguf
import numpy as np


def add_gemma4(writer: gguf.GGUFWriter, raw: Mapping) -> None:
    """Writes the sizes of both kinds of layers, and the divisors that turn a part of the dimensions."""
    if raw["model_type"] != "gemma4_text":
        return
    layers, shared = raw["num_hidden_layers"], raw["num_kv_shared_layers"]
    local = [kind == "sliding_attention" for kind in raw["layer_types"]]
    whole = raw["per_layer_config"][str(local.index(False))]
    heads = [raw["num_key_value_heads"], whole.get("num_key_value_heads", raw["num_key_value_heads"])]
    writer.add_sliding_window(raw["sliding_window"])
    writer.add_sliding_window_pattern(local)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(raw["hidden_size_per_layer_input"])
    writer.add_head_count_kv([heads[not each] for each in local])
    wide = 1 + raw["use_double_wide_mlp"]
    units = raw["intermediate_size"]
    writer.add_feed_forward_length([units] * (layers - shared) + [wide * units] * shared)
    writer.add_key_length(whole["head_dim"])
    writer.add_value_length(whole["head_dim"])
    writer.add_key_length_swa(raw["head_dim"])
    writer.add_value_length_swa(raw["head_dim"])
    writer.add_rope_dimension_count(whole["head_dim"])
    writer.add_rope_dimension_count_swa(raw["head_dim"])
    writer.add_rope_freq_base_swa(raw["rope_parameters"]["sliding_attention"]["rope_theta"])
    turning = int(whole["head_dim"] * raw["rope_parameters"]["full_attention"]["partial_rotary_factor"] / 2)
    divisors = np.where(np.arange(whole["head_dim"] // 2) < turning, 1, 1e30)
    writer.add_tensor("rope_freqs.weight", divisors.astype(np.float32))
