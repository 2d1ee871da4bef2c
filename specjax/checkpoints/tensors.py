"""Reads modules from the tensors of checkpoints, slice by slice without torch, and writes them."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..core.unused_memory import return_unused
from ..errors import CheckpointError, ConfigError, SpecjaxWarning
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.offload import to_host
from ..models.quantised_weights import Quantised, scheme_of
from ..models.rounding import is_quantisable
from .adapters import ADAPTER_WEIGHTS, merge_adapter
from .blocks import Block, blocks, name_of
from .config import config_place, read_config, read_raw, to_hf
from .experts import LAYER, stack_experts, unstack_experts
from .families import FAMILIES, NAMES, name_in, names_in, tensors_in
from .files import WEIGHTS, check_file, is_gguf, weight_files
from .gguf.names import open_tensors_of
from .gguf.reader import open_gguf
from .packed import own
from .packed.float8 import open_float8
from .packed.parameters import Source, read_parameter
from .packed.weights import unpack_tensors, without_zero_biases
from .placement import Placement
from .shape_check import check_tensors, least_shapes
from .torch_files import open_torch

M = TypeVar("M", bound=nnx.Module)

BlocksOf = Callable[[str, int], list[Block]]
"""Maps the path of a parameter and the number of its rows to the blocks of these rows."""

_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32"}
"""The types of tensors that are read. Other types belong to quantised weights."""

_ROWS = 4096
"""The rows that are compared at once."""


def abstract_decoder(config: ModelConfig, dtype=None) -> Decoder:
    """A Decoder that holds shapes instead of arrays."""
    return nnx.eval_shape(lambda: Decoder(config, jax.random.key(0), dtype))


def load_model(directory: str | Path, placement: Placement | None = None, adapter: Path | None = None) -> Decoder:
    """The model in a Hugging Face directory or a GGUF file.

    Args:
      placement: the devices and the form of the weights; by default those of ``Placement()``.
      adapter: the directory of a LoRA adapter to merge, see ``adapters``.

    Raises ConfigError for a model that is not supported, and RequestError for a mesh that does not
    divide the model, and for an encoder-decoder with ``offload``. Raises CheckpointError, which
    lists every tensor that is missing, is unexpected, or has a wrong shape or type.
    """
    placement = placement or Placement()
    directory = Path(directory)
    config = placement.split(read_config(directory))
    placement = placement.for_device(config)
    if placement.offload:
        config.refuse_encoder("offload")
    with ExitStack() as stack:
        stored = open_tensors(directory, stack)
        where = config_place(directory)
        raw = read_raw(directory)
        if isinstance(raw.get("quantization"), dict):
            raise ConfigError(f"{where}: the weights are packed for MLX and not read; name the original checkpoint")
        stored = unpack_tensors(stored, raw.get("quantization_config"), str(where))
        config = untie_if_different(config, stored, where)
        tensors = {name: stored[name] for name in tensors_in(config, stored)}
        if adapter is not None:
            own = open_tensors(adapter, stack, ADAPTER_WEIGHTS)
            tensors, config = merge_adapter(tensors, own, adapter, config, directory)
            config = untie_if_different(config, tensors, where)
            tensors = {name: tensors[name] for name in tensors_in(config, tensors)}
        tensors = stack_experts(tensors, config, directory, name_in(LAYER, tensors))
        blocks_of = partial(blocks, names=names_in(config, tensors), config=config)
        model = abstract_decoder(config, placement.dtype)
        return read_module(model, tensors, blocks_of, directory, placement)


def save_model(model: Decoder, directory: str | Path) -> None:
    """Writes ``config.json`` and ``model.safetensors``. ``load_model`` reads the same bits.

    Raises CheckpointError for a directory that cannot be written, and RequestError for quantised
    weights that ``packed.own`` has no form for.
    """
    config = model.config.replace(dtype=str(model.embed[...].dtype))
    tensors = tensors_of(model, partial(blocks, names=NAMES[config.family], config=config))
    fixed = FAMILIES[config.family].fixed(config)
    tensors |= {name: np.array(number, config.dtype) for name, number in fixed.items()}
    scheme = scheme_of(model)
    if scheme is None:
        write_checkpoint(directory, unstack_experts(tensors, config), to_hf(config))
    else:
        write_checkpoint(directory, tensors, to_hf(config) | {"quantization_config": own.settings(scheme)})


def read_module(module: M, tensors: dict, blocks_of: BlocksOf, where, placement: Placement) -> M:
    """The module with its parameters read from a checkpoint.

    Args:
      module: holds shapes instead of arrays, of the dtype of the placement.
      tensors: the module's tensors, see ``open_tensors``. A parameter without tensors becomes
        zeros.
      blocks_of: gives the blocks of each parameter.
      where: the checkpoint's directory, for messages.
      placement: each matrix is quantised as soon as it is read, see
        ``models.rounding.quantise_parameter``. If layers go to the host's memory, at most
        one of their parameters is on the device at a time, to be quantised.

    Raises CheckpointError, which lists every tensor that is missing, is unexpected, or has a wrong
    shape or type.
    """
    graph, abstract = nnx.split(module)
    pieces = check_module(module, tensors, blocks_of, where)
    loaded = []
    return_unused()  # after the texts of configuration and tokenizer
    for path, param in nnx.to_flat_state(abstract):
        on_host = placement.offload and path[0] == "layers"
        value = read_parameter(Source(dotted(path), param, tensors, pieces[path], where), placement, on_host)
        loaded.append((path, param.replace(to_host(value) if on_host else value)))
        if isinstance(value, Quantised):
            jax.block_until_ready(value)  # until then, its numbers in full are in use
            return_unused()
    full = [(path, param) for path, param in loaded if is_quantisable(param) and not isinstance(param[...], Quantised)]
    unpacked = [dotted(path) for path, param in full if param.axes[0] not in ("table", "vocab")]
    if placement.keeps_numbers and unpacked:
        message = f"{where}: {len(unpacked)} matrices are not packed in four or eight bits, such as {unpacked[0]}"
        warnings.warn(f"{message}; they keep their dtype", SpecjaxWarning, stacklevel=2)
    return nnx.merge(graph, nnx.from_flat_state(loaded))


def check_module(
    module: nnx.Module, tensors: Mapping[str, Any], blocks_of: BlocksOf, where
) -> dict[tuple, list[Block]]:
    """The blocks of each parameter of a module, by its path.

    The arguments and the errors are those of ``read_module``.
    """
    params = nnx.to_flat_state(nnx.state(module))
    pieces = {path: blocks_of(dotted(path), param.shape[0]) for path, param in params}
    tensors = without_zero_biases(tensors, {block.name for row_blocks in pieces.values() for block in row_blocks})
    shapes = {name: (tuple(x.get_shape()), _TYPES.get(kind := str(x.get_dtype()), kind)) for name, x in tensors.items()}
    check_tensors(shapes, [(param, pieces[path]) for path, param in params], where)
    return pieces


def tensors_of(module: nnx.Module, blocks_of: BlocksOf) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint from which ``read_module`` reads the same bits.

    Raises RequestError for quantised parameters that ``packed.own`` has no form for.
    """
    tensors: dict[str, np.ndarray] = {}
    for path, param in nnx.to_flat_state(nnx.state(module)):
        value, name = param[...], dotted(path)
        if not isinstance(value, Quantised):
            write_parameter(tensors, name, np.asarray(value), blocks_of)
            continue
        for part, array in own.arrays_of(value, name, blocks_of(name, param.shape[0])).items():
            renamed = lambda path, rows, part=part: [
                block._replace(name=f"{block.name}.{part}") for block in blocks_of(path, rows)
            ]
            write_parameter(tensors, name, array, renamed)
    return tensors


def parameter_tensors(path: str, value: np.ndarray, blocks_of: BlocksOf) -> dict[str, np.ndarray]:
    """The tensors of the parameter at ``path``, which shares them with no other parameter."""
    tensors: dict[str, np.ndarray] = {}
    write_parameter(tensors, path, value, blocks_of)
    return tensors


def write_parameter(tensors: dict[str, np.ndarray], path: str, value: np.ndarray, blocks_of: BlocksOf) -> None:
    """Writes the parameter at ``path`` into ``tensors``, and adds tensors that are missing."""
    row_blocks = blocks_of(path, len(value))
    row = 0
    for name, shape in least_shapes(row_blocks, value.shape[1:]).items():
        if name not in tensors:
            tensors[name] = np.empty(shape, value.dtype)
    for block in row_blocks:
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


def open_tensors(directory: Path, stack: ExitStack, files: Sequence[str] = WEIGHTS) -> dict[str, Any]:
    """The tensors of a checkpoint by name. Indexing a tensor reads a part of it.

    A tensor has ``get_shape`` and ``get_dtype``, as in safetensors.

    Args:
      stack: closes the files.
      files: the names that a file with weights may have.

    Raises CheckpointError for files that are missing, damaged, not regular or outside the
    directory.
    """
    tensors = {}
    for file in weight_files(directory, files):
        try:
            check_file(file)
            if is_gguf(file):
                tensors |= open_tensors_of(open_gguf(file))
            elif file.suffix == ".safetensors":
                handle = stack.enter_context(safe_open(file, framework="numpy"))
                tensors |= {name: handle.get_slice(name) for name in handle.keys()} | open_float8(file)
            else:
                tensors |= open_torch(file)
        except FileNotFoundError:
            others = sorted(directory.glob(f"*{file.suffix}")) if file.name == WEIGHTS[0] else []
            rename = f", or rename {others[0].name} if it is the model" if others else ""
            kind = "an adapter" if file.name in ADAPTER_WEIGHTS else "a whole checkpoint"
            raise CheckpointError(
                f"{directory}: {file.name} is missing; name a directory with {kind}{rename}"
            ) from None
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: truncated or corrupt ({error}); download it again") from None
    return tensors


def untie_if_different(config: ModelConfig, stored: dict[str, Any], where) -> ModelConfig:
    """The configuration, untied if the checkpoint has both tables and their numbers differ.

    Transformers keeps both tables then, whatever the configuration says.

    Args:
      stored: the checkpoint's tensors, see ``tensors.open_tensors``.
      where: the file of the configuration, for the warning.
    """
    names = names_in(config, stored)
    embed, head = name_of(names["embed"][0]), name_of(names["head"][0])
    both = config.tie_embeddings and embed != head and embed in stored and head in stored
    if not both or _equal(stored[embed], stored[head]):
        return config
    message = f"{where}: tie_word_embeddings is true, but the checkpoint's {head} differs from {embed}; both are used"
    warnings.warn(message, SpecjaxWarning, stacklevel=2)
    return config.replace(tie_embeddings=False)


def _equal(first, second) -> bool:
    """Whether two tensors [rows, columns] have the same numbers."""
    if tuple(first.get_shape()) != tuple(second.get_shape()):
        return False
    rows = first.get_shape()[0]
    pieces = [(slice(low, min(low + _ROWS, rows)), slice(None)) for low in range(0, rows, _ROWS)]
    return all(np.array_equal(first[piece], second[piece]) for piece in pieces)
