"""Meshes, and the one table that says which axis of a parameter is split over which axis of the mesh."""

import jax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

RULES = {"heads": "model", "mlp": "model", "vocab": "model", "embed": None}
"""Logical axis of a parameter to mesh axis; None is replicated."""


def make_mesh(data: int = 1, model: int = 1) -> Mesh:
    """A mesh of ``data * model`` devices: batch rows are split over ``data``, weights over ``model``."""
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def sharding(param: nnx.Param, mesh: Mesh | None):
    """Where a parameter lives: by ``RULES`` on a mesh, on the first device without one. An axis that does not divide is replicated."""
    if mesh is None:
        return jax.sharding.SingleDeviceSharding(jax.devices()[0])
    names = [RULES.get(axis) for axis in param.axes]
    return NamedSharding(
        mesh, PartitionSpec(*[name if name and size % mesh.shape[name] == 0 else None for name, size in zip(names, param.shape)])
    )
