"""Checks that the tensors of a checkpoint fit the parameters of a module."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..errors import CheckpointError
from .blocks import Block

_NAMED_FAULTS = 12
"""The number of faults that an error names. It only counts the others."""


_FLOATS = ("float64", "float32", "float16", "bfloat16")

_INTEGERS = ("int64", "int32")


def check_tensors(
    tensors: Mapping[str, tuple[tuple, str]], params: list[tuple[Any, list[Block]]], where, source: str = "config.json"
) -> None:
    """Checks the tensors of a module by their shapes and types.

    Args:
      tensors: shape and dtype of each tensor.
      params: the abstract parameters, each with its blocks.
      where: the place of the tensors, for messages.
      source: the origin of the expected shapes, for messages.

    Raises one CheckpointError, which names all tensors that are missing, are unexpected, or have a
    wrong shape or type.
    """
    shapes = {}
    types = {}
    for param, blocks in params:
        shapes |= least_shapes(blocks, param.shape[1:])
        kinds = _FLOATS if jnp.issubdtype(param.dtype, jnp.floating) else _INTEGERS
        types |= {block.name: kinds for block in blocks}
    both = sorted(shapes.keys() & tensors.keys())
    faults = [f"{name} is missing" for name in sorted(shapes.keys() - tensors.keys())]
    faults += [f"{name} is unexpected" for name in sorted(tensors.keys() - shapes.keys())]
    faults += [
        f"{name} has shape {tensors[name][0]}, not {shapes[name]}" for name in both if tensors[name][0] != shapes[name]
    ]
    faults += [
        f"{name} is of type {tensors[name][1]}, not one of {', '.join(types[name])}"
        for name in both
        if tensors[name][1] not in types[name]
    ]
    for _, blocks in params:
        parts = {name: tensors[name][1] for name, *_ in blocks if name in tensors}
        if len(set(parts.values())) > 1:
            faults.append("; ".join(f"{name} is of type {kind}" for name, kind in parts.items()) + ": they must agree")
    if faults:
        more = f"; and {len(faults) - _NAMED_FAULTS} more" if len(faults) > _NAMED_FAULTS else ""
        raise CheckpointError(f"{where}: the weights do not fit {source}: {'; '.join(faults[:_NAMED_FAULTS])}{more}")


def least_shapes(blocks: list[Block], rest: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that have these blocks; ``rest`` is the shape of a row."""
    shapes: dict[str, tuple[int, ...]] = {}
    for block in blocks:
        shapes[block.name] = max(block.shape(rest), shapes.get(block.name, ()))
    return shapes


def cast(values: np.ndarray, dtype, name: str, where) -> np.ndarray:
    """The values in another type. Raises CheckpointError for numbers that do not fit into it."""
    if np.issubdtype(values.dtype, np.integer):
        bounds = np.iinfo(dtype)
        if values.size and not bounds.min <= values.min() <= values.max() <= bounds.max:
            raise CheckpointError(f"{where}: {name} holds numbers beyond {np.dtype(dtype)}; the tensor is damaged")
    with np.errstate(over="ignore"):
        narrow = values.astype(dtype)
    if dtype == np.float16 and np.isinf(narrow).any() and not np.isinf(values).any():
        raise CheckpointError(f"{where}: {name} holds numbers beyond float16; load the model with dtype='float32'")
    return narrow
