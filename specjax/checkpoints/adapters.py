"""Merges LoRA adapters (Hu et al. 2021) into the tensors of a checkpoint, in the layout of PEFT.

An adapted weight is W + s B A, with s = alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA
(Kalajdzievski 2023). The sum is computed for each slice when the slice is read. So each device
still reads only its own part, and the model that is made of the slices has no further layers.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import CheckpointError
from ..models.config import ModelConfig
from .adapted_tensors import Adapted, NewRows
from .blocks import name_of
from .families import names_in
from .files import read_json
from .json_fields import choice, flag, integer, list_of, number, read_fields, show, table, text
from .unlisted_options import check_options

ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""Names of files with an adapter's weights. The first file found is read."""

_OPTIONS = {
    "peft_type": choice("LORA"),
    "r": integer(1, 2**16).otherwise(8),
    "lora_alpha": number(0, 1e9).otherwise(8.0),
    "use_rslora": flag(),
    "rank_pattern": table().optional({}),
    "alpha_pattern": table().optional({}),
    "target_modules": (text() | list_of(text())).optional(),
    "modules_to_save": list_of(text()).optional(),
    "bias": choice("none", "all", "lora_only").otherwise("none"),
    "trainable_token_indices": (list_of(integer(0, 2**24)) | table()).optional(),
    "ensure_weight_tying": flag(),
    "fan_in_fan_out": choice(False).optional(),
    "init_lora_weights": choice(True, False, "gaussian", "eva", "orthogonal").optional(),
}
"""The options of ``adapter_config.json``. Other initialisations change the base model's weights."""

_HARMLESS = {
    "auto_mapping", "base_model_name_or_path", "eva_config", "exclude_modules", "inference_mode",
    "layers_pattern", "layers_to_transform", "lora_dropout", "megatron_core", "peft_version",
    "qalora_group_size", "revision", "runtime_config", "task_type",
}  # fmt: skip
"""Options that do not change the weights, or change them only together with another option."""

_PREFIX = "base_model.model."
_TOKENS = ".token_adapter.trainable_tokens_delta"
_MATRIX = re.compile(r"(?P<module>.+)\.lora_(?P<table>embedding_)?(?P<letter>[AB])(\.weight)?")
_NAMED_FAULTS = 12


class _Parts(NamedTuple):
    """An adapter's tensors by their use.

    Attributes:
      updates: matrices "A" and "B" by module, and "table" for those of a table of embeddings.
      tokens: rows of tokens, by the table's name.
      replaced: tensors in place of the model's.
    """

    updates: dict[str, dict]
    tokens: dict[str, Any]
    replaced: dict[str, Any]


def merge_adapter(
    tensors: Mapping[str, Any], adapter_tensors: Mapping[str, Any], directory: Path, config: ModelConfig, where
):
    """The tensors of a language model with an adapter merged, and the model's configuration.

    The adapter may bring tables of embeddings with more tokens. If it changes one of two tied
    tables, the model has both, see ``tensors``.

    Args:
      tensors: the model's tensors, see ``tensors.open_tensors``.
      directory: the adapter's, with ``adapter_config.json``.
      where: the model's directory, for messages.

    Raises CheckpointError for an adapter of another model, and ConfigError for options that are not
    supported.
    """
    options = _read_options(directory / "adapter_config.json")
    parts = _parts_by_use(adapter_tensors)
    embed, head = (name_of(names_in(config, tensors)[parameter][0]) for parameter in ("embed", "head"))
    if config.tie_embeddings:  # a missing output matrix is the embedding
        tensors = {head: tensors[embed], **tensors}
    config = _resized(config, [parts.replaced[name] for name in {embed, head} & parts.replaced.keys()])
    if faults := _faults(tensors, parts, options, dict.fromkeys((embed, head), config.vocab_size)):
        more = f"; and {len(faults) - _NAMED_FAULTS} more" if len(faults) > _NAMED_FAULTS else ""
        raise CheckpointError(
            f"{directory}: the adapter does not fit the model in {where}: {'; '.join(faults[:_NAMED_FAULTS])}{more}; "
            "use an adapter that was trained on this model"
        )
    merged = _merged(tensors, parts, options)
    changes_embedding = embed in parts.replaced or embed.removesuffix(".weight") in parts.updates
    is_tied = not changes_embedding or options["ensure_weight_tying"]
    if config.tie_embeddings and is_tied and head not in parts.replaced and head != embed:
        del merged[head]
    return merged, config


def _read_options(path: Path) -> dict[str, Any]:
    raw = read_json(path)
    check_options(raw, _OPTIONS.keys() | _HARMLESS, str(path))
    return read_fields(raw, _OPTIONS, str(path))


def _merged(tensors: Mapping[str, Any], parts: _Parts, options: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**tensors, **parts.replaced}
    for module, update in parts.updates.items():
        name = f"{module}.weight"
        merged[name] = Adapted(merged[name], update["A"], update["B"], _scale(options, module), "table" in update)
    for name, tensor in parts.tokens.items():
        merged[name] = NewRows(merged[name], _token_ids(options["trainable_token_indices"], name), tensor)
    return merged


def _resized(config: ModelConfig, tables: list) -> ModelConfig:
    """The configuration with the vocabulary of the adapter's tables, if it has all of them."""
    rows = {table.get_shape()[0] for table in tables}
    whole = len(tables) == 2 or config.tie_embeddings
    return config.replace(vocab_size=rows.pop()) if whole and len(rows) == 1 else config


def _parts_by_use(own: Mapping[str, Any]) -> _Parts:
    parts = _Parts({}, {}, {})
    for name, tensor in own.items():
        name = name.removeprefix(_PREFIX)
        if match := _MATRIX.fullmatch(name):
            update = parts.updates.setdefault(match["module"], {})
            update[match["letter"]] = tensor
            if match["table"]:
                update["table"] = True
        elif name.endswith(_TOKENS):
            parts.tokens[f"{name.removesuffix(_TOKENS)}.weight"] = tensor
        else:
            parts.replaced[name.replace(".base_layer.", ".")] = tensor
    return parts


def _token_ids(indices: list | dict | None, name: str) -> list[int]:
    """The tokens whose rows of table ``name`` the adapter has. A list is of the embedding."""
    if isinstance(indices, dict):
        return next((ids for module, ids in indices.items() if f".{name}".endswith(f".{module}.weight")), [])
    return indices or []


def _pattern_value(patterns: Mapping[str, Any], module: str, default):
    """The entry of the first pattern that matches the end of a module's name, as PEFT finds it."""
    return next((value for key, value in patterns.items() if re.fullmatch(rf"(.*\.)?({key})", module)), default)


def _scale(options: Mapping[str, Any], module: str) -> float:
    rank = _pattern_value(options["rank_pattern"], module, options["r"])
    alpha = _pattern_value(options["alpha_pattern"], module, options["lora_alpha"])
    return alpha / (math.sqrt(rank) if options["use_rslora"] else rank)


def _faults(
    tensors: Mapping[str, Any], parts: _Parts, options: Mapping[str, Any], sizes: Mapping[str, int]
) -> list[str]:
    """All that does not fit. ``sizes``: the tokens of each table of embeddings."""
    faults = _missing(options, parts.updates)
    for name, tensor in parts.replaced.items():
        faults += _faults_of_copy(name, tensor, tensors, sizes.get(name))
    for module, update in parts.updates.items():
        rank = _pattern_value(options["rank_pattern"], module, options["r"])
        faults += _faults_of_update(module, update, tensors, rank)
    for name, tensor in parts.tokens.items():
        faults += _faults_of_tokens(name, tensor, tensors, _token_ids(options["trainable_token_indices"], name))
    return faults


def _missing(options: Mapping[str, Any], updates: Mapping[str, dict]) -> list[str]:
    """A fault for each target module without tensors. A regular expression is not checked."""
    listed = options["target_modules"] if isinstance(options["target_modules"], list) else []

    def has(target):
        return any(f".{module}".endswith(f".{target}") for module in updates)

    return [f"target module {show(target)} has no tensors" for target in listed if not has(target)]


def _faults_of_copy(name: str, tensor, tensors: Mapping[str, Any], rows: int | None) -> list[str]:
    """``rows``: of a table of embeddings, the tokens."""
    if name not in tensors:
        return [f"the model has no {name}"]
    theirs = tuple(tensor.get_shape())
    ours = tuple(tensors[name].get_shape())
    ours = ours if rows is None else (rows, *ours[1:])
    return [] if theirs == ours else [f"{name} has shape {theirs}, not {ours}"]


def _faults_of_tokens(name: str, tensor, tensors: Mapping[str, Any], ids: list) -> list[str]:
    if name not in tensors:
        return [f"the model has no {name}"]
    rows, columns = tensors[name].get_shape()
    if not all(type(id) is int and 0 <= id < rows for id in ids):
        return [f"trainable_token_indices of {name} holds a token outside the vocabulary of {rows}"]
    theirs, ours = tuple(tensor.get_shape()), (len(ids), columns)
    return [] if theirs == ours else [f"{name} has new rows {theirs}, not {ours}"]


def _faults_of_update(module: str, parts: Mapping[str, Any], tensors: Mapping[str, Any], rank: int) -> list[str]:
    name = f"{module}.weight"
    if name not in tensors:
        return [f"the model has no {name}"]
    if lacking := [letter for letter in "AB" if letter not in parts]:
        return [f"{module} has no lora_{lacking[0]}"]
    a, b, shape = (tuple(x.get_shape()) for x in (parts["A"], parts["B"], tensors[name]))
    rows, columns = shape[::-1] if "table" in parts else shape
    if (a, b) == ((rank, columns), (rows, rank)):
        return []
    return [f"{module} has A {a} and B {b}, not {(rank, columns)} and {(rows, rank)}"]
