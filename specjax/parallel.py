"""Meshes, and the one table that says which axis of a parameter is split over which axis of the mesh."""

from contextlib import nullcontext

import jax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

RULES = {"heads": "model", "mlp": "model", "vocab": "model", "embed": None}
"""Logical axis of a parameter to mesh axis; None is replicated."""

_FREE = PartitionSpec.UNCONSTRAINED


def make_mesh(data: int = 1, model: int = 1, nodes: int = 1) -> Mesh:
    """A mesh of ``data * model * nodes`` devices: batch rows are split over ``data``, weights over ``model``, the nodes of token trees
    over ``nodes``, on each of which the weights are whole."""
    return jax.make_mesh((data, model, nodes), ("data", "model", "nodes"), axis_types=(AxisType.Auto,) * 3)


def mesh_of(array: jax.Array) -> Mesh | None:
    """The mesh that ``array`` lies on, if any."""
    placed = getattr(array, "sharding", None)
    return placed.mesh if isinstance(placed, NamedSharding) else None


def use_mesh_of(array: jax.Array):
    """The context in which what is traced is for the mesh that ``array`` lies on; it changes nothing where there is none."""
    mesh = mesh_of(array)
    return nullcontext() if mesh is None else jax.set_mesh(mesh)


def split_nodes(x: jax.Array) -> jax.Array:
    """``x`` [B, N, ...] with N split over the axis ``nodes`` of the mesh in use (Lookahead parallelism, Fu et al. 2024, section 3.3).

    Every device then computes its own nodes, and what they attend to is gathered. Without that axis, or where it does not divide N,
    ``x`` as it is.
    """
    if x.shape[1] % _node_parts():
        return x
    return _constrained(x, _FREE, "nodes", *[_FREE] * (x.ndim - 2))


def whole_nodes(tree):
    """``tree``, any arrays [B, ...], with nothing but B split: what is computed from it may be split, what it came from is not."""
    return jax.tree.map(lambda x: _constrained(x, _FREE), tree)


def nodes_are_split() -> bool:
    """Whether the mesh in use has a ``nodes`` axis of more than one device."""
    return _node_parts() > 1


def _node_parts() -> int:
    return jax.sharding.get_abstract_mesh().shape.get("nodes", 1)


def _constrained(x: jax.Array, *spec) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec)) if nodes_are_split() else x


def sharding(param: nnx.Param, mesh: Mesh | None):
    """Where a parameter lives: by ``RULES`` on a mesh, on the first device without one. An axis that does not divide is replicated."""
    if mesh is None:
        return jax.sharding.SingleDeviceSharding(jax.devices()[0])
    names = [RULES.get(axis) for axis in param.axes]
    return NamedSharding(
        mesh, PartitionSpec(*[name if name and size % mesh.shape[name] == 0 else None for name, size in zip(names, param.shape)])
    )
