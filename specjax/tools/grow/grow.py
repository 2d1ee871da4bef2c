"""Grows a model to a larger shape that computes the same function up to rounding.

The grown model has the cost of its shape, and the text and the acceptance of the small model. So
the speed of a real size can be measured without a real checkpoint. A draft model serves the grown
model as it is. A trained head reads hidden states, so it grows too.
"""

import dataclasses
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ...checkpoints.blocks import blocks
from ...checkpoints.config import to_hf
from ...checkpoints.families import NAMES
from ...checkpoints.heads import save_head
from ...checkpoints.load import LanguageModel
from ...checkpoints.shards import new_directory, write_shards
from ...checkpoints.tensors import abstract_decoder, dotted, parameter_tensors
from ...errors import ConfigError
from ...heads import KINDS, BlockConfig, Eagle3Config, Head, HeadConfig
from ...models.config import ModelConfig
from .parameters import Growth
from .shape import grow_config, grow_layers


def grow_model(target: LanguageModel, like: ModelConfig, directory: str | Path) -> ModelConfig:
    """Writes the target in the shape of ``like``, with its tokenizer, into a new directory.

    Weights are made and written one parameter at a time. ``config.json`` comes last, so half a
    checkpoint never loads.

    Args:
      like: has the sizes, context, dtype, family, biases and tie of the embedding; see
        ``checkpoints.config.read_shape``. The other options stay those of the target.

    Returns the grown configuration. Raises ConfigError for a shape that cannot hold the target,
    CheckpointError for a directory that has files or cannot be written, and StorageError for a disk
    that is too small.
    """
    target.config.refuse_encoder("growth")
    config = grow_config(target.config, like, target.name)
    abstract = abstract_decoder(config)
    growth = Growth(target.config, config, (target.config.hidden_size, config.hidden_size))
    blocks_of = partial(blocks, names=NAMES[config.family], config=config)

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for path, value in _grow(target.model, abstract, growth):
            yield from parameter_tensors(path, value, blocks_of).items()

    with new_directory(directory, _bytes(abstract)) as directory:
        write_shards(directory, tensors())
        target.tokenizer.save_pretrained(directory)
        (directory / "config.json").write_text(json.dumps(to_hf(config), indent=2) + "\n")
    return config


def grow_head(head: Head, target: LanguageModel, like: ModelConfig, directory: str | Path) -> HeadConfig:
    """Writes a head of the target for the target grown to ``like``, into a new directory.

    The head's decoder layers take the sizes of ``like``. Their number stays. The grown head drafts
    the tokens that the head drafts for the target.

    Returns the grown configuration. Raises ConfigError for a shape that cannot hold the target or
    the head, CheckpointError for a directory that has files or cannot be written, and StorageError
    for a disk that is too small.
    """
    grown = grow_config(target.config, like, target.name)
    config = _grow_head_config(head, grown)
    abstract = nnx.eval_shape(lambda: KINDS[config.kind].module(config, jax.random.key(0)))
    growth = Growth(
        head.config.layers or target.config,
        config.layers or grown,
        (target.config.hidden_size, grown.hidden_size),
        config.passed_on,
        config.axes,
    )
    with new_directory(directory, _bytes(abstract)) as directory:
        values = dict(_grow(head.module, abstract, growth))
        graph, state = nnx.split(abstract)
        grown_state = [
            (path, param.replace(jnp.asarray(values[dotted(path)]))) for path, param in nnx.to_flat_state(state)
        ]
        module = nnx.merge(graph, nnx.from_flat_state(grown_state))
        save_head(Head(module, config, head.name, head.layout), directory)
    return config


def _grow(module: nnx.Module, abstract: nnx.Module, growth: Growth) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the path of each grown parameter, and its values."""
    rng = np.random.default_rng(0)
    old = {dotted(path): param for path, param in nnx.to_flat_state(nnx.state(module))}
    if "head" not in old and "embed" in old:
        old["head"] = old["embed"]  # the embedding was tied, and now it need not be
    for path, param in nnx.to_flat_state(nnx.state(abstract)):
        name = dotted(path)
        values = np.asarray(old[name][...]) if name in old else None
        if values is None and name.removesuffix("_bias") in old:  # the grown family has biases
            values = np.zeros(len(old[name.removesuffix("_bias")]), np.float32)
        yield name, growth.grow(name, values, param.shape, param.dtype, rng)


def _grow_head_config(head: Head, target: ModelConfig) -> HeadConfig:
    """The configuration of the head for the grown target."""
    config = head.config
    sizes = {}
    if config.part_not_grown:
        raise ConfigError(
            f"{head.name} cannot grow: growth does not know {config.part_not_grown}; use a head without it"
        )
    fields = {field.name for field in dataclasses.fields(config)}
    if config.layers is not None:
        sizes["layers"] = grow_layers(config.layers, target, head.name)
    if isinstance(config, Eagle3Config) and (config.fc_norm or config.norm_before_fc):
        _check_norms(config, head.name)
    if isinstance(config, BlockConfig) and config.draft_vocab_size == config.vocab_size:
        sizes["draft_vocab_size"] = target.vocab_size
    sizes |= {"target_size": target.hidden_size, "target_layers": target.num_layers, "vocab_size": target.vocab_size}
    grown = dataclasses.replace(config, **{name: size for name, size in sizes.items() if name in fields})
    return grown.with_dtype(target.dtype)


def _check_norms(config: Eagle3Config, name: str) -> None:
    """Raises ConfigError for norms of two widths, which would need a ``norm_eps`` each."""
    if config.layers.hidden_size != config.target_size:
        raise ConfigError(
            f"{name} cannot grow: fc_norm or norm_before_fc is set, and hidden_size is {config.layers.hidden_size};"
            f" it must be {config.target_size}, the target's"
        )


def _bytes(module: nnx.Module) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(nnx.state(module)))
