"""Writes the model of a GGUF file, or a quantised model, as a Hugging Face checkpoint."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import CheckpointError
from ..models.config import ModelConfig
from .blocks import blocks
from .config import check_dtype, read_config, to_hf
from .experts import LAYER, stack_name, stacked_matrices, unstack_layer
from .families import FAMILIES, names_in, tensors_in
from .files import is_gguf
from .gguf.names import open_tensors_of
from .gguf.reader import open_gguf
from .gguf.tokenizer import read_gguf_tokenizer
from .hub import find
from .load import load, save
from .shards import new_directory, write_shards
from .tensors import abstract_decoder, check_module

_OPTIONS = "generation_config.json"
_GENERATION = ("bos_token_id", "eos_token_id", "pad_token_id")


def convert(name: str | Path, directory: str | Path, dtype: str | None = None, quantize: str | None = None) -> None:
    """Writes a model as config.json, safetensors, tokenizer.json and generation_config.json.

    Without ``quantize`` the model is a GGUF file. Its weights are unpacked tensor by tensor, so the
    memory need not hold the model. Weights of more than ``shards.SHARD`` bytes become several files
    with an index.

    Args:
      name: the GGUF file, or a directory with one; with ``quantize`` any name that ``load`` takes.
      directory: a new one.
      dtype: "float32", "bfloat16" or "float16", the type of the weights; by default that of
        ``load``.
      quantize: the form of the weights, see ``load``; the checkpoint has the layout of
        ``packed.own``, which specjax alone reads.

    Raises CheckpointError for a name of anything else, a damaged file, or a directory that has
    files or cannot be written, ConfigError for a model that is not supported, RequestError for
    another dtype or form, and StorageError for a disk that is too small.
    """
    if quantize is not None:
        model = load(name, dtype, quantize=quantize)
        with new_directory(directory, sum(leaf.nbytes for leaf in jax.tree.leaves(model.model))) as new:
            save(model, new)
            own = find(name) / _OPTIONS
            if own.is_file():
                shutil.copyfile(own, new / _OPTIONS)
        return
    checkpoint = find(name)
    if not is_gguf(checkpoint):
        raise CheckpointError(f"{name}: not a GGUF file; every command reads a Hugging Face checkpoint as it is")
    dtype = check_dtype(dtype or "bfloat16")
    config = read_config(checkpoint).replace(dtype=dtype)
    file = open_gguf(checkpoint)
    tensors = open_tensors_of(file)
    tensors = {name: tensors[name] for name in tensors_in(config, tensors)}
    names = names_in(config, tensors)
    check_module(abstract_decoder(config), tensors, partial(blocks, names=names, config=config), checkpoint)
    tokenizer = read_gguf_tokenizer(file)
    size = sum(int(np.prod(x.get_shape())) for x in tensors.values()) * jnp.dtype(dtype).itemsize
    raw = to_hf(config) | {"pad_token_id": tokenizer.pad_token_id}
    with new_directory(directory, size) as new:
        write_shards(new, _unpacked(tensors, config, dtype))
        _write(new / "config.json", raw)
        _write(new / _OPTIONS, {key: raw[key] for key in _GENERATION if raw.get(key) is not None})
        tokenizer.save_pretrained(new, save_jinja_files=False)  # the template stands in tokenizer_config.json


def _unpacked(tensors: Mapping[str, Any], config: ModelConfig, dtype: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors of the checkpoint. The experts of one layer are in memory at a time."""
    read = lambda name: np.ascontiguousarray(tensors[name][:].astype(jnp.dtype(dtype)))
    stacked = re.compile(rf"({LAYER.replace('N', '[0-9]+')})\.mlp\.experts\.(\w+)")
    for name in tensors:
        match = stacked.fullmatch(name)
        if match is None:
            yield name, read(name)
        elif match[2] == "gate":
            stacks = {matrix: read(stack_name(match[1], matrix)) for matrix in stacked_matrices(config)}
            yield from unstack_layer(stacks, config, match[1]).items()
    for name, number in FAMILIES[config.family].fixed(config).items():
        yield name, np.array(number, jnp.dtype(dtype))


def _write(path: Path, raw: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(raw, indent=2) + "\n")
