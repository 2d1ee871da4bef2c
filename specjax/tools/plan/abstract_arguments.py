"""The arguments of prefill and loop as shapes with shardings, from configurations alone."""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ...checkpoints.placement import Placement
from ...checkpoints.tensors import abstract_decoder
from ...core.settings import own_settings
from ...core.state import DecodeState, Requests
from ...heads import KINDS
from ...loop.drafter import Drafter, Models, TargetCopy, TrainedHead
from ...loop.prefill import make_requests, prefill
from ...models.config import ModelConfig
from ...models.decoder import Decoder
from ...models.offload import HOST
from ...models.rounding import quantise_module
from ...parallel import RULES, WHOLE, Rules, sharding, use_mesh

_CHUNK = 256
"""Tokens of a prompt that one forward of the planned prefill reads."""


@dataclasses.dataclass(frozen=True, eq=False)
class Abstract:
    """The arguments of prefill and loop on a mesh, as shapes with shardings.

    Attributes:
      mesh: the mesh of the shardings. It is abstract if layers stay in the host's memory, because
        the devices of CUDA's compiler have no memories, and JAX would drop the memory kind of the
        layers.
      devices: the devices of the mesh.
      model, parameters: the target, and the result of ``Drafter.parameters``.
      requests: the batch's prompts and options.
      state: the state between two rounds. Caches are split over ``data`` and ``model``, rows of
        other arrays over ``data``.
      rows: the number of devices over which rows are split.
      chunk: tokens of a prompt that one forward reads.
    """

    drafter: Drafter
    mesh: Mesh | AbstractMesh
    devices: tuple
    model: Any
    draft: Any
    parameters: Any
    requests: Requests
    state: DecodeState
    rows: int
    chunk: int
    dtype: Any


def abstract(
    target: ModelConfig,
    drafter: Drafter,
    drafts: tuple[ModelConfig, ...],
    mesh: Mesh,
    batch: int,
    capacity: int,
    dtype,
    quantize: str | None = None,
    draft_quantize: str | None = None,
    offload: bool = False,
) -> Abstract:
    """Shapes and shardings of everything that a method runs with on a mesh.

    Args:
      target: the target's configuration; ``mesh`` splits it by ``parallel.RULES``.
      drafts: configurations of draft models, which every device holds whole.
      capacity: positions of the caches.
      dtype: the type of weights and caches.
      quantize, draft_quantize: the forms of the weights of target and draft models, see
        ``models.quantised_weights``; None for those of ``dtype``.
      offload: whether the target's layers stay in the host's memory, see ``models.offload``.

    Raises RequestError for a mesh that does not divide the model.
    """
    # 1. The parameters. CUDA's compiler has no memories, so a mesh with layers on the host is
    # abstract.
    devices = tuple(mesh.devices.flat)
    grid = mesh.abstract_mesh if offload else mesh
    model = place_shapes(_abstract_model(Placement(mesh).split(target), dtype, quantize), grid, RULES)
    if offload:
        model.layers = jax.tree.map(lambda x: _shape(x, x.sharding.with_memory_kind(HOST)), model.layers)
    draft = place_shapes(_abstract_draft(drafter, drafts, dtype, draft_quantize), grid, WHOLE)
    if isinstance(drafter.needs, TargetCopy):
        copy = nnx.eval_shape(
            lambda: drafter.parameters(Decoder(model.config, jax.random.key(0), dtype), target.vocab_size)
        )
        draft = parameters = place_shapes(copy, grid, RULES)
    else:
        parameters = _place_rest(drafter.parameters(draft, target.vocab_size), grid)
    # 2. The requests, and the state after the prefill.
    chunk = math.gcd(_CHUNK, capacity)
    read = partial(prefill, drafter=drafter, chunk=chunk, dtype=dtype)
    place = partial(_place_rows, mesh=grid, rows=batch)
    with trace_on(grid), own_settings():
        requests = jax.eval_shape(
            lambda: make_requests([[0]] * batch, drafter=drafter, max_new_tokens=1, capacity=capacity)
        )
        requests = jax.tree.map(place, requests)
        state = jax.tree.map(place, jax.eval_shape(read, model, parameters, requests))
    split = partial(_split_heads, mesh=grid)
    state = state.replace(cache=state.cache.replace(layers=jax.tree.map(split, state.cache.layers)))
    rows = grid.shape["data"] if batch % grid.shape["data"] == 0 else 1
    return Abstract(drafter, grid, devices, model, draft, parameters, requests, state, rows, chunk, dtype)


def place_shapes(module: Any, mesh: Mesh | AbstractMesh, rules: Rules) -> Any:
    """The pytree of modules that hold shapes, with the sharding of each parameter on ``mesh``."""
    if module is None or isinstance(module, tuple):
        return module and tuple(place_shapes(one, mesh, rules) for one in module)
    graph, state = nnx.split(module)

    def place(param):
        return jax.tree.map(lambda x: _shape(x, sharding(param.replace(x), mesh, rules)), param)

    leaves = [(path, place(param)) for path, param in nnx.to_flat_state(state)]
    return nnx.merge(graph, nnx.from_flat_state(leaves))


def _abstract_model(config: ModelConfig, dtype, quantize: str | None) -> Decoder:
    if quantize is None:
        return abstract_decoder(config, dtype)
    return nnx.eval_shape(lambda: quantise_module(Decoder(config, jax.random.key(0), dtype), quantize))


def _abstract_draft(drafter: Drafter, drafts: Sequence[ModelConfig], dtype, quantize: str | None):
    if isinstance(drafter.needs, TrainedHead):
        config = drafter.head  # type: ignore[attr-defined]  # drafters with a trained head have its configuration
        return nnx.eval_shape(lambda: KINDS[config.kind].module(config, jax.random.key(0), dtype))
    models = [_abstract_model(config, dtype, quantize) for config in drafts]
    if not isinstance(drafter.needs, Models):
        return None
    return models[0] if drafter.needs.is_one else tuple(models)


def _place_rest(parameters, mesh: Mesh | AbstractMesh):
    """Places all other parameters, such as n-grams, on every device whole."""
    whole = NamedSharding(mesh, PartitionSpec())

    def place(x):
        is_placed = isinstance(x, jax.ShapeDtypeStruct) and x.sharding is not None
        return x if is_placed else _shape(x, whole)

    return jax.tree.map(place, parameters)


def _place_rows(x, *, mesh: Mesh | AbstractMesh, rows: int) -> jax.ShapeDtypeStruct:
    split = x.ndim > 0 and x.shape[0] == rows and rows % mesh.shape["data"] == 0
    return _shape(x, NamedSharding(mesh, PartitionSpec("data") if split else PartitionSpec()))


def _split_heads(x, *, mesh: Mesh | AbstractMesh) -> jax.ShapeDtypeStruct:
    """A cache leaf [B, K, T, D] with split key heads.

    In latent attention all heads share one row, which stays whole.
    """
    rows = x.sharding.spec[0] if len(x.sharding.spec) else None
    heads = "model" if x.shape[1] % mesh.shape["model"] == 0 else None
    return _shape(x, NamedSharding(mesh, PartitionSpec(rows, heads)))


def trace_on(mesh: Mesh | AbstractMesh):
    """A context in which functions are traced for a mesh."""
    return jax.sharding.use_abstract_mesh(mesh) if isinstance(mesh, AbstractMesh) else use_mesh(mesh)


def _shape(x, where) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
