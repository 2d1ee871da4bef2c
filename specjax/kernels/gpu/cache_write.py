"""Kernels for NVIDIA GPUs: where they may be used, and the write of the cache.

XLA launches a kernel for each write. A launch takes about as long as the write of a few rows.
"""

import functools
import os
from importlib import util

import jax
import jax.numpy as jnp

_LAYERS = 32
"""Layers that one kernel writes. A kernel takes 4 kB of arguments."""


@functools.cache
def _are_installed() -> bool:
    """Whether JAX has a CUDA plug-in and Pallas for Triton, and no GPU is older than Ampere."""
    exists = lambda module: util.find_spec(module.partition(".")[0]) and util.find_spec(module)
    if not any(exists(f"jax_plugins.xla_cuda{version}") for version in (12, 13)):
        return False
    if not exists("jax.experimental.pallas.triton"):  # Newer versions of JAX may drop it.
        return False
    return all(float(getattr(device, "compute_capability", 8)) >= 8 for device in jax.devices())


def are_usable() -> bool:
    """Whether functions that are traced now may contain kernels for CUDA.

    They may where JAX runs on a GPU. The environment variable ``SPECJAX_KERNELS=0`` forbids
    kernels, and ``SPECJAX_KERNELS=1`` allows them also in programs that are only compiled for a
    GPU. XLA cannot split a kernel over devices, so a mesh of several devices has none.
    """
    if jax.sharding.get_abstract_mesh().size > 1:
        return False
    wanted = os.environ.get("SPECJAX_KERNELS") or ("1" if jax.default_backend() == "gpu" else "0")
    return wanted == "1" and _are_installed()


def write_path(
    layers: tuple, rows: tuple, path: jax.Array | None, start: jax.Array, table=None, *, interpret: bool = False
) -> tuple:
    """The leaves of a cache with the rows of a path, as ``cache.commit`` describes.

    With a table, int32 [B, T / S], the leaves are pools [blocks, K, S, D]; numbers that are not
    finite become zeros there, and positions without a block go to block 0.

    A launch writes leaves of one shape, of up to ``_LAYERS`` layers.
    """
    leaves, structure = jax.tree.flatten(layers)
    new, groups = jax.tree.leaves(rows), {}
    for number, leaf in enumerate(leaves):
        groups.setdefault(leaf.shape, []).append(number)
    for group in groups.values():
        for first in range(0, len(group), 2 * _LAYERS):
            of = group[first : first + 2 * _LAYERS]
            operands = [leaves[i] for i in of], [new[i] for i in of], path, start, table
            written = _write_leaves(*operands, interpret=interpret)
            for number, leaf in zip(of, written):
                leaves[number] = leaf
    return jax.tree.unflatten(structure, leaves)


@functools.partial(jax.jit, static_argnames="interpret")
def _write_leaves(leaves, new, path, start, table, *, interpret: bool):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    B, K, N, D = new[0].shape
    count, width = N if path is None else path.shape[1], pl.next_power_of_2(D)
    chosen = () if path is None else (path,)
    tables = () if table is None else (table,)
    S = leaves[0].shape[2]

    def kernel(start, *refs):
        b, k, i = (pl.program_id(axis) for axis in range(3))
        node = jnp.clip(refs[0][b, i], 0, N - 1) if chosen else i
        if table is None:
            row, place = b, jnp.clip(start[b], 0, S - count) + i  # as dynamic_update_slice clamps
        else:
            number, place = (start[b] + i) // S, (start[b] + i) % S
            row = triton.load(refs[len(chosen)].at[b, number], mask=number < table.shape[1], other=0)
        sources, targets = refs[len(chosen + tables) :][: len(new)], refs[-len(leaves) :]
        at, real = jnp.arange(width), jnp.arange(width) < D
        # All loads come before all stores, so that the GPU does not wait for each of them.
        read = [triton.load(source.at[b, k, node, at], mask=real, other=0) for source in sources]
        for x, target in zip(read, targets):
            x = x if table is None else jnp.where(jnp.abs(x) < jnp.inf, x, 0)
            triton.store(target.at[row, k, place, at], x.astype(target.dtype), mask=real)

    first = 1 + len(chosen + tables) + len(new)
    return pl.pallas_call(
        kernel,
        grid=(B, K, count),
        out_shape=[jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves],
        input_output_aliases={first + i: i for i in range(len(leaves))},
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
        name="write_cache",
    )(start, *chosen, *tables, *new, *leaves)
