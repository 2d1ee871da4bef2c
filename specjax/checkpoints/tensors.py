"""Reads modules from the tensors of checkpoints, slice by slice without torch, and writes them."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..errors import CheckpointError
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..parallel import RULES, Rules, sharding
from .blocks import Block, blocks
from .config import check_dtype, read_config, to_hf
from .experts import stack_experts, unstack_experts
from .families import NAMES, names_in, tensors_in
from .files import WEIGHTS, check_file, weight_files
from .torch_files import open_torch

M = TypeVar("M", bound=nnx.Module)

MadeOf = Callable[[str, int], list[Block]]
"""Maps the path of a parameter and the number of its rows to the blocks of these rows."""

_NAMED_FAULTS = 12
"""The number of faults that an error names. It only counts the others."""

_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32"}
"""The types of tensors that are read. Other types belong to quantised weights."""

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_INTEGERS = ("int64", "int32")


def abstract_decoder(config: ModelConfig, dtype=None) -> Decoder:
    """A Decoder that holds shapes instead of arrays."""
    return nnx.eval_shape(lambda: Decoder(config, jax.random.key(0), dtype))


def load_model(directory: str | Path, dtype=None, mesh: Mesh | None = None, rules: Rules = RULES) -> Decoder:
    """The model in a Hugging Face directory.

    Args:
      dtype: one of ``config.DTYPES``; by default the dtype in the configuration.
      mesh: devices to split the weights over. Each device reads only its own part.
      rules: the mesh axis of each logical axis, see ``parallel.RULES``.

    Raises ConfigError for a model that is not supported, RequestError for another dtype or a mesh
    that does not divide the model, and CheckpointError, which lists every tensor that is missing,
    is unexpected, or has a wrong shape or type.
    """
    dtype = None if dtype is None else check_dtype(dtype)
    directory = Path(directory)
    config = split_config(read_config(directory), mesh, rules)
    with ExitStack() as stack:
        found = open_tensors(directory, stack)
        tensors = {name: found[name] for name in tensors_in(config, found)}
        tensors = stack_experts(tensors, config, directory)
        made_of = partial(blocks, names=names_in(config, tensors), config=config)
        return read_module(abstract_decoder(config, dtype), tensors, made_of, directory, mesh, rules)


def save_model(model: Decoder, directory: str | Path) -> None:
    """Writes ``config.json`` and ``model.safetensors``. ``load_model`` reads the same bits.

    Raises CheckpointError for a directory that cannot be written.
    """
    config = model.config.replace(dtype=str(model.embed[...].dtype))
    tensors = tensors_of(model, partial(blocks, names=NAMES[config.family], config=config))
    write_checkpoint(directory, unstack_experts(tensors, config), to_hf(config))


def split_config(config: ModelConfig, mesh: Mesh | None, rules: Rules = RULES) -> ModelConfig:
    """The configuration of a model whose heads are split over ``mesh`` by ``rules``.

    Raises RequestError for a mesh that does not divide the model, see ``ModelConfig.split_over``.
    """
    axis = rules.get("heads")
    return config if mesh is None or axis is None else config.split_over(mesh.shape[axis])


def read_module(module: M, tensors: dict, made_of: MadeOf, where, mesh: Mesh | None = None, rules: Rules = RULES) -> M:
    """The module with its parameters read from a checkpoint.

    Args:
      module: holds shapes instead of arrays.
      tensors: the module's tensors, see ``open_tensors``. A parameter without tensors becomes
        zeros.
      made_of: gives the blocks of each parameter.
      where: the checkpoint's directory, for messages.
      mesh, rules: the devices, and how they split the parameters, see ``parallel.sharding``.

    Raises CheckpointError, which lists every tensor that is missing, is unexpected, or has a wrong
    shape or type.
    """
    graph, abstract = nnx.split(module)
    params = nnx.to_flat_state(abstract)
    pieces = {path: made_of(dotted(path), param.shape[0]) for path, param in params}
    found = {name: (tuple(x.get_shape()), _TYPES.get(kind := str(x.get_dtype()), kind)) for name, x in tensors.items()}
    check_tensors(found, [(param, pieces[path]) for path, param in params], where)
    loaded = [
        (path, param.replace(_read(param, tensors, pieces[path], where, sharding(param, mesh, rules))))
        for path, param in params
    ]
    return nnx.merge(graph, nnx.from_flat_state(loaded))


def tensors_of(module: nnx.Module, made_of: MadeOf) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint from which ``read_module`` reads the same bits."""
    tensors: dict[str, np.ndarray] = {}
    for path, param in nnx.to_flat_state(nnx.state(module)):
        write_parameter(tensors, dotted(path), np.asarray(param[...]), made_of)
    return tensors


def parameter_tensors(path: str, value: np.ndarray, made_of: MadeOf) -> dict[str, np.ndarray]:
    """The tensors of the parameter at ``path``, which shares them with no other parameter."""
    tensors: dict[str, np.ndarray] = {}
    write_parameter(tensors, path, value, made_of)
    return tensors


def write_parameter(tensors: dict[str, np.ndarray], path: str, value: np.ndarray, made_of: MadeOf) -> None:
    """Writes the parameter at ``path`` into ``tensors``, to which it adds those that are missing."""
    found, row = made_of(path, len(value)), 0
    for name, shape in _shapes(found, value.shape[1:]).items():
        if name not in tensors:
            tensors[name] = np.empty(shape, value.dtype)
    for block in found:
        block.write(tensors[block.name], value[row : row + block.size])  # copies of a head replace it
        row += block.size


def write_checkpoint(directory: str | Path, tensors: dict[str, np.ndarray], raw: dict, file: str = WEIGHTS[0]) -> None:
    """Writes the tensors into ``file`` and ``raw`` into ``config.json``.

    Raises CheckpointError for a directory that cannot be written.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        save_file(tensors, directory / file, metadata={"format": "pt"})
        (directory / file).chmod(0o644)  # safetensors lets only the owner read the file
        (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{directory}: cannot be written ({error}); name another directory") from None


def dotted(path: tuple) -> str:
    """The path of a parameter in the form of the tables of names."""
    return ".".join(map(str, path))


def open_tensors(directory: Path, stack: ExitStack) -> dict[str, Any]:
    """The tensors of a checkpoint by name. Indexing a tensor reads a part of it.

    A tensor has ``get_shape`` and ``get_dtype``, as in safetensors.

    Args:
      stack: closes the files.

    Raises CheckpointError for files that are missing, damaged, not regular or outside the
    directory.
    """
    tensors = {}
    for file in weight_files(directory):
        try:
            check_file(file)
            if file.suffix == ".safetensors":
                handle = stack.enter_context(safe_open(file, framework="numpy"))
                tensors |= {name: handle.get_slice(name) for name in handle.keys()}
            else:
                tensors |= open_torch(file)
        except FileNotFoundError:
            raise CheckpointError(
                f"{directory}: {file.name} is missing; name a directory with a whole checkpoint"
            ) from None
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: truncated or corrupt ({error}); download it again") from None
    return tensors


def check_tensors(
    found: Mapping[str, tuple[tuple, str]], params: list[tuple[Any, list[Block]]], where, source: str = "config.json"
) -> None:
    """Checks the tensors of a module by their shapes and types.

    Args:
      found: shape and dtype of each tensor.
      params: the abstract parameters, each with its blocks.
      where: the place of the tensors, for messages.
      source: the origin of the wanted shapes, for messages.

    Raises one CheckpointError, which names all tensors that are missing, are unexpected, or have a
    wrong shape or type.
    """
    shapes, types = {}, {}
    for param, made_of in params:
        shapes |= _shapes(made_of, param.shape[1:])
        kinds = _FLOATS if jnp.issubdtype(param.dtype, jnp.floating) else _INTEGERS
        types |= {block.name: kinds for block in made_of}
    both = sorted(shapes.keys() & found.keys())
    faults = [f"{name} is missing" for name in sorted(shapes.keys() - found.keys())]
    faults += [f"{name} is unexpected" for name in sorted(found.keys() - shapes.keys())]
    faults += [
        f"{name} has shape {found[name][0]}, not {shapes[name]}" for name in both if found[name][0] != shapes[name]
    ]
    faults += [
        f"{name} is of type {found[name][1]}, not one of {', '.join(types[name])}"
        for name in both
        if found[name][1] not in types[name]
    ]
    for _, made_of in params:
        parts = {name: found[name][1] for name, *_ in made_of if name in found}
        if len(set(parts.values())) > 1:
            faults.append("; ".join(f"{name} is of type {kind}" for name, kind in parts.items()) + ": they must agree")
    if faults:
        more = f"; and {len(faults) - _NAMED_FAULTS} more" if len(faults) > _NAMED_FAULTS else ""
        raise CheckpointError(f"{where}: the weights do not fit {source}: {'; '.join(faults[:_NAMED_FAULTS])}{more}")


def _shapes(made_of: list[Block], rest: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that have these blocks; ``rest`` is the shape of a row."""
    shapes: dict[str, tuple[int, ...]] = {}
    for block in made_of:
        shapes[block.name] = max(block.shape(rest), shapes.get(block.name, ()))
    return shapes


def _read(param: nnx.Param, tensors: dict, made_of: list[Block], where, placed: jax.sharding.Sharding) -> jax.Array:
    """The parameter as an array. Each device reads its own rows and columns."""

    def part(index) -> np.ndarray:
        rows, rest = index[0], tuple(index[1:])
        first, last, _ = rows.indices(param.shape[0])
        pieces, at = [], 0
        for block in made_of:
            low, high = max(first - at, 0), min(last - at, block.size)
            if low < high:
                pieces.append(block.part(low, high).read(tensors[block.name], rest))
            at += block.size
        if not pieces:
            return np.zeros((last - first, *param.shape[1:]), param.dtype)
        return _cast(np.concatenate(pieces), param.dtype, made_of[0].name, where)

    return jax.make_array_from_callback(param.shape, placed, part)


def _cast(values: np.ndarray, dtype, name: str, where) -> np.ndarray:
    """The values in another type.

    Raises CheckpointError for whole numbers that do not fit into it.
    """
    if np.issubdtype(values.dtype, np.integer):
        bounds = np.iinfo(dtype)
        if values.size and not bounds.min <= values.min() <= values.max() <= bounds.max:
            raise CheckpointError(f"{where}: {name} holds numbers beyond {np.dtype(dtype)}; the tensor is damaged")
    return values.astype(dtype)
