"""Compiles prefill and loop for devices that need not exist, from configurations alone."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ...checkpoints.placement import Placement
from ...checkpoints.tensors import abstract_decoder
from ...core.settings import own_settings
from ...core.state import DecodeState, Requests
from ...errors import RequestError
from ...heads import KINDS
from ...loop import decode
from ...loop.drafter import Drafter, Models, TargetCopy, TrainedHead
from ...loop.prefill import make_requests, prefill
from ...models.config import ModelConfig
from ...models.decoder import Decoder
from ...models.offload import HOST
from ...models.quantised_weights import quantise_module
from ...parallel import RULES, WHOLE, Rules, sharding, use_mesh
from ...rules.acceptance import resolve
from ..evaluate import products
from . import hlo, launches, traffic

_CHUNK = 256
"""Tokens of a prompt that one forward of the planned prefill reads."""


@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of one compiled method, of one device.

    Attributes:
      weights, draft, cache, temporaries: bytes of memory. ``cache`` has those of target and draft.
      host: bytes of the layers that stay in the host's memory.
      streamed: bytes of weights that a round copies from there.
      moved: bytes that a round moves, see ``traffic.Program``.
      least: bytes of weights and caches that its products read, see ``evaluate.products.of_round``.
      operations: operations of its products.
      launches: kernels that it launches; 0 on a TPU, where the loop is one launch.
      collectives: the number of runs of each kind and size of collective.
      copies: cache-sized copies in the loop.
      experts: the experts that a layer is expected to read; 0 without experts.
    """

    weights: float
    draft: float
    cache: float
    temporaries: float
    moved: float
    least: float
    operations: float
    launches: float
    collectives: Mapping[tuple[str, int], float]
    copies: int
    experts: float = 0.0
    host: float = 0.0
    streamed: float = 0.0


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
    with _use_mesh(grid), own_settings():
        requests = jax.eval_shape(
            lambda: make_requests([[0]] * batch, drafter=drafter, max_new_tokens=1, capacity=capacity)
        )
        requests = jax.tree.map(place, requests)
        state = jax.tree.map(place, jax.eval_shape(read, model, parameters, requests))
    split = partial(_split_heads, mesh=grid)
    state = state.replace(cache=state.cache.replace(layers=jax.tree.map(split, state.cache.layers)))
    rows = grid.shape["data"] if batch % grid.shape["data"] == 0 else 1
    return Abstract(drafter, grid, devices, model, draft, parameters, requests, state, rows, chunk, dtype)


def compile_prefill(program: Abstract) -> jax.stages.Compiled:
    """The compiled prefill."""
    read = partial(prefill, drafter=program.drafter, chunk=program.chunk, dtype=program.dtype)
    with _use_mesh(program.mesh), own_settings(), _without_cache():
        return _compile(jax.jit(read).trace(program.model, program.parameters, program.requests), program)


def compile_loop(program: Abstract) -> tuple[jax.stages.Compiled, products.Work]:
    """The compiled loop, which donates the state, and the work of a round."""
    with _use_mesh(program.mesh), own_settings(), _without_cache():
        traced, work = _trace_loop(program)
        return _compile(traced, program), work


def products_of(program: Abstract) -> products.Work:
    """The work of a round, without a compiler."""
    with _use_mesh(program.mesh), own_settings():
        return _trace_loop(program)[1]


def _trace_loop(program: Abstract) -> tuple[jax.stages.Traced, products.Work]:
    """The traced loop, and the work of a round."""
    drafter = program.drafter
    state = program.state
    until = _shape(jax.ShapeDtypeStruct((), jnp.int32), NamedSharding(program.mesh, PartitionSpec()))
    run = partial(decode.run, drafter=drafter, rule=resolve("auto", drafter.drawn))
    shardings = jax.tree.map(lambda x: x.sharding, state)
    traced = jax.jit(run, donate_argnums=2, out_shardings=shardings).trace(
        program.model, program.parameters, state, until
    )
    return traced, products.of_round(traced, (program.model, program.parameters), (state, until), program.rows)


def figures_of(program: Abstract, loop: jax.stages.Compiled, work: products.Work) -> Figures:
    """The figures of a compiled loop; ``temporaries`` are those of the loop."""
    text = loop.as_text() or ""
    caches = caches_of(program.state)
    moved = traffic.Program(text)
    on_host = [x for x in jax.tree.leaves(program.model) if x.sharding.memory_kind == HOST]

    def stored(tree) -> float:
        return float(sum(map(products.stored_bytes, jax.tree.leaves(tree))))

    return Figures(
        weights=stored(program.model) - stored(on_host),
        host=stored(on_host),
        streamed=moved.bytes_from_host(),
        draft=stored(program.draft),
        cache=stored(caches),
        temporaries=temporaries(loop),
        moved=moved.bytes_moved(),
        least=work.bytes,
        operations=work.operations,
        launches=launches.in_round(text),
        collectives={(one.kind, one.bytes): one.count for one in moved.collectives()},
        experts=products.expected_times(text),
        copies=len(hlo.moved(text, {math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in caches})),
    )


def temporaries(compiled: jax.stages.Compiled) -> float:
    """The bytes that a program needs beside its arguments and results.

    Raises RequestError for a compiler that reports none.
    """
    memory = compiled.memory_analysis()
    if memory is None:
        raise RequestError("this compiler tells no memory figures; use another device")
    return memory.temp_size_in_bytes


def caches_of(state: DecodeState) -> list:
    """The arrays of a state that are caches of keys or values, [B, K, T, D]."""
    return [leaf for leaf in jax.tree.leaves(state) if leaf.ndim == 4]


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


def _use_mesh(mesh: Mesh | AbstractMesh):
    return jax.sharding.use_abstract_mesh(mesh) if isinstance(mesh, AbstractMesh) else use_mesh(mesh)


def _compile(traced: jax.stages.Traced, program: Abstract) -> jax.stages.Compiled:
    if not isinstance(program.mesh, AbstractMesh):
        return traced.lower().compile()
    client = program.devices[0].client
    lowered = traced.lower(lowering_platforms=("tpu" if client.platform == "tpu" else "cuda",))
    lowered._lowering.compile_args["backend"] = client  # JAX would take the default backend beside an abstract mesh
    return lowered.compile(device_assignment=program.devices)


@contextmanager
def _without_cache() -> Iterator[None]:
    """Switches off JAX's cache of programs, which warns of programs without a device."""
    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)


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


def _shape(x, where) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
