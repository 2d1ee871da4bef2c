"""Hugging Face checkpoints to models and back: safetensors, read slice by slice, without torch."""

import json
from contextlib import ExitStack
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..config import ModelConfig, read_config, to_hf
from ..errors import CheckpointError
from ..parallel import sharding
from .decoder import Decoder
from .families import blocks, ignored

_LISTED = 12
"""How many bad tensors an error names before it counts the rest."""


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
    model = abstract_decoder(config, dtype)
    graph, abstract = nnx.split(model)
    with ExitStack() as stack:
        tensors = _open(directory, stack)
        params = nnx.to_flat_state(abstract)
        made_of = {path: blocks(_dotted(path), param.shape[0], config) for path, param in params}
        _check(tensors, {path: (param.shape, made_of[path]) for path, param in params}, config, directory)
        loaded = [(path, param.replace(_read(param, tensors, made_of[path], mesh))) for path, param in params]
    return nnx.merge(graph, nnx.from_flat_state(loaded))


def save_model(model: Decoder, directory: str | Path) -> None:
    """Writes ``config.json`` and ``model.safetensors`` with Hugging Face names, from which ``load_model`` reads the same bits."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = model.config.replace(dtype=str(model.embed[...].dtype))
    out: dict[str, list] = {}
    for path, param in nnx.to_flat_state(nnx.state(model)):
        value, row = np.asarray(param[...]), 0
        for name, start, stop in blocks(_dotted(path), param.shape[0], config):
            out.setdefault(name, []).append(value[row : row + stop - start])
            row += stop - start
    file = directory / "model.safetensors"
    save_file({name: np.concatenate(parts) for name, parts in out.items()}, file, metadata={"format": "pt"})
    file.chmod(0o644)  # safetensors writes for the owner alone
    (directory / "config.json").write_text(json.dumps(to_hf(config), indent=2) + "\n")


def _dotted(path: tuple) -> str:
    return ".".join(map(str, path))


def _open(directory: Path, stack: ExitStack) -> dict:
    """Tensor names to the open files that hold them."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        try:
            files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError):
            raise CheckpointError(f"{index}: not a safetensors index; download it again") from None
    else:
        files = ["model.safetensors"]
    tensors = {}
    for name in files:
        try:
            handle = stack.enter_context(safe_open(directory / name, framework="numpy"))
        except FileNotFoundError:
            raise CheckpointError(f"{directory}: {name} is missing; specjax reads safetensors checkpoints") from None
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{directory / name}: truncated or corrupt ({error}); download it again") from None
        tensors |= {key: handle for key in handle.keys()}
    return tensors


def _check(tensors: dict, params: dict, config: ModelConfig, directory: Path) -> None:
    """Raises one CheckpointError that names all tensors that are missing, unexpected or of the wrong shape."""
    wanted = {}
    for shape, made_of in params.values():
        for name, _, stop in made_of:
            wanted[name] = (max(stop, wanted.get(name, (0,))[0]), *shape[1:])
    found = {name: tuple(handle.get_slice(name).get_shape()) for name, handle in tensors.items() if not ignored(name, config)}
    faults = [f"{name} is missing" for name in sorted(wanted.keys() - found.keys())]
    faults += [f"{name} is unexpected" for name in sorted(found.keys() - wanted.keys())]
    faults += [
        f"{name} has shape {found[name]}, not {wanted[name]}"
        for name in sorted(wanted.keys() & found.keys())
        if found[name] != wanted[name]
    ]
    if faults:
        more = f"; and {len(faults) - _LISTED} more" if len(faults) > _LISTED else ""
        raise CheckpointError(f"{directory}: the weights do not fit config.json: {'; '.join(faults[:_LISTED])}{more}")


def _read(param: nnx.Param, tensors: dict, made_of: list, mesh) -> jax.Array:
    """The parameter as a (possibly sharded) array: every device asks for its rows and columns."""

    def part(index) -> np.ndarray:
        rows, rest = index[0], tuple(index[1:])
        first, last, _ = rows.indices(param.shape[0])
        pieces, at = [], 0
        for name, start, stop in made_of:
            low, high = max(first - at, 0), min(last - at, stop - start)
            if low < high:
                pieces.append(tensors[name].get_slice(name)[(slice(start + low, start + high), *rest)])
            at += stop - start
        return np.concatenate(pieces).astype(param.dtype)

    return jax.make_array_from_callback(param.shape, sharding(param, mesh), part)
