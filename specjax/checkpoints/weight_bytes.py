"""The bytes of a checkpoint's weights as its files store them, from config.json alone."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import jax.numpy as jnp
from flax import nnx

from ..models.config import ModelConfig
from ..models.rounding import is_quantisable
from .blocks import blocks
from .config import config_file, read_shape
from .families import NAMES
from .files import is_gguf, read_json
from .packed.weights import read_method
from .shape_check import least_shapes
from .tensors import abstract_decoder, dotted


def stored_bytes(model: str | Path, dtype="bfloat16") -> int | None:
    """The bytes of a model's weights as ``quantization_config`` says that they are stored.

    None for a model without ``quantization_config``, for a method without an entry in ``SIZES``,
    and for a GGUF file, whose weights are unpacked.

    Args:
      model: a config.json, a directory with one, or an embedded name.
      dtype: the type of weights that are not packed.

    Raises CheckpointError and ConfigError as ``read_shape`` and ``packed.weights.read_method`` do.
    """
    path = config_file(model)
    settings = None if is_gguf(path) else read_json(path).get("quantization_config")
    if settings is None:
        return None
    method, options = read_method(settings, str(path))
    if method not in SIZES:
        return None
    packed = partial(SIZES[method], options)
    skipped = settings.get("modules_to_not_convert") or ()
    size = jnp.dtype(dtype).itemsize
    total = 0
    for name, (shape, is_matrix) in _tensors(read_shape(model)).items():
        if is_matrix and not any(part in name for part in skipped):
            total += math.prod(shape[:-2]) * packed(*shape[-2:])
        else:
            total += math.prod(shape) * size
    return total


def _tensors(config: ModelConfig) -> Mapping[str, tuple[tuple[int, ...], bool]]:
    """The shape of each tensor of a checkpoint, and whether a method packs it.

    Experts are one tensor [X, out, in].
    """
    shapes: dict[str, tuple[tuple[int, ...], bool]] = {}
    for path, param in nnx.to_flat_state(nnx.state(abstract_decoder(config))):
        row_blocks = blocks(dotted(path), param.shape[0], NAMES[config.family], config)
        is_matrix = is_quantisable(param) and param.axes[0] not in ("table", "vocab")
        for name, shape in least_shapes(row_blocks, param.shape[1:]).items():
            shapes[name] = max(shape, shapes.get(name, ((), False))[0]), is_matrix
    return shapes


def _gptq(options: dict, outputs: int, inputs: int) -> int:
    """Numbers and zero points of ``bits``, scales float16, and the group of each input int32."""
    return _words(options["bits"], options["group_size"], outputs, inputs) + 4 * inputs


def _awq(options: dict, outputs: int, inputs: int) -> int:
    """As GPTQ, without the groups of the inputs."""
    return _words(options["bits"], options["group_size"], outputs, inputs)


def _words(bits: int, size: int, outputs: int, inputs: int) -> int:
    groups = 1 if size == -1 else -(-inputs // size)
    return outputs * (inputs + groups) * bits // 8 + 2 * outputs * groups


def _fp8(options: dict, outputs: int, inputs: int) -> int:
    """A byte for each number, and a float32 scale for each block; without blocks one scale."""
    high, wide = options["weight_block_size"] or (outputs, inputs)
    return outputs * inputs + 4 * -(-outputs // high) * -(-inputs // wide)


SIZES: dict[str, Callable[[dict, int, int], int]] = {"gptq": _gptq, "awq": _awq, "fp8": _fp8}
"""For each method the bytes of a packed weight [out, in] with its scales."""
