"""Reads and writes the ``config.json`` of a Hugging Face checkpoint.

A family gives the type, the range and the default of each of its options, see
``families.Family``. An option that the family does not list is refused if transformers knows it,
because it may change the maths, and else ignored with a warning.
"""

import os
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from ..core.checks import shorten
from ..errors import CheckpointError, ConfigError, RequestError, SpecjaxWarning
from ..models.config import ModelConfig
from .families import FAMILIES, SAME_DECODER, WITH_TEXT
from .files import checkpoint_at, is_gguf, read_json
from .gguf.configs import read_gguf_config
from .gguf.reader import open_gguf
from .hub import ZOO, zoo
from .json_fields import read_fields, show, table, text
from .rope_options import read_rope, write_rope
from .schemas import ACTIVATIONS, DTYPES, LONGEST, TOKEN_ID, TOKEN_IDS, WRITTEN_ACTIVATIONS
from .unlisted_options import ignore_or_refuse

_GENERATION = {"eos_token_id": TOKEN_IDS, "decoder_start_token_id": TOKEN_ID, "forced_bos_token_id": TOKEN_ID}
"""The options of ``generation_config.json`` that are read."""


def read_raw(checkpoint: Path) -> dict[str, Any]:
    """The object of a checkpoint's config.json, or the same from the metadata of a GGUF file.

    Raises CheckpointError for a file that is missing or damaged, and ConfigError for a GGUF file of
    a model that is not supported.
    """
    if is_gguf(checkpoint):
        return read_gguf_config(open_gguf(checkpoint))
    return read_json(checkpoint / "config.json")


def config_place(checkpoint: Path) -> Path:
    """The file that holds the configuration of a checkpoint."""
    return checkpoint if is_gguf(checkpoint) else checkpoint / "config.json"


def read_config(directory: str | Path) -> ModelConfig:
    """The configuration of a checkpoint, in ``directory/config.json`` or in a GGUF file.

    The end-of-text ids of ``generation_config.json`` take precedence, and the tokens with which a
    decoder begins.

    Raises CheckpointError for a file that is missing or not JSON, ConfigError for a model that is
    not supported.
    """
    path = config_place(Path(directory))
    config = from_hf(read_raw(Path(directory)), str(path))
    if is_gguf(path):
        return config
    generation = path.with_name("generation_config.json")
    if not generation.exists():
        return config
    where = str(generation)
    options = read_fields(read_json(generation), _GENERATION, where)
    if config.encoder is not None:
        begins = [options[name] for name in ("decoder_start_token_id", "forced_bos_token_id")]
        known = [*config.decoder_prompt, None][:2]
        prompt = [new if new is not None else old for new, old in zip(begins, known)]
        prompt = [token for token in prompt if token is not None]
        config = config.replace(decoder_prompt=_check_ids("decoder_start_token_id", prompt, config.vocab_size, where))
    ids = options["eos_token_id"]
    if ids is None:
        return config
    return config.replace(eos_token_ids=_known_ids("eos_token_id", ids, config.vocab_size, where))


def read_shape(model: str | Path) -> ModelConfig:
    """The configuration in a config.json or a GGUF file, in a directory with one, or embedded.

    Raises CheckpointError for a file that is missing or not JSON, ConfigError for a model that is
    not supported.
    """
    path = config_file(model)
    if is_gguf(path):
        return read_config(path)
    is_file = path == Path(os.path.expanduser(model))
    return from_hf(read_json(path), str(path)) if is_file else read_config(path.parent)


def config_file(model: str | Path) -> Path:
    """The configuration that ``read_shape`` reads. Raises CheckpointError for none."""
    path = ZOO / model if str(model) in zoo() else Path(os.path.expanduser(model))
    if not os.path.exists(path):
        raise CheckpointError(f"no model shape {shorten(str(model), 150)}; name a config.json, or a directory with one")
    path = checkpoint_at(path)
    return path / "config.json" if path.is_dir() else path


def from_hf(raw: dict, where: str = "config.json") -> ModelConfig:
    """The ModelConfig of a parsed ``config.json``.

    Args:
      raw: the object in the file. Its rotary positions stand in ``rope_theta`` and
        ``rope_scaling``, or in ``rope_parameters``. ``quantization_config`` is ignored: it is about
        the tensors, see ``packed.weights``.
      where: the file, for messages.

    Raises ConfigError, which names the option, its value and the allowed values.
    """
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: the configuration is {show(raw)}; it must be an object")
    raw = {name: value for name, value in raw.items() if name != "quantization_config"}
    model_type = read_fields(raw, {"model_type": text().optional()}, where)["model_type"]
    if model_type in WITH_TEXT:
        return from_hf(text_options(raw, where), f"{where}: text_config")
    family = FAMILIES.get(SAME_DECODER.get(model_type or "", model_type or ""))
    if family is None:
        known = get_close_matches(model_type or "", FAMILIES, 3, 0.4) or ["llama", "qwen3", "gemma3_text"]
        raise ConfigError(
            f"{where}: model_type {show(model_type)} is not supported; use one that docs/models.md lists, such as "
            f"{', '.join(known)}"
        )
    raw = {new if (new := family.former.get(name, name)) not in raw else name: value for name, value in raw.items()}
    ignore_or_refuse(family.model_type, raw, family.options, where, family.harmless)
    options = read_fields(raw, family.options, where)
    usual = options | {name: options[theirs] for name, theirs in family.renamed.items()}
    heads = usual["num_attention_heads"]
    vocab_size = usual["vocab_size"]
    head_dim = _head_dim(usual, where)
    fields: dict[str, Any] = dict(
        family=family.model_type,
        vocab_size=vocab_size,
        hidden_size=usual["hidden_size"],
        intermediate_size=usual.get("intermediate_size"),
        num_layers=usual["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=usual.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        max_position_embeddings=usual.get("max_position_embeddings"),
        norm_eps=usual.get("rms_norm_eps", 1e-5),
        activation=ACTIVATIONS[usual.get("hidden_act", "silu")],
        tie_embeddings=usual["tie_word_embeddings"],
        bos_token_id=next(iter(_known_ids("bos_token_id", usual["bos_token_id"], vocab_size, where)), None),
        eos_token_ids=_known_ids("eos_token_id", usual["eos_token_id"], vocab_size, where),
        dtype=(usual["dtype"] or usual["torch_dtype"] or "float32").removeprefix("torch."),
    )
    if family.theta is not None:
        fields["rope"] = read_rope(usual, head_dim, where, family.theta, family.rotated)
    config = ModelConfig(**(fields | family.read(usual, where)))
    if heads % config.num_kv_heads:
        raise ConfigError(
            f"{where}: num_key_value_heads is {config.num_kv_heads}; it must divide num_attention_heads, {heads}"
        )
    if config.context > LONGEST:
        raise ConfigError(
            f"{where}: max_position_embeddings is {config.max_position_embeddings}, which rope scaling stretches to"
            f" {config.context}; at most {LONGEST} positions are supported"
        )
    return config


def text_options(raw: dict, where: str) -> dict:
    """The options of the language model alone, where ``raw`` describes a model of text and images.

    Transformers reads the outer ``tie_word_embeddings``. Older files have the inner one only.

    Raises ConfigError where such a model has no ``text_config``.
    """
    if raw.get("model_type") not in (*WITH_TEXT,):
        return raw
    inner = read_fields(raw, {"text_config": table()}, where)["text_config"]
    outside = {name: raw[name] for name in ("dtype", "torch_dtype", "eos_token_id") if name in raw}
    family = FAMILIES[WITH_TEXT[raw["model_type"]]]
    default = family.options["tie_word_embeddings"].default
    tied = raw.get("tie_word_embeddings", default) or inner.get("tie_word_embeddings", False)
    return outside | inner | {"model_type": family.model_type, "tie_word_embeddings": tied}


def check_dtype(dtype: Any) -> str:
    """The name of a dtype of weights. Raises RequestError for a dtype outside ``DTYPES``."""
    try:
        name = str(jnp.dtype(dtype))
    except TypeError:
        name = str(dtype)
    if name not in DTYPES:
        raise RequestError(f"dtype is {name!r}; it must be one of {', '.join(DTYPES)}")
    return name


def check_scheme(name: str, value: Any, schemes: Iterable[str]) -> str | None:
    """The form of quantised numbers, or None. Raises RequestError for one not among ``schemes``."""
    if value is not None and value not in [*schemes]:
        raise RequestError(f"{name} is {value!r}; it must be one of {', '.join(schemes)}")
    return value


def to_hf(config: ModelConfig) -> dict:
    """The ``config.json`` of a model, which ``from_hf`` and transformers read."""
    family = FAMILIES[config.family]
    raw = {
        "architectures": [family.architecture],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads // config.kv_copies,
        "head_dim": config.head_dim,
        "hidden_act": WRITTEN_ACTIVATIONS[config.activation],
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": write_rope(config.rope, family.rotated),
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "dtype": config.dtype,
    }
    options = {family.renamed.get(name, name): value for name, value in raw.items()}
    return {name: value for name, value in options.items() if name in family.options} | family.write(config)


def _head_dim(options: dict, where: str) -> int:
    width = options["hidden_size"]
    heads = options["num_attention_heads"]
    size = options.get("head_dim")
    if size is None and width % heads:
        raise ConfigError(
            f"{where}: hidden_size is {width}; without head_dim it must be a multiple of num_attention_heads, {heads}"
        )
    size = size or width // heads
    if size % 2:
        raise ConfigError(f"{where}: head_dim is {size}; it must be even, because rotary positions rotate pairs")
    return size


def _known_ids(name: str, ids: int | list[int] | None, vocab_size: int, where: str) -> tuple[int, ...]:
    """The ids in the vocabulary, empty for null. A warning names an id outside it."""
    listed = () if ids is None else tuple(ids) if isinstance(ids, list) else (ids,)
    if other := [token for token in listed if token >= vocab_size]:
        message = f"{where}: ignores {name} {other[0]}; the vocabulary has ids 0 to {vocab_size - 1}"
        warnings.warn(message, SpecjaxWarning, stacklevel=2)
    return tuple(token for token in listed if token < vocab_size)


def _check_ids(name: str, ids: list[int], vocab_size: int, where: str) -> tuple[int, ...]:
    """The ids as a tuple. Raises ConfigError for an id outside the vocabulary."""
    for token in ids:
        if token >= vocab_size:
            raise ConfigError(f"{where}: {name} is {token}; the vocabulary has ids 0 to {vocab_size - 1}")
    return tuple(ids)
