"""The object of a config.json, from the metadata of a GGUF file."""

from typing import Any

from ...errors import ConfigError
from ..families import FAMILIES, Family
from ..json_fields import show
from .architectures import ARCHITECTURES
from .metadata import Metadata
from .reader import GgufFile
from .ropes import read_rope_options
from .special_tokens import special_ids

_SIZES = {"hidden_size": "embedding_length", "max_position_embeddings": "context_length"}
"""The keys of the options that all families have, by Llama's names of the options."""

_HARMLESS = (
    "vocab_size", "rope.scaling.finetuned", "tensor_data_layout", "pooling_type", "attention.causal",
    "attention.value_length", "attention.value_length_swa", "expert_gating_func", "nextn_predict_layers",
    "rope.dimension_sections",
)  # fmt: skip
"""Keys that do not change the maths of the architectures here, beside those that are read.

Sections give pictures positions of their own. Texts have one.
"""


def read_gguf_config(file: GgufFile) -> dict[str, Any]:
    """The object of a config.json, which ``config.from_hf`` reads.

    Weights become bfloat16, unless another dtype is asked for.

    Raises ConfigError for an architecture that is not supported, and for metadata that are missing
    or that may change the maths.
    """
    name = architecture(file)
    keys = Metadata(file, name)
    known = ARCHITECTURES[name]
    family = FAMILIES[known.model_type(keys)]
    layers = keys.need("block_count") - keys.count("nextn_predict_layers")
    options: dict[str, Any] = {option: keys.need(key) for option, key in _SIZES.items()}
    options |= {
        "architectures": [family.architecture],
        "num_attention_heads": keys.need(known.heads),
        "model_type": family.model_type,
        "num_hidden_layers": layers,
        "vocab_size": keys.rows("token_embd.weight"),
        "rms_norm_eps": keys.get("attention.layer_norm_rms_epsilon") or keys.get("attention.layer_norm_epsilon"),
        "head_dim": head_dim(keys, known.heads),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "dtype": "bfloat16",
    }
    if not known.by_layer:  # a mixture may have experts only
        options["intermediate_size"] = keys.common_size("feed_forward_length") or None
        options["num_key_value_heads"] = keys.common_size("attention.head_count_kv") or keys.need(known.heads)
    options |= read_rope_options(keys, options["head_dim"]) | special_ids(file) | known.options(keys)
    keys.refuse_others(_HARMLESS)
    _check_heads(options, family, str(file.path))
    options = {family.renamed.get(option, option): value for option, value in options.items()}
    present = {option: value for option, value in options.items() if value is not None or option in known.nullable}
    return {option: value for option, value in present.items() if option in family.options}


def architecture(file: GgufFile) -> str:
    """The architecture of a file, one of ``ARCHITECTURES``. Raises ConfigError for others."""
    name = file.metadata.get("general.architecture")
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise ConfigError(f"{file.path}: holds {show(kind)}, not a language model; name the file with the model")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ConfigError(
            f"{file.path}: architecture {show(name)} is not supported; use one of {', '.join(ARCHITECTURES)}"
        )
    return name


def head_dim(keys: Metadata, count: str) -> int:
    """The dimensions of a head, as llama.cpp finds them. ``count`` is the key of the heads.

    Raises ConfigError for more heads than dimensions.
    """
    heads, width = keys.need(count), keys.need("embedding_length")
    if heads > width:
        raise ConfigError(f"{keys.where(count)} is {heads}; it must be at most {width}")
    return keys.count("attention.key_length") or width // heads


def _check_heads(options: dict[str, Any], family: Family, where: str) -> None:
    """Raises ConfigError for heads that the family's config.json cannot express."""
    usual = {"head_dim": options["hidden_size"] // options["num_attention_heads"], "partial_rotary_factor": 1.0}
    for option, value in usual.items():
        if family.renamed.get(option, option) not in family.options and options[option] not in (value, None):
            raise ConfigError(
                f"{where}: heads have {option} {options[option]:g}; it must be {value:g} in {family.model_type}"
            )
