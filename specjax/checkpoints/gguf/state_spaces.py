"""Mamba-2 in GGUF files: the options of its families, and its tensors before the conversion."""

from typing import Any

import numpy as np

from .metadata import Metadata
from .packed import Flat, Mapped, WithAxis

SSM_HEADS = "ssm.time_step_rank"
"""The key of the number of heads of a state space."""


def mamba2_options(keys: Metadata) -> dict[str, Any]:
    heads, width = keys.need(SSM_HEADS), keys.need("ssm.inner_size")
    return _shared(keys) | {
        "head_dim": width // heads,
        "state_size": keys.need("ssm.state_size"),
        "expand": width // keys.need("embedding_length"),
    }


def nemotron_h_options(keys: Metadata) -> dict[str, Any]:
    """A layer has key heads, or a feed-forward, or else a state space, and no rotary positions."""
    heads, width = keys.need(SSM_HEADS), keys.need("ssm.inner_size")
    sizes = zip(keys.per_layer("attention.head_count_kv"), keys.per_layer("feed_forward_length"))
    return _shared(keys) | {
        "layers_block_type": ["attention" if heads else "mlp" if units else "mamba" for heads, units in sizes],
        "mamba_num_heads": heads,
        "mamba_head_dim": width // heads,
        "ssm_state_size": keys.need("ssm.state_size"),
        "mlp_bias": keys.has("ffn_up.bias"),
        "partial_rotary_factor": None,
    }


def _shared(keys: Metadata) -> dict[str, Any]:
    return {
        "n_groups": keys.need("ssm.group_count"),
        "conv_kernel": keys.need("ssm.conv_kernel"),
        "use_conv_bias": keys.has("ssm_conv1d.bias"),
        "use_bias": keys.has("ssm_in.bias"),
    }


def turn_back(name: str, tensor: Any) -> Any:
    """A tensor of Mamba-2 as a checkpoint has it: without added axes, and rates as A_log."""
    last = name.removesuffix(".weight").rpartition(".")[2]
    if last in ("ssm_d", "ssm_norm"):
        return Flat(tensor)
    if last == "ssm_a":
        return Mapped(Flat(tensor), lambda x: np.log(-x))
    return WithAxis(tensor, 1) if last == "ssm_conv1d" and len(tensor.get_shape()) == 2 else tensor
