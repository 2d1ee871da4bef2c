"""Checkpoint names: which tensors of a Hugging Face checkpoint make up each of our parameters.

A parameter is a stack of row blocks of source tensors. One table serves reading, writing and checking, and a sharded reader takes
just the rows it needs. Which of the parameters exist, and their shapes, the model itself knows.
"""

import re
from typing import NamedTuple

from ..config import ModelConfig

_LLAMA = {
    "embed": ["model.embed_tokens.weight"],
    "norm": ["model.norm.weight"],
    "head": ["lm_head.weight"],
    "layers.N.attention_norm": ["model.layers.N.input_layernorm.weight"],
    "layers.N.qkv": [f"model.layers.N.self_attn.{x}_proj.weight" for x in "qkv"],
    "layers.N.qkv_bias": [f"model.layers.N.self_attn.{x}_proj.bias" for x in "qkv"],
    "layers.N.q_norm": ["model.layers.N.self_attn.q_norm.weight"],
    "layers.N.k_norm": ["model.layers.N.self_attn.k_norm.weight"],
    "layers.N.out": ["model.layers.N.self_attn.o_proj.weight"],
    "layers.N.out_bias": ["model.layers.N.self_attn.o_proj.bias"],
    "layers.N.mlp_norm": ["model.layers.N.post_attention_layernorm.weight"],
    "layers.N.gate_up": ["model.layers.N.mlp.gate_proj.weight", "model.layers.N.mlp.up_proj.weight"],
    "layers.N.gate_up_bias": ["model.layers.N.mlp.gate_proj.bias", "model.layers.N.mlp.up_proj.bias"],
    "layers.N.down": ["model.layers.N.mlp.down_proj.weight"],
    "layers.N.down_bias": ["model.layers.N.mlp.down_proj.bias"],
}

NAMES = {"llama": _LLAMA, "mistral": _LLAMA, "qwen2": _LLAMA, "qwen3": _LLAMA}
"""For each family, our parameter paths and the tensors they are made of; N is the layer."""

_IGNORED = re.compile(r"rotary_emb\.inv_freq$")
"""Tensors that old checkpoints carry and that follow from the configuration."""


class Block(NamedTuple):
    """Rows ``start`` to ``stop`` of the source tensor ``name``."""

    name: str
    start: int
    stop: int


def blocks(path: str, rows: int, config: ModelConfig) -> list[Block]:
    """The blocks whose rows, stacked, are the parameter at ``path``, which has ``rows`` rows."""
    layer = re.search(r"\d+", path)
    names = [name.replace("N", layer[0]) if layer else name for name in NAMES[config.family][re.sub(r"\d+", "N", path)]]
    if len(names) == 3:  # each key head with its queries: see ``decoder.Layer``
        D, G = config.head_dim, config.num_heads // config.num_kv_heads
        sizes = zip(names, (G * D, D, D))
        return [Block(n, i * size, (i + 1) * size) for i, pairs in enumerate([list(sizes)] * config.num_kv_heads) for n, size in pairs]
    return [Block(name, 0, rows // len(names)) for name in names]


def ignored(name: str, config: ModelConfig) -> bool:
    """Whether a tensor of a checkpoint may be passed over: derived tables, and the head of a model that ties it."""
    return bool(_IGNORED.search(name)) or (name == "lm_head.weight" and config.tie_embeddings)
