"""Weights that a checkpoint stores in fewer bits: GPTQ, AWQ, compressed-tensors, FP8, MXFP4, own.

``quantization_config`` in config.json names the method. Each packed weight becomes a tensor [out,
in] that is unpacked when it is indexed. A weight that ``models.quantised_weights`` can hold also
has its numbers and scales. Such a weight keeps its numbers in memory, and others become the dtype
that was asked for.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from ...errors import CheckpointError, ConfigError
from ..json_fields import choice, integer, list_of, read_fields, table, text
from . import mxfp4, own
from .stored import Part, Stored
from .words import Packed, find_awq, find_gptq, packed_words, take


def unpack_tensors(tensors: Mapping[str, Any], settings: dict | None, where: str) -> dict[str, Any]:
    """The tensors with one tensor ``X.weight`` for the packed tensors of each module X.

    Args:
      settings: ``quantization_config`` of the checkpoint; None for full weights.
      where: config.json, for messages.

    Raises ConfigError for an unknown method or option, and CheckpointError for shapes that do not
    fit, and for a checkpoint in which no weight is packed.
    """
    if settings is None:
        return dict(tensors)
    method, options = read_method(settings, where)
    unpacked = _METHODS[method][0](dict(tensors), options, where)
    if not any(isinstance(tensor, Packed | mxfp4.Packed) for tensor in unpacked.values()):
        raise CheckpointError(
            f"{where}: quantization_config.quant_method is {method!r}, and no weight is packed; "
            f"remove quantization_config if the weights are full"
        )
    return unpacked


def without_zero_biases(tensors: Mapping[str, Any], expected: Collection[str]) -> dict[str, Any]:
    """The tensors without biases of packed weights that are zero and not ``expected``.

    GPTQ's tools write a bias for each linear map, whether the model has one or not.
    """

    def is_extra(name: str) -> bool:
        weight = tensors.get(f"{name.removesuffix('bias')}weight")
        extra = name.endswith(".bias") and name not in expected and isinstance(weight, Packed)
        return extra and not np.any(tensors[name][:])

    return {name: tensor for name, tensor in tensors.items() if not is_extra(name)}


def read_method(settings: dict, where: str) -> tuple[str, dict]:
    """The method of a ``quantization_config``, and its options.

    Raises ConfigError for an unknown method or option.
    """
    within = "quantization_config"
    method = read_fields(settings, {"quant_method": text()}, where, within)["quant_method"]
    if method not in _METHODS:
        raise ConfigError(f"{where}: {within}.quant_method is {method!r}; it must be one of {', '.join(_METHODS)}")
    return method, read_fields(settings, _METHODS[method][1], where, within)


def _find_compressed(tensors: dict, options: dict, where: str) -> dict:
    weights = _read_weights(options["config_groups"], where)
    for name in [name for name in tensors if name.endswith(".weight_scale")]:
        module = name.removesuffix(".weight_scale")
        scales = tensors.pop(name)
        for other in ("weight_zero_point", "weight_g_idx"):
            if f"{module}.{other}" in tensors:
                raise ConfigError(f"{where}: {module}.{other} is not supported; use symmetric weights in order")
        for other in ("weight_shape", "input_scale", "input_zero_point"):
            tensors.pop(f"{module}.{other}", None)
        if f"{module}.weight_packed" in tensors:
            words = tensors.pop(f"{module}.weight_packed")
            packed = packed_words(module, words, scales, weights["num_bits"], where)
        else:
            numbers = take(tensors, f"{module}.weight", where)
            packed = _scaled(module, numbers, scales, weights["block_structure"], where)
        tensors[f"{module}.weight"] = packed
    return tensors


def _read_weights(groups: dict, where: str) -> dict:
    """The options of the weights, which all groups must share.

    Raises ConfigError for other groups.
    """
    kinds = []
    for key, group in groups.items():
        within = f"quantization_config.config_groups.{key}"
        weights = read_fields(group, {"weights": table()}, where, within)["weights"]
        kinds.append(read_fields(weights, _WEIGHTS, where, f"{within}.weights"))
    if not kinds or kinds.count(kinds[0]) < len(kinds):
        raise ConfigError(
            f"{where}: quantization_config.config_groups has {len(kinds)} kinds of weights; one is supported"
        )
    return kinds[0]


def _find_fp8(tensors: dict, options: dict, where: str) -> dict:
    """weight float8_e4m3fn [out, in], and weight_scale_inv float32, a number for each block."""
    for name in [name for name in tensors if name.endswith(".weight_scale_inv")]:
        module = name.removesuffix(".weight_scale_inv")
        tensors.pop(f"{module}.activation_scale", None)
        weight = take(tensors, f"{module}.weight", where)
        scales = tensors.pop(name)
        tensors[f"{module}.weight"] = _scaled(module, weight, scales, options["weight_block_size"], where)
    return tensors


def _scaled(module: str, weight, scales, block: list | None, where: str) -> Packed:
    """int8 or float8 numbers [out, in] with their scales.

    A scale is for all numbers, for a row, or for a block of rows and inputs.
    """
    outputs, inputs = weight.get_shape()
    factor = np.atleast_1d(scales[tuple(slice(None) for _ in scales.get_shape())]).astype(np.float32)
    factor = factor.reshape(-1, 1) if factor.ndim == 1 else factor
    high, wide = block or (-(-outputs // factor.shape[0]), -(-inputs // factor.shape[1]))
    if factor.shape != (-(-outputs // high), -(-inputs // wide)):
        raise CheckpointError(
            f"{where}: {module} has scales {factor.shape} for a weight {(outputs, inputs)} and weight_block_size "
            f"{[high, wide]}; they must divide alike"
        )
    if factor.shape[1] > 1:

        def spread(index):
            rows = np.repeat(factor, high, 0)[:outputs][index[0]]
            return np.repeat(rows, wide, 1)[:, :inputs][:, index[1]]

        return Packed((outputs, inputs), unpack=lambda index: weight[index].astype(np.float32) * spread(index))
    rows = np.repeat(factor, high, 0)[:outputs]
    whole = str(weight.get_dtype()) == "I8"
    numbers = Part((outputs, inputs), "I8" if whole else "F8_E4M3", lambda index: weight[index])
    scaled = Part((outputs, 1), "F32", lambda index: rows[index])
    return Packed((outputs, inputs), Stored("int8" if whole else "fp8", numbers, scaled))


def _find_mxfp4(tensors: dict, options: dict, where: str) -> dict:
    """X_blocks and X_scales, see ``mxfp4``; X [..., in]."""
    for name in [name for name in tensors if name.endswith("_blocks")]:
        weight = name.removesuffix("_blocks")
        tensors[weight] = mxfp4.Packed(tensors.pop(name), take(tensors, f"{weight}_scales", where))
    return tensors


_BLOCK = list_of(integer(1, 2**20))
_WEIGHTS = {
    "num_bits": choice(4, 8),
    "type": choice("int", "float").otherwise("int"),
    "symmetric": choice(True).otherwise(True),
    "actorder": choice("weight", "static", False).optional(),
    "block_structure": _BLOCK.optional(),
}
_GROUPS = {"group_size": integer(-1, 2**20).otherwise(128)}
_FORMATS = choice("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_METHODS: dict[str, tuple[Callable, dict]] = {
    "gptq": (
        find_gptq,
        _GROUPS | {"bits": choice(4, 8), "checkpoint_format": choice("gptq", "gptq_v2").otherwise("gptq")},
    ),
    "awq": (find_awq, _GROUPS | {"bits": choice(4), "version": choice("gemm").otherwise("gemm")}),
    "compressed-tensors": (_find_compressed, {"format": _FORMATS, "config_groups": table()}),
    "fp8": (_find_fp8, {"weight_block_size": _BLOCK.optional()}),
    "mxfp4": (_find_mxfp4, {}),
    own.METHOD: (own.find_own, {"activations": choice(8, 16)}),
}
"""By method: the function that finds its tensors, and the options of ``quantization_config``."""
