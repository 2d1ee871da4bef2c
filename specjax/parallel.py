"""Meshes, and the one table that says which axis of a parameter is split over which axis of the mesh."""

from contextlib import nullcontext

import jax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

RULES = {"heads": "model", "mlp": "model", "vocab": "model", "embed": None}
"""Logical axis of a parameter to mesh axis; None is replicated."""


def make_mesh(data: int = 1, model: int = 1, nodes: int = 1) -> Mesh:
    """A mesh of ``data * model * nodes`` devices: batch rows are split over ``data``, weights over ``model``, the nodes of token trees
    over ``nodes``, on each of which the weights are whole."""
    return jax.make_mesh((data, model, nodes), ("data", "model", "nodes"), axis_types=(AxisType.Auto,) * 3)


def use_mesh_of(array: jax.Array):
    """The context in which what is traced is for the mesh that ``array`` lies on; it changes nothing where there is none."""
    placed = getattr(array, "sharding", None)
    return jax.set_mesh(placed.mesh) if isinstance(placed, NamedSharding) else nullcontext()


def split_nodes(x: jax.Array) -> jax.Array:
    """``x`` [B, N, ...] with N split over the axis ``nodes`` of the mesh in use (Lookahead parallelism, Fu et al. 2024, section 3.3).

    Every device then computes its own nodes, and what they attend to is gathered. Without that axis, or where it does not divide N,
    ``x`` as it is.
    """
    parts = jax.sharding.get_abstract_mesh().shape.get("nodes", 1)
    if parts == 1 or x.shape[1] % parts:
        return x
    free = PartitionSpec.UNCONSTRAINED
    return jax.lax.with_sharding_constraint(x, PartitionSpec(free, "nodes", *[free] * (x.ndim - 2)))


def sharding(param: nnx.Param, mesh: Mesh | None):
    """Where a parameter lives: by ``RULES`` on a mesh, on the first device without one. An axis that does not divide is replicated."""
    if mesh is None:
        return jax.sharding.SingleDeviceSharding(jax.devices()[0])
    names = [RULES.get(axis) for axis in param.axes]
    return NamedSharding(
        mesh, PartitionSpec(*[name if name and size % mesh.shape[name] == 0 else None for name, size in zip(names, param.shape)])
    )
