"""The parts that DFlash 2 and XPress add to a block head: their options and tensors' names."""

from typing import Any

from ...heads.block import BlockConfig
from ..json_fields import integer
from .base import RawCheckpoint

_SIZE = integer(1, 1 << 16)

CONVOLUTIONS = {"conv_kernel_size": ("conv_taps", _SIZE), "conv_group_size": ("conv_group", _SIZE)}
SELECTOR = {"selector_rank": ("markov_rank", _SIZE), "selector_top_k": ("candidates", _SIZE)}
REFINER = {
    "xpress_rank": ("refiner_rank", _SIZE),
    "xpress_mlp_hidden": ("refiner_size", _SIZE),
    "xpress_num_passes": ("refiner_passes", integer(0, 4096)),
}
"""For each option of a part its field in ``BlockConfig``, and its values."""

PARTS = CONVOLUTIONS | SELECTOR | REFINER

NAMES = {
    "layers.N.mixer_conv.base": ["layers.N.attention_conv.base_kernel"],
    "layers.N.mixer_conv.kernels": ["layers.N.attention_conv.kernel_projection.weight"],
    "layers.N.mlp_conv.base": ["layers.N.mlp_conv.base_kernel"],
    "layers.N.mlp_conv.kernels": ["layers.N.mlp_conv.kernel_projection.weight"],
}
"""The tensors of convolutions."""

SELECTOR_NAMES = {
    "markov.first": ["candidate_selector.predecessor_codebook"],
    "markov.second": ["candidate_selector.successor_codebook"],
    "markov.gate": ["candidate_selector.hidden_projection.weight"],
}
"""The tensors of a path selector, which is a Markov correction of the kind "selector"."""

REFINER_NAMES = {
    "first": "w1.weight", "own": "down_h.weight", "mean": "down_g.weight", "join": "in_proj.weight", "mix": "mix.L",
    "gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight", "second": "w2.weight",
}  # fmt: skip
"""The tensors of a refiner, as its authors name them."""


def has_selector(config: BlockConfig) -> bool:
    return config.markov_rank > 0 and config.markov == "selector"


def read_parts(checkpoint: RawCheckpoint, options: dict) -> dict[str, Any]:
    """The fields of ``BlockConfig`` for the parts of which ``options`` has any option."""
    fields = {}
    for part in (CONVOLUTIONS, SELECTOR, REFINER):
        if any(name in options for name in part):
            values = checkpoint.read(options, {name: field for name, (_, field) in part.items()})
            fields |= {part[name][0]: value for name, value in values.items()}
    return fields | ({"markov": "selector"} if "candidates" in fields else {})


def write_parts(config: BlockConfig) -> dict[str, Any]:
    """The options of the head's parts, which ``read_parts`` reads."""
    parts = (CONVOLUTIONS if config.conv_taps else {}) | (SELECTOR if has_selector(config) else {})
    parts |= REFINER if config.refiner_rank else {}
    return {name: getattr(config, field) for name, (field, _) in parts.items()}
