"""The tensors of each parameter of a Decoder, for each family.

A parameter is a stack of blocks, and a block is some rows of a tensor. One table of names serves
reading, writing and checking. Each device reads only the rows that it holds. The table has no
shapes: the model knows them.
"""

import re
from collections.abc import Collection, Mapping, Sequence
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
"""The tensors of each parameter of a decoder layer.

Three tensors are queries, keys and values, and two are the gate and the up projection.
"""

_EMBED, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


def layer_names(prefix: str) -> dict[str, list[str]]:
    """The tensors of each parameter of decoder layers, whose names begin with ``prefix``.

    N stands for the number of the layer.
    """
    return {f"layers.N.{path}": [f"{prefix}.{name}" for name in names] for path, names in _LAYER.items()}


_LLAMA = {"embed": [_EMBED], "norm": ["model.norm.weight"], "head": [_HEAD]} | layer_names("model.layers.N")

NAMES: dict[str, dict[str, list[str]]] = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _LLAMA)
"""The tensors of each parameter, by family and path. N stands for the number of the layer."""

_NUMBER = {letter: re.compile(rf"(?<![A-Za-z]){letter}(?![A-Za-z])") for letter in "NM"}
_DERIVED = re.compile(r"rotary_emb\.inv_freq$")
_PREDICTION_HEAD = re.compile(r"(mtp\.|medusa_head\.|model\.mtp_layers\.|model\.layers\.\d+\.(?=eh_proj\.))")
"""Prefixes of drafting heads inside a language model's checkpoint. ``layouts`` reads the heads."""


class Block(NamedTuple):
    """Rows ``start`` to ``stop`` of the source tensor ``name``."""

    name: str
    start: int
    stop: int


def source_names(path: str, names: Mapping[str, Sequence[str]]) -> list[str]:
    """The tensors of the parameter at ``path``.

    Args:
      path: the path of a parameter, such as "layers.3.qkv".
      names: the tensors of each path. A path stands there as it is, or with N for each of its
        numbers. In the names of tensors, N stands for the path's first number and M for its second.
    """
    numbers, found = re.findall(r"\d+", path), []
    for name in names[path if path in names else re.sub(r"\d+", "N", path)]:
        for letter, number in zip("NM", numbers):
            name = _NUMBER[letter].sub(number, name)
        found.append(name)
    return found


def blocks(path: str, rows: int, names: Mapping[str, Sequence[str]], config: ModelConfig | None) -> list[Block]:
    """The blocks of rows that make up the parameter at ``path``, in order.

    Queries, keys and values go by key head: first its G query heads, then its key, then its value.
    Copies of a key head have the same rows. The gate and the up projection go by parts, see
    ``decoder.Layer``.

    Args:
      path: the path of the parameter.
      rows: the number of rows of the parameter.
      names: see ``source_names``.
      config: the configuration of the decoder layers, None for a module without any.
    """
    sources = source_names(path, names)
    if len(sources) == 1:
        return [Block(sources[0], 0, rows)]
    assert config is not None  # only decoder layers have stacked parameters
    if len(sources) == 3:
        D, G = config.head_dim, config.num_heads // config.num_kv_heads
        parts, sizes, copies = config.num_kv_heads, (G * D, D, D), (1, config.kv_copies, config.kv_copies)
    else:
        parts, copies = config.mlp_parts, (1, 1)
        sizes = (rows // 2 // parts,) * 2
    return [
        Block(name, part // n * size, (part // n + 1) * size)
        for part in range(parts)
        for name, size, n in zip(sources, sizes, copies)
    ]


def model_names(config: ModelConfig, tensors: Collection[str]) -> dict[str, list[str]]:
    """The names of a language model's parameters in a checkpoint with these tensors.

    A tied checkpoint may store its one table as ``lm_head.weight`` only.
    """
    names = NAMES[config.family]
    if config.tie_embeddings and _EMBED not in tensors and _HEAD in tensors:
        return names | {"embed": [_HEAD]}
    return names


def model_tensors(config: ModelConfig, tensors: Collection[str]) -> list[str]:
    """The names of a checkpoint's tensors that belong to the language model itself.

    The list leaves out drafting heads, tables that follow from the configuration, and the second
    copy of a tied table.
    """
    heads = tuple({match[1] for match in map(_PREDICTION_HEAD.match, tensors) if match})
    copies = {_HEAD} if config.tie_embeddings and _EMBED in tensors else set()
    return [name for name in tensors if not name.startswith(heads) and not derived(name) and name not in copies]


def derived(name: str) -> bool:
    """Whether a tensor follows from the configuration. Only old checkpoints store such tables."""
    return bool(_DERIVED.search(name))
