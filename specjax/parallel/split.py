"""The layout of arrays in traced functions: the axes that the mesh in use splits or keeps whole.

Without a mesh, or with a mesh of one device, all functions return their arguments.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec

_FREE = PartitionSpec.UNCONSTRAINED


def split_rows(tree, rows: int):
    """The pytree, with the first axis of every array [rows, ...] split over the mesh axis ``data``.

    The tree is unchanged without that axis, or if the axis does not divide ``rows``.
    """
    if not _divides("data", rows):
        return tree
    has_rows = lambda x: x.ndim > 0 and x.shape[0] == rows
    constrain = lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec("data", *[_FREE] * (x.ndim - 1)))
    return jax.tree.map(lambda x: constrain(x) if has_rows(x) else x, tree)


def each_part_of_rows(function: Callable, *arrays: Any) -> Any:
    """``function(*arrays)``, computed by each device for its own rows of all arrays [B, ...].

    The arguments are pytrees of such arrays. ``function`` must compute each row from the same rows
    of its arguments. XLA would gather the rows of all devices for a loop over rows.
    """
    if not _divides("data", jax.tree.leaves(arrays)[0].shape[0]):
        return function(*arrays)
    return jax.shard_map(
        function, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"), axis_names={"data"}, check_vma=False
    )(*arrays)


def each_part_of_heads(function: Callable, leaf: jax.Array, of_runs: jax.Array) -> jax.Array:
    """``function(leaf, of_runs)``, computed by each device for its own rows and key heads.

    ``leaf`` is an array [B, K, ...] of a cache, and so is the result; ``of_runs`` is [B, K or 1,
    ...]. ``function`` must compute each row and head from the same row and head of its arguments.
    XLA would gather the rows and heads of all devices for a loop over them.
    """
    split = [name if _divides(name, size) else None for name, size in zip(("data", "model"), leaf.shape)]
    if split == [None, None]:
        return function(leaf, of_runs)
    own = PartitionSpec(*split)
    of_own = PartitionSpec(split[0], split[1] if of_runs.shape[1] > 1 else None)
    names = {name for name in split if name}
    return jax.shard_map(function, in_specs=(own, of_own), out_specs=own, axis_names=names, check_vma=False)(
        leaf, of_runs
    )


def each_part_of_queries(function: Callable, queries: jax.Array, *whole) -> jax.Array:
    """``function(queries, *whole)``, computed by each device for its own query heads.

    ``queries`` is [B, N, 1, H, D], and the result [B, N, H * ...]. Every device has the arrays in
    ``whole``, pytrees, for all heads. XLA would gather the heads where they share an axis with the
    nodes.
    """
    if not _divides("model", queries.shape[3]):
        return function(queries, *whole)
    own = PartitionSpec(None, None, None, "model"), *[PartitionSpec()] * len(whole)
    result = PartitionSpec(None, None, "model")
    return jax.shard_map(function, in_specs=own, out_specs=result, axis_names={"model"}, check_vma=False)(
        queries, *whole
    )


def sum_over_parts(function: Callable, nodes: tuple, weights: tuple, axes: tuple[int, ...]) -> jax.Array:
    """``function(*nodes, *weights)`` [B, N, ...], computed in parts by the devices.

    Each device computes it for its own nodes and its part of the weights. The results are summed
    over the mesh axis ``model``. ``function`` must compute each node from the same node of its
    arguments. XLA would sum in every iteration of a loop inside.

    Args:
      nodes: arrays [B, N, ...].
      weights: arrays, pytrees of arrays with the same axes, or None.
      axes: the axis of each of the weights of which a device has a part. If the mesh does not
        divide an axis, every device has all weights. An axis of size 1 stands for all parts.
    """
    names = {name for name in ("data", "model", "nodes") if _axis_size(name) > 1}
    sizes = {leaf.shape[axis] for w, axis in zip(weights, axes) for leaf in jax.tree.leaves(w)} - {1}
    if not all(_divides("model", size) for size in sizes):
        names -= {"model"}
    if not names:
        return function(*nodes, *weights)
    B, N = nodes[0].shape[:2]
    own = PartitionSpec(*(name if _divides(name, size) else None for name, size in (("data", B), ("nodes", N))))
    name = "model" if "model" in names else None

    def part_of(leaf, axis):
        return PartitionSpec(*[None] * axis, name if leaf.shape[axis] > 1 else None)

    parts = tuple(jax.tree.map(partial(part_of, axis=axis), w) for w, axis in zip(weights, axes))

    def part(*arrays):
        y = function(*arrays)
        return jax.lax.psum(y, name) if name else y

    specs = *[own] * len(nodes), *parts
    return jax.shard_map(part, in_specs=specs, out_specs=own, axis_names=names, check_vma=False)(*nodes, *weights)


def whole_features(x: jax.Array) -> jax.Array:
    """``x`` [..., F], whose last axis every device holds whole."""
    if _axis_size("model") < 2:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*[_FREE] * (x.ndim - 1), None))


def split_nodes(x: jax.Array) -> jax.Array:
    """``x`` [B, N, ...] with N split over the mesh axis ``nodes``.

    Each device then computes its own nodes, and gathers the keys and values that they attend to
    (lookahead parallelism, Fu et al. 2024, section 3.3). ``x`` is unchanged without that axis, or
    if the size of the axis does not divide N.
    """
    if not _divides("nodes", x.shape[1]):
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(_FREE, "nodes", *[_FREE] * (x.ndim - 2)))


def whole_nodes(tree):
    """A pytree of arrays [B, ...] in which no axis but B is split.

    The computation of these arrays is then not split either; later computations may be.
    """
    if not nodes_are_split():
        return tree
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec(_FREE)), tree)


def nodes_are_split() -> bool:
    """Whether the mesh in use has a ``nodes`` axis of more than one device."""
    return _axis_size("nodes") > 1


def weights_are_split() -> bool:
    """Whether the mesh in use has a ``model`` axis of more than one device."""
    return _axis_size("model") > 1


def _axis_size(name: str) -> int:
    return jax.sharding.get_abstract_mesh().shape.get(name, 1)


def _divides(name: str, size: int) -> bool:
    """Whether the mesh in use splits an axis of ``size`` over its axis ``name``."""
    return _axis_size(name) > 1 and size % _axis_size(name) == 0
