"""Loads drafters by name, trained heads and language models alike, and saves heads."""

import dataclasses
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import jax
from flax import nnx

from ..errors import CheckpointError, ConfigError, RequestError
from ..heads import KINDS, Head, HeadConfig, HeadModule
from ..parallel import RULES, WHOLE, mesh_of
from .blocks import blocks
from .config import read_raw
from .families import derived
from .hub import find, zoo
from .layouts import LAYOUTS, Layout, RawCheckpoint, default_layout, find_layout
from .load import LanguageModel, load
from .placement import Placement
from .tensors import BlocksOf, open_tensors, read_module, tensors_of, write_checkpoint


def load_drafter(
    name: str | Path,
    target: LanguageModel,
    dtype=None,
    revision: str | None = None,
    mesh: jax.sharding.Mesh | None = None,
    adapter: str | Path | None = None,
    quantize: str | None = None,
) -> LanguageModel | Head:
    """The drafter called ``name``: a head made for the target, or a language model.

    Args:
      name: an embedded name, a directory, a GGUF file, or a hub id. docs/heads.md lists the layouts
        of heads.
      dtype: "float32", "bfloat16" or "float16"; by default that of the target.
      revision: a branch, a tag or a commit of the hub's repository.
      mesh: devices of the drafter's own, see ``parallel.make_draft_mesh``. A language model is
        split over them, and each of them holds a whole head. By default each device of the target
        holds all weights.
      adapter, quantize: as in ``load``; for language models only.

    Raises CheckpointError where nothing is found, files are damaged, tensors do not fit their
    configuration, or the head was made for another target; ConfigError for a drafter that is not
    supported; and RequestError for an adapter or another form of a head.
    """
    weights = target.model.embed[...]
    rules = WHOLE if mesh is None else RULES
    mesh = mesh_of(weights) if mesh is None else mesh
    placement = Placement(mesh, rules, weights.dtype if dtype is None else dtype, quantize)
    directory = find(name, revision)
    with ExitStack() as stack:
        checkpoint = RawCheckpoint(read_raw(directory), open_tensors(directory, stack), str(directory))
        layout = find_layout(checkpoint)
        if layout is not None:
            if adapter is not None:
                raise RequestError(f"draft {str(name)!r} is a head, and adapters change language models; leave it out")
            if quantize is not None:
                raise RequestError(f"draft {str(name)!r} is a head, and heads are not quantised; leave quantize out")
            module = _read_head(layout, checkpoint, target, dataclasses.replace(placement, rules=WHOLE))
            return Head(module, module.config, str(name), layout.name)
    return load(name, revision=revision, adapter=adapter, **vars(placement))


def save_head(head: Head, directory: str | Path, layout: str | None = None) -> None:
    """Writes ``config.json`` and safetensors, from which ``load_drafter`` reads the same bits.

    Args:
      layout: one of ``layouts.LAYOUTS``. By default it is the layout that the head was loaded from,
        or else the default layout of its kind.

    Raises RequestError for a layout of other heads, and ConfigError for a layout that cannot hold
    this head.
    """
    kind = head.config.kind
    name = layout or head.layout
    target = LAYOUTS.get(name) if name else default_layout(head.config)
    if target is None or target.kind != kind:
        known = ", ".join(name for name, other in LAYOUTS.items() if other.kind == kind)
        raise RequestError(f"layout {name!r} cannot hold a head of kind {kind!r}; use one of {known}")
    config = head.config.with_dtype(str(jax.tree.leaves(nnx.state(head.module, nnx.Param))[0].dtype))
    tensors = tensors_of(head.module, _blocks_of(target, config, None))
    write_checkpoint(directory, target.complete(tensors, config), target.raw(config), target.file)


def choose_head(target: LanguageModel, drafts: tuple, kind: str, method: str) -> Head:
    """The first of the drafts, or without drafts the embedded head of the target.

    Raises RequestError for a draft that is not a head of ``kind``, and without drafts for a target
    that has no embedded head.
    """
    need = f"method {method!r} drafts with a trained head of kind {kind}"
    for draft in drafts[:1]:
        if isinstance(draft, Head) and draft.config.kind == kind:
            return draft
        kind_of_draft = f"is one of kind {draft.config.kind!r}" if isinstance(draft, Head) else "is a language model"
        raise RequestError(f"{need}, and draft {draft.name!r} {kind_of_draft}; name another draft, or another method")
    name = f"{target.name}-{kind}"
    if name not in zoo():
        raise RequestError(f"{need}, and none is embedded for {target.name!r}; name one with draft, or --draft")
    head = load_drafter(name, target)
    assert isinstance(head, Head)
    return head


def _read_head(layout: Layout, checkpoint: RawCheckpoint, target: LanguageModel, placement: Placement) -> HeadModule:
    """The head of a checkpoint, checked against its target."""
    config = read_head_config(layout, checkpoint, target)
    abstract = nnx.eval_shape(lambda: KINDS[layout.kind].module(config, jax.random.key(0), placement.dtype))
    owned = [name for name in checkpoint.tensors if layout.owns(name, config, checkpoint) and not derived(name)]
    tensors = layout.stack({name: checkpoint.tensors[name] for name in owned}, config, checkpoint.where)
    module = read_module(abstract, tensors, _blocks_of(layout, config, checkpoint), checkpoint.where, placement)
    layout.check_values(module, checkpoint)
    return module


def read_head_config(layout: Layout, checkpoint: RawCheckpoint, target: LanguageModel) -> HeadConfig:
    """The configuration of a head.

    Raises ConfigError, which names the checkpoint, and CheckpointError for another target.
    """
    try:
        config = layout.config(checkpoint, target.config)
    except ConfigError as error:
        if str(error).startswith(checkpoint.where):
            raise
        raise ConfigError(f"{checkpoint.where}: {error}") from None
    _check_target(config, target, checkpoint.where)
    return config


def _blocks_of(layout: Layout, config: HeadConfig, checkpoint: RawCheckpoint | None) -> BlocksOf:
    return partial(blocks, names=layout.names(config, checkpoint), config=config.layers)


def _check_target(config: HeadConfig, target: LanguageModel, where: str) -> None:
    """Raises CheckpointError for a head that was made for another target."""
    own = target.config
    sizes = (
        ("width", config.target_size, own.hidden_size),
        ("vocabulary", config.vocab_size, own.vocab_size),
        ("number of layers", config.target_layers, own.num_layers),
    )
    faults = [f"{name} is {theirs}, not {ours}" for name, theirs, ours in sizes if theirs != ours]
    beyond = [tap for tap in config.taps if not 0 <= tap <= own.num_layers]
    faults += [f"it reads layer {tap}, and the target has {own.num_layers} layers" for tap in beyond]
    if config.mask_token is not None and config.mask_token >= own.vocab_size:
        faults.append(f"mask token {config.mask_token} is outside the vocabulary")
    if faults:
        raise CheckpointError(
            f"{where}: this head was made for another target than {target.name!r}: {'; '.join(faults)}; "
            f"use one made for it"
        )
