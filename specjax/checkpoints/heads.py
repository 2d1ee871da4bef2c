"""Names to drafters: language models and trained heads, by what their configuration and tensors say they are; and heads to files."""

import dataclasses
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import jax
from flax import nnx

from ..errors import CheckpointError, RequestError
from ..heads.base import Head
from ..models.config import ModelConfig
from ..parallel import mesh_of
from .config import check_dtype
from .families import blocks, derived
from .files import read_json
from .hub import find, zoo
from .layouts import LAYOUTS, Found, Layout, default, layout_of
from .load import LanguageModel, load
from .tensors import MadeOf, open_tensors, read_module, tensors_of, write_checkpoint


def load_drafter(name: str | Path, target: LanguageModel, dtype=None, revision: str | None = None) -> LanguageModel | Head:
    """What is called ``name``: a head that was made for the target, or a language model.

    Args:
      name: an embedded name, a directory, or a hub id. docs/heads.md lists the layouts of heads that are understood.
      dtype: "float32", "bfloat16" or "float16"; by default that of the target.
      revision: a branch, a tag or a commit of the hub's repository.

    It lies on the target's mesh, if there is one. Raises CheckpointError where nothing is found, files are damaged, tensors do not fit
    their configuration or the head is another target's; ConfigError where what is found is not supported.
    """
    weights = target.model.embed[...]
    dtype, mesh = check_dtype(weights.dtype if dtype is None else dtype), mesh_of(weights)
    directory = find(name, revision)
    with ExitStack() as stack:
        found = Found(read_json(directory / "config.json"), open_tensors(directory, stack), str(directory))
        layout = layout_of(found)
        if layout is not None:
            module = _module(layout, found, target, dtype, mesh)
            return Head(module, module.config, str(name), layout.name)
    return load(name, dtype, mesh, revision)


def save_head(head: Head, directory: str | Path, layout: str | None = None) -> None:
    """Writes ``config.json`` and safetensors, from which ``load_drafter`` reads the same bits.

    Args:
      layout: one of ``layouts.LAYOUTS``; by default that which the head was loaded from, or else ``layouts.default``.

    Raises RequestError for a layout of other heads, ConfigError for one that has no names for this head's options.
    """
    kind = head.config.kind
    written = LAYOUTS.get(layout or head.layout or default(head.config))
    if written is None or written.kind != kind:
        known = ", ".join(name for name, other in LAYOUTS.items() if other.kind == kind)
        raise RequestError(f"layout {layout!r} cannot hold a head of kind {kind!r}; use one of {known}")
    config = _of_dtype(head.config, str(jax.tree.leaves(nnx.state(head.module, nnx.Param))[0].dtype))
    raw, tensors = written.raw(config), tensors_of(head.module, _made_of(written, config, None))
    write_checkpoint(directory, written.finished(tensors, config), raw, written.file)


def choose_head(target: LanguageModel, drafts: tuple, kind: str, method: str) -> Head:
    """The one head among the drafts, or without drafts the embedded one of the target. Raises RequestError where it is of no such kind."""
    wanted = f"method {method!r} drafts with a trained head of kind {kind}"
    for draft in drafts[:1]:
        if isinstance(draft, Head) and draft.config.kind == kind:
            return draft
        given = f"is one of kind {draft.config.kind!r}" if isinstance(draft, Head) else "is a language model"
        raise RequestError(f"{wanted}, and draft {draft.name!r} {given}; name another draft, or another method")
    if f"{target.name}-{kind}" not in zoo():
        raise RequestError(f"{wanted}, and {target.name!r} comes with none; name one with draft, or --draft")
    return load_drafter(f"{target.name}-{kind}", target)


def _module(layout: Layout, found: Found, target: LanguageModel, dtype: str, mesh) -> nnx.Module:
    config = layout.config(found, target.config)
    _check_target(config, target, found.where)
    abstract = nnx.eval_shape(lambda: layout.module(config, jax.random.key(0), dtype))
    tensors = {name: tensor for name, tensor in found.tensors.items() if layout.owns(name, config, found) and not derived(name)}
    module = read_module(abstract, tensors, _made_of(layout, config, found), found.where, mesh)
    layout.checked(module, found)
    return module


def _made_of(layout: Layout, config, found: Found | None) -> MadeOf:
    return partial(blocks, names=layout.names(config, found), config=getattr(config, "layers", None))


def _check_target(config, target: LanguageModel, where: str) -> None:
    """Raises CheckpointError for a head that was made for another target."""
    own: ModelConfig = target.config
    layers, borrows = getattr(config, "layers", None), not (getattr(config, "own_embedding", True) and getattr(config, "own_head", True))
    faults = [
        f"{what} is {theirs}, not {ours}"
        for what, theirs, ours in (
            ("width", config.target_size, own.hidden_size),
            ("vocabulary", config.vocab_size, own.vocab_size),
            ("number of layers", config.target_layers, own.num_layers),
        )
        if theirs != ours
    ]
    faults += [f"layer {tap} is read, of {own.num_layers}" for tap in config.taps if not 0 <= tap <= own.num_layers]
    if layers is not None and borrows and layers.hidden_size != own.hidden_size:
        faults.append(f"the head is {layers.hidden_size} wide and brings no embeddings of its own")
    if not 0 <= (getattr(config, "mask_token", None) or 0) < own.vocab_size:
        faults.append(f"mask token {config.mask_token} is outside the vocabulary")
    if faults:
        raise CheckpointError(
            f"{where}: this head was made for another target than {target.name!r}: {'; '.join(faults)}; use one made for it"
        )


def _of_dtype(config, dtype: str):
    """The configuration with the type of the weights as they are."""
    own = {"dtype": dtype} if hasattr(config, "dtype") else {}
    layers = getattr(config, "layers", None)
    return dataclasses.replace(config, **own, **({"layers": layers.replace(dtype=dtype)} if layers else {}))
