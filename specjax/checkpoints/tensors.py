"""Hugging Face checkpoints to modules and back, read slice by slice, without torch."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..errors import CheckpointError
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..parallel import sharding
from .config import read_config, to_hf
from .families import NAMES, Block, blocks, ignored, without_heads
from .torch_files import open_torch

FILES = (
    "model.safetensors", "pytorch_model.bin", "medusa_lm_head.safetensors", "medusa_lm_head.pt", "hydra_lm_head.safetensors", "hydra_lm_head.pt",
)  # fmt: skip
"""Where weights may lie, in this order; the first two may be split over several files that an index names."""

MadeOf = Callable[[str, int], list[Block]]
"""From the path of a parameter and the number of its rows to the blocks that it is made of."""

_LISTED = 12
"""How many bad tensors an error names before it counts the rest."""

_TYPES = {"F64", "F32", "F16", "BF16", "I64", "I32"}
"""Types that are read as they stand; others are quantised weights, which mean nothing without their scales."""


def abstract_decoder(config: ModelConfig, dtype=None) -> Decoder:
    """A Decoder that holds shapes instead of arrays."""
    return nnx.eval_shape(lambda: Decoder(config, jax.random.key(0), dtype))


def load_model(directory: str | Path, dtype=None, mesh: jax.sharding.Mesh | None = None) -> Decoder:
    """The model of a Hugging Face directory, in ``dtype`` (by default its own), split over ``mesh`` if one is given.

    Each device's part is read from the files by itself; nothing is ever held twice. Raises ConfigError for a model that is not
    supported and CheckpointError that lists every missing, unexpected and wrongly shaped tensor.
    """
    directory = Path(directory)
    config = read_config(directory)
    with ExitStack() as stack:
        tensors = open_tensors(directory, stack)
        tensors = {name: tensors[name] for name in without_heads(tensors) if not ignored(name, config)}
        made_of = partial(blocks, names=NAMES[config.family], config=config)
        return read_module(abstract_decoder(config, dtype), tensors, made_of, directory, mesh)


def save_model(model: Decoder, directory: str | Path) -> None:
    """Writes ``config.json`` and ``model.safetensors`` with Hugging Face names, from which ``load_model`` reads the same bits."""
    config = model.config.replace(dtype=str(model.embed[...].dtype))
    tensors = tensors_of(model, partial(blocks, names=NAMES[config.family], config=config))
    write_checkpoint(directory, tensors, to_hf(config))


def read_module(module: nnx.Module, tensors: dict, made_of: MadeOf, where, mesh: jax.sharding.Mesh | None = None) -> nnx.Module:
    """The module with its parameters read from a checkpoint, split over ``mesh`` if one is given.

    Args:
      module: holds shapes instead of arrays.
      tensors: those of the checkpoint that belong to it, see ``open_tensors``. A parameter that is made of none is zeros.
      where: the checkpoint's directory, for messages.

    Raises CheckpointError that lists every missing, unexpected and wrongly shaped tensor.
    """
    graph, abstract = nnx.split(module)
    params = nnx.to_flat_state(abstract)
    pieces = {path: made_of(_dotted(path), param.shape[0]) for path, param in params}
    _check(tensors, {path: (param.shape, pieces[path]) for path, param in params}, where)
    loaded = [(path, param.replace(_read(param, tensors, pieces[path], mesh))) for path, param in params]
    return nnx.merge(graph, nnx.from_flat_state(loaded))


def tensors_of(module: nnx.Module, made_of: MadeOf) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint, from which ``read_module`` reads the same bits."""
    out: dict[str, list] = {}
    for path, param in nnx.to_flat_state(nnx.state(module)):
        value, row = np.asarray(param[...]), 0
        for name, start, stop in made_of(_dotted(path), param.shape[0]):
            out.setdefault(name, []).append(value[row : row + stop - start])
            row += stop - start
    return {name: np.concatenate(parts) for name, parts in out.items()}


def write_checkpoint(directory: str | Path, tensors: dict[str, np.ndarray], raw: dict, file: str = FILES[0]) -> None:
    """Writes the tensors, and ``raw`` as ``config.json``."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / file, metadata={"format": "pt"})
    (directory / file).chmod(0o644)  # safetensors writes for the owner alone
    (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n")


def _dotted(path: tuple) -> str:
    return ".".join(map(str, path))


def open_tensors(directory: Path, stack: ExitStack) -> dict:
    """Tensor names to what is read by slices, has ``get_shape`` and ``get_dtype``; of safetensors or torch files, see ``heads.unpickle``.

    Raises CheckpointError where files are missing or damaged.
    """
    tensors = {}
    for file in _files(directory):
        try:
            if file.suffix == ".safetensors":
                handle = stack.enter_context(safe_open(file, framework="numpy"))
                tensors |= {name: handle.get_slice(name) for name in handle.keys()}
            else:
                tensors |= open_torch(file)
        except FileNotFoundError:
            raise CheckpointError(f"{directory}: {file.name} is missing; name a directory with a whole checkpoint") from None
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: truncated or corrupt ({error}); download it again") from None
    return tensors


def _files(directory: Path) -> list[Path]:
    for name in FILES:
        index = directory / f"{name}.index.json"
        if index.exists():
            try:
                return [directory / file for file in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
            except (ValueError, KeyError, AttributeError, TypeError):
                raise CheckpointError(f"{index}: not an index of weights; download it again") from None
        if (directory / name).exists():
            return [directory / name]
    return [directory / FILES[0]]


def _check(tensors: dict, params: dict, where) -> None:
    """Raises one CheckpointError that names all tensors that are missing, unexpected, of the wrong shape or quantised."""
    wanted = {}
    for shape, made_of in params.values():
        for name, _, stop in made_of:
            wanted[name] = (max(stop, wanted.get(name, (0,))[0]), *shape[1:])
    found = {name: tuple(tensor.get_shape()) for name, tensor in tensors.items()}
    both = sorted(wanted.keys() & found.keys())
    faults = [f"{name} is missing" for name in sorted(wanted.keys() - found.keys())]
    faults += [f"{name} is unexpected" for name in sorted(found.keys() - wanted.keys())]
    faults += [f"{name} has shape {found[name]}, not {wanted[name]}" for name in both if found[name] != wanted[name]]
    faults += [f"{name} is of type {tensors[name].get_dtype()}" for name in both if tensors[name].get_dtype() not in _TYPES]
    if faults:
        more = f"; and {len(faults) - _LISTED} more" if len(faults) > _LISTED else ""
        raise CheckpointError(f"{where}: the weights do not fit config.json: {'; '.join(faults[:_LISTED])}{more}")


def _read(param: nnx.Param, tensors: dict, made_of: list, mesh) -> jax.Array:
    """The parameter as a (possibly sharded) array: every device asks for its rows and columns."""

    def part(index) -> np.ndarray:
        rows, rest = index[0], tuple(index[1:])
        first, last, _ = rows.indices(param.shape[0])
        pieces, at = [], 0
        for name, start, stop in made_of:
            low, high = max(first - at, 0), min(last - at, stop - start)
            if low < high:
                pieces.append(tensors[name][(slice(start + low, start + high), *rest)])
            at += stop - start
        return np.concatenate(pieces).astype(param.dtype) if made_of else np.zeros((last - first, *param.shape[1:]), param.dtype)

    return jax.make_array_from_callback(param.shape, sharding(param, mesh), part)
