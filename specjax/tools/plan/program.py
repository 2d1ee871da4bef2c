"""Compiles prefill and loop for devices that need not exist, see ``abstract_arguments``."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from ...core.settings import own_settings
from ...loop import decode
from ...loop.prefill import prefill
from ...rules.acceptance import resolve
from ..evaluate import products
from .abstract_arguments import Abstract, trace_on


def compile_prefill(program: Abstract) -> jax.stages.Compiled:
    """The compiled prefill."""
    read = partial(prefill, drafter=program.drafter, chunk=program.chunk, dtype=program.dtype)
    with trace_on(program.mesh), own_settings(), _without_cache():
        return _compile(jax.jit(read).trace(program.model, program.parameters, program.requests), program)


def compile_loop(program: Abstract) -> tuple[jax.stages.Compiled, products.Work]:
    """The compiled loop, which donates the state, and the work of a round."""
    with trace_on(program.mesh), own_settings(), _without_cache():
        traced, work = _trace_loop(program)
        return _compile(traced, program), work


def products_of(program: Abstract) -> products.Work:
    """The work of a round, without a compiler."""
    with trace_on(program.mesh), own_settings():
        return _trace_loop(program)[1]


def _trace_loop(program: Abstract) -> tuple[jax.stages.Traced, products.Work]:
    """The traced loop, and the work of a round."""
    drafter = program.drafter
    state = program.state
    until = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(program.mesh, PartitionSpec()))
    run = partial(decode.run, drafter=drafter, rule=resolve("auto", drafter.drawn))
    shardings = jax.tree.map(lambda x: x.sharding, state)
    traced = jax.jit(run, donate_argnums=2, out_shardings=shardings).trace(
        program.model, program.parameters, state, until
    )
    return traced, products.of_round(traced, (program.model, program.parameters), (state, until), program.rows)


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
