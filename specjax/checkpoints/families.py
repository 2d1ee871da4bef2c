"""Checkpoint names: which tensors of a Hugging Face checkpoint make up each of our parameters.

A parameter is a stack of row blocks of source tensors. One table serves reading, writing and checking, and a sharded reader takes
just the rows it needs. Which of the parameters exist, and their shapes, the model itself knows.
"""

import re
from functools import reduce
from typing import NamedTuple

from ..models.config import ModelConfig

_LAYER = {
    "attention_norm": ["input_layernorm.weight"],
    "qkv": [f"self_attn.{x}_proj.weight" for x in "qkv"],
    "qkv_bias": [f"self_attn.{x}_proj.bias" for x in "qkv"],
    "q_norm": ["self_attn.q_norm.weight"],
    "k_norm": ["self_attn.k_norm.weight"],
    "out": ["self_attn.o_proj.weight"],
    "out_bias": ["self_attn.o_proj.bias"],
    "mlp_norm": ["post_attention_layernorm.weight"],
    "gate_up": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
    "gate_up_bias": ["mlp.gate_proj.bias", "mlp.up_proj.bias"],
    "down": ["mlp.down_proj.weight"],
    "down_bias": ["mlp.down_proj.bias"],
}


def layer_names(prefix: str) -> dict[str, list[str]]:
    """Our paths of a decoder layer and the tensors they are made of, whose names begin with ``prefix``; N is the layer."""
    return {f"layers.N.{ours}": [f"{prefix}.{name}" for name in names] for ours, names in _LAYER.items()}


_LLAMA = {
    "embed": ["model.embed_tokens.weight"],
    "norm": ["model.norm.weight"],
    "head": ["lm_head.weight"],
} | layer_names("model.layers.N")

NAMES = {"llama": _LLAMA, "mistral": _LLAMA, "qwen2": _LLAMA, "qwen3": _LLAMA}
"""For each family, our parameter paths and the tensors they are made of; N is the layer."""

_DERIVED = re.compile(r"rotary_emb\.inv_freq$")

_HEAD = re.compile(r"(mtp\.|medusa_head\.|model\.mtp_layers\.|model\.layers\.\d+\.(?=eh_proj\.))")
"""How the names of heads begin that come inside a language model's checkpoint; see ``heads.layouts``."""


class Block(NamedTuple):
    """Rows ``start`` to ``stop`` of the source tensor ``name``."""

    name: str
    start: int
    stop: int


def blocks(path: str, rows: int, names: dict[str, list[str]], config: ModelConfig | None) -> list[Block]:
    """The blocks whose rows, stacked, are the parameter at ``path``, which has ``rows`` rows.

    Args:
      names: for each path, as it stands or with N in place of its numbers, the tensors it is made of; N there is the first number and
        M the second.
      config: of the decoder layers, where there are any.
    """
    numbers, pattern = re.findall(r"\d+", path), re.sub(r"\d+", "N", path)
    names = [reduce(lambda name, at: name.replace(*at), zip("NM", numbers), name) for name in names[path if path in names else pattern]]
    if len(names) == 3:  # each key head with its queries: see ``decoder.Layer``
        D, G = config.head_dim, config.num_heads // config.num_kv_heads
        sizes = zip(names, (G * D, D, D))
        return [Block(n, i * size, (i + 1) * size) for i, pairs in enumerate([list(sizes)] * config.num_kv_heads) for n, size in pairs]
    return [Block(name, 0, rows // len(names)) for name in names]


def derived(name: str) -> bool:
    """Whether a tensor is one that old checkpoints carry and that follows from the configuration."""
    return bool(_DERIVED.search(name))


def ignored(name: str, config: ModelConfig) -> bool:
    """Whether a tensor of a checkpoint may be passed over: derived tables, and the head of a model that ties it."""
    return derived(name) or (name == "lm_head.weight" and config.tie_embeddings)


def without_heads(names) -> list[str]:
    """The names that belong to the language model itself, where its checkpoint also holds heads that draft for it."""
    heads = tuple({match[1] for match in map(_HEAD.match, names) if match})
    return [name for name in names if not name.startswith(heads)]
