"""The families of models that are read and written, one file each."""

import re
from collections.abc import Collection

from ...heads import KINDS
from ...models.config import ModelConfig
from ..blocks import Tensor, rename
from .base import Family, layer_names
from .cohere import COHERE, COHERE2
from .deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE
from .encoder_decoders.bart import BART
from .encoder_decoders.t5 import T5
from .ernie import ERNIE4_5, ERNIE4_5_MOE
from .falcon import BLOOM, FALCON
from .gemma import GEMMA2, GEMMA3
from .gemma4 import GEMMA4
from .glm import GLM, GLM4, GLM4_MOE
from .gpt2 import GPT2
from .gpt_neox import GPT_NEOX
from .granite import GRANITE, GRANITE4
from .lfm2 import LFM2
from .llama import LLAMA, MISTRAL, QWEN2, QWEN3
from .llama4 import LLAMA4
from .llama_kin import APERTUS, ARCEE, HELIUM, HUNYUAN, SEED_OSS, SMOLLM3
from .mamba2 import MAMBA2, NEMOTRON_H
from .minimax import MINIMAX_M2
from .mixtures import GPT_OSS, MIXTRAL, QWEN2_MOE, QWEN3_MOE
from .olmo2 import EXAONE4, OLMO2, OLMO3
from .opt import OPT
from .phi import GPTJ, PHI
from .phi3 import PHI3
from .qwen3_next import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from .starcoder2 import STARCODER2

__all__ = ["FAMILIES", "NAMES", "SAME_DECODER", "Family", "derived", "layer_names", "names_in", "name_in", "tensors_in"]

FAMILIES = {
    family.model_type: family
    for family in (
        LLAMA,
        LLAMA4,
        MISTRAL,
        QWEN2,
        QWEN3,
        GEMMA2,
        GEMMA3,
        GEMMA4,
        PHI3,
        GLM,
        GLM4,
        OLMO2,
        OLMO3,
        EXAONE4,
        GPT2,
        GPT_NEOX,
        OPT,
        STARCODER2,
        MIXTRAL,
        QWEN2_MOE,
        QWEN3_MOE,
        GPT_OSS,
        DEEPSEEK_V2,
        DEEPSEEK_V3,
        GLM4_MOE,
        GLM4_MOE_LITE,
        QWEN3_NEXT,
        QWEN3_5,
        QWEN3_5_MOE,
        LFM2,
        SMOLLM3,
        GRANITE,
        GRANITE4,
        PHI,
        GPTJ,
        FALCON,
        BLOOM,
        COHERE,
        COHERE2,
        ERNIE4_5,
        ERNIE4_5_MOE,
        SEED_OSS,
        HELIUM,
        ARCEE,
        APERTUS,
        HUNYUAN,
        MINIMAX_M2,
        MAMBA2,
        NEMOTRON_H,
        T5,
        BART,
    )
}
"""The supported values of ``model_type``."""

SAME_DECODER = {"mimo": "qwen2", "kimi_k2": "deepseek_v3"}
"""Families whose decoder is that of another family. ``layouts`` reads MiMo's drafting heads."""

WITH_TEXT = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""Models of text and images: ``text_config`` and tensors hold a language model of a family."""

_TEXT_PREFIXES = {
    "model.language_model.": ("model.", "model.language_model."),
    "language_model.": ("", "language_model."),
}
"""The prefixes of a language model's tensors in a model of text and images."""

NAMES = {name: family.names for name, family in FAMILIES.items()}
"""The tensors of each parameter, by family and path. N stands for the number of the layer."""

_DERIVED = re.compile(r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias|\.attention\.(masked_)?bias)$")
_PREDICTION_HEAD = re.compile(f"({'|'.join(prefix for kind in KINDS.values() for prefix in kind.prefixes)})")
"""Prefixes of drafting heads inside a language model's checkpoint. ``layouts`` reads the heads."""


def names_in(config: ModelConfig, tensors: Collection[str]) -> dict[str, list[str | Tensor]]:
    """The names of a language model's parameters in a checkpoint with these tensors.

    A tied checkpoint may store its one table as the output matrix only. The checkpoint of a bare
    model may leave out the prefix that the language model adds.
    """
    family = FAMILIES[config.family]
    prefix = family.optional_prefix
    is_bare = bool(prefix) and not any(name.startswith(prefix) for name in tensors)

    def stored_name(name: str) -> str:
        name = family.aliases[name] if family.aliases.get(name) in tensors else name
        name = name_in(name, tensors)
        return name.removeprefix(prefix) if is_bare else name

    names = {path: rename(listed, stored_name) for path, listed in family.names.items()}
    if config.tie_embeddings and names["embed"][0] not in tensors and names["head"][0] in tensors:
        return names | {"embed": names["head"]}
    return names


def name_in(name: str, tensors: Collection[str]) -> str:
    """The name of a language model's tensor in a checkpoint with these tensors.

    ``name`` may also be the beginning of a tensor's name.
    """
    wrapper = _text_prefix(tensors)
    old, new = _TEXT_PREFIXES[wrapper] if wrapper else ("", "")
    return new + name.removeprefix(old) if name.startswith(old) else name


def tensors_in(config: ModelConfig, tensors: Collection[str]) -> list[str]:
    """The names of a checkpoint's tensors that belong to the language model itself.

    The list leaves out drafting heads, tables that follow from the configuration, the second copy
    of a tied table, and what a model of text and images has besides its language model.
    """
    if wrapper := _text_prefix(tensors):
        tensors = [name for name in tensors if name.startswith((wrapper, "lm_head."))]
    heads = tuple({match[1] for match in map(_PREDICTION_HEAD.match, tensors) if match})
    names = names_in(config, tensors)
    copies = set(names["head"]) - set(names["embed"]) if config.tie_embeddings else set()
    unused = lambda name: name.startswith(heads) or derived(name) or FAMILIES[config.family].is_unused(config, name)
    return [name for name in tensors if name not in copies and not unused(name)]


def _text_prefix(tensors: Collection[str]) -> str | None:
    """The prefix of a language model's tensors beside images; None in other models."""
    return next((prefix for prefix in _TEXT_PREFIXES if any(name.startswith(prefix) for name in tensors)), None)


def derived(name: str) -> bool:
    """Whether a tensor follows from the configuration. Only old checkpoints store such tables."""
    return bool(_DERIVED.search(name))
