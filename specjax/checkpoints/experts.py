"""The tensors of experts in checkpoints, seen as stacks with one matrix for each expert.

Families store experts in four forms: a tensor for each matrix of each expert (Mixtral, Qwen), one
tensor with the gates and one with the outputs of all experts (newer Qwen), or the same transposed,
with the rows of gate and up projections alternating, and perhaps packed as MXFP4 (gpt-oss), or one
behind the other (Llama 4). The tensors of GGUF files are stacks already. A stack looks like a
safetensors slice [X, rows, columns], and reads only the rows and columns of its index.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import CheckpointError
from ..models.config import ModelConfig
from ..models.feed_forwards import ExpertsConfig
from .families import FAMILIES
from .packed.mxfp4 import Packed

LAYER = "model.layers.N"
"""The prefix of the tensors of a language model's layer. N stands for the number of the layer."""


def stack_name(layer: str, matrix: str) -> str:
    """The name of a layer's stack of "gate", "up" or "down" matrices, or of their biases.

    ``layer``: the prefix of the layer's tensors.
    """
    return f"{layer}.mlp.experts.{matrix}"


class Stack:
    """The matrices of one name of all experts."""

    def __init__(self, matrices: Sequence[Any]):
        self._matrices = matrices

    def get_shape(self) -> list[int]:
        return [len(self._matrices), *self._matrices[0].get_shape()]

    def get_dtype(self) -> str:
        return self._matrices[0].get_dtype()

    def __getitem__(self, index: tuple) -> np.ndarray:
        experts, *rest = index
        return np.stack([matrix[tuple(rest)] for matrix in self._matrices[experts]])


class Rows:
    """Every ``step``-th row of each expert from ``first`` on, of a tensor [X, rows, ...].

    ``transposed``: whether the tensor is [X, columns, rows].
    """

    def __init__(self, tensor, first: int, count: int, step: int = 1, transposed: bool = False):
        self._tensor = tensor
        self._first = first
        self._count = count
        self._step = step
        self._transposed = transposed

    def get_shape(self) -> list[int]:
        experts, *rest = self._tensor.get_shape()
        return [experts, self._count, *(rest[:-1] if self._transposed else rest[1:])]

    def get_dtype(self) -> str:
        return self._tensor.get_dtype()

    def __getitem__(self, index: tuple) -> np.ndarray:
        experts, rows, *columns = index
        first, last, _ = rows.indices(self._count)
        stored = slice(self._first + first * self._step, self._first + (last - 1) * self._step + 1)
        places = (*columns, stored) if self._transposed else (stored, *columns)

        def read(i: int) -> np.ndarray:  # one expert at a time, because packed experts become larger
            rows = self._tensor[(slice(i, i + 1), *places)][0]
            return (rows.T if self._transposed else rows)[:: self._step]

        return np.stack([read(i) for i in range(*experts.indices(self.get_shape()[0]))])


def stack_experts(tensors: Mapping[str, Any], config: ModelConfig, where, layers: str = LAYER) -> dict[str, Any]:
    """The tensors of a checkpoint, with a stack for each matrix in place of the tensors of experts.

    ``layers`` says how the names of a layer's tensors begin, see ``LAYER``.

    Raises CheckpointError for experts that are missing or differ in shape or type.
    """
    stacked = dict(tensors)

    def take(name: str) -> Any:
        if name not in stacked:
            raise CheckpointError(f"{where}: {name} is missing; name a directory with a whole checkpoint")
        return stacked.pop(name)

    for number, of_layer in enumerate(config.layers):
        if not isinstance(of_layer.mlp, ExpertsConfig):
            continue
        layer = layers.replace("N", str(number))
        if stack_name(layer, "gate") in stacked:
            continue  # a GGUF file has stacks
        prefix = f"{layer}.mlp.experts"
        stacks = {}
        if config.family == "gpt_oss":
            stacks = _alternating(take, prefix)
        elif f"{layer}.feed_forward.experts.gate_up_proj" in stacked:
            stacks = _one_behind_the_other(take, f"{layer}.feed_forward.experts")
        elif f"{prefix}.gate_up_proj" in stacked:
            joint = take(f"{prefix}.gate_up_proj")
            down = take(f"{prefix}.down_proj")
            half = joint.get_shape()[1] // 2
            stacks = {"gate": Rows(joint, 0, half), "up": Rows(joint, half, half), "down": down}
        else:
            module, names = FAMILIES[config.family].experts
            of_expert = [f"{layer}.{module}.experts.{i}" for i in range(of_layer.mlp.count)]
            for matrix, name in names.items():
                stacks[matrix] = _stack(
                    {full: take(full) for full in (f"{one}.{name}.weight" for one in of_expert)}, where
                )
        stacked |= {stack_name(layer, matrix): stack for matrix, stack in stacks.items()}
    return stacked


def unstack_experts(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, layers: str = LAYER
) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint as transformers saves them, from tensors with stacks.

    ``layers`` is as in ``stack_experts``.
    """
    unstacked = dict(tensors)
    for number, of_layer in enumerate(config.layers):
        if isinstance(of_layer.mlp, ExpertsConfig):
            layer = layers.replace("N", str(number))
            stacks = {name: unstacked.pop(stack_name(layer, name)) for name in stacked_matrices(config)}
            unstacked |= unstack_layer(stacks, config, layer)
    return unstacked


def stacked_matrices(config: ModelConfig) -> tuple[str, ...]:
    """The names of a layer's stacks, see ``stack_name``."""
    matrices = ("gate", "up", "down")
    return (*matrices, *(f"{name}_bias" for name in matrices)) if config.family == "gpt_oss" else matrices


def unstack_layer(stacks: Mapping[str, np.ndarray], config: ModelConfig, layer: str) -> dict[str, np.ndarray]:
    """The tensors of one layer's experts as transformers saves them, from its stacks.

    ``layer``: the prefix of the layer's tensors.
    """
    if config.family == "llama4_text":
        prefix = f"{layer}.feed_forward.experts"
        joint = np.concatenate([stacks["gate"], stacks["up"]], 1)
        joint, down = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (joint, stacks["down"]))
        return {f"{prefix}.gate_up_proj": joint, f"{prefix}.down_proj": down}
    if config.family != "gpt_oss":
        module, names = FAMILIES[config.family].experts
        prefix = f"{layer}.{module}.experts"
        return {f"{prefix}.{i}.{name}.weight": one for key, name in names.items() for i, one in enumerate(stacks[key])}
    prefix = f"{layer}.mlp.experts"
    return {
        f"{prefix}.gate_up_proj": np.ascontiguousarray(_alternate(stacks).swapaxes(1, 2)),
        f"{prefix}.down_proj": np.ascontiguousarray(stacks["down"].swapaxes(1, 2)),
        f"{prefix}.gate_up_proj_bias": _alternate(stacks, "_bias"),
        f"{prefix}.down_proj_bias": stacks["down_bias"],
    }


def _alternate(stacks: Mapping[str, np.ndarray], end: str = "") -> np.ndarray:
    """One array [X, rows, ...] in which the rows of "gate" and of "up" alternate."""
    gate = stacks[f"gate{end}"]
    return np.stack([gate, stacks[f"up{end}"]], 2).reshape(len(gate), -1, *gate.shape[2:])


def _alternating(take, prefix: str) -> dict[str, Any]:
    """The stacks of gpt-oss, whose gate and up projections alternate.

    Only MXFP4 has them as [X, rows, columns].
    """
    joint = take(f"{prefix}.gate_up_proj")
    down = take(f"{prefix}.down_proj")
    packed = isinstance(joint, Packed)
    biases = take(f"{prefix}.gate_up_proj_bias")
    down_bias = take(f"{prefix}.down_proj_bias")
    units = biases.get_shape()[1] // 2
    width = down_bias.get_shape()[1]
    stacks = {name: Rows(joint, i, units, 2, transposed=not packed) for i, name in enumerate(("gate", "up"))}
    stacks |= {f"{name}_bias": Rows(biases, i, units, 2) for i, name in enumerate(("gate", "up"))}
    return stacks | {"down": Rows(down, 0, width, transposed=not packed), "down_bias": down_bias}


def _one_behind_the_other(take, prefix: str) -> dict[str, Any]:
    """The stacks of Llama 4, whose tensors are [X, columns, rows]."""
    joint = take(f"{prefix}.gate_up_proj")
    down = take(f"{prefix}.down_proj")
    units, width = down.get_shape()[1:]
    stacks = {name: Rows(joint, i * units, units, transposed=True) for i, name in enumerate(("gate", "up"))}
    return stacks | {"down": Rows(down, 0, width, transposed=True)}


def _stack(matrices: dict[str, Any], where) -> Stack:
    """The stack of matrices of one shape and type; their names are for messages."""
    first, *others = matrices

    def describe(matrix):
        return tuple(matrix.get_shape()), matrix.get_dtype()

    for name in others:
        if describe(matrices[name]) != describe(matrices[first]):
            raise CheckpointError(f"{where}: {name} differs from {first} in shape or type; the checkpoint is damaged")
    return Stack(list(matrices.values()))
