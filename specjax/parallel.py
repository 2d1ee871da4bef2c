"""Meshes of devices, and the table that maps axes of parameters to axes of the mesh."""

from contextlib import nullcontext

import jax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

RULES = {"heads": "model", "mlp": "model", "vocab": "model", "embed": None}
"""For each logical axis of a parameter, the mesh axis that splits it; None replicates it."""

_FREE = PartitionSpec.UNCONSTRAINED


def make_mesh(data: int = 1, model: int = 1, nodes: int = 1) -> Mesh:
    """A mesh of ``data * model * nodes`` devices.

    The axis ``data`` splits rows of the batch, ``model`` splits weights, and ``nodes`` splits the
    nodes of token trees. Weights are replicated along ``nodes``.
    """
    return jax.make_mesh((data, model, nodes), ("data", "model", "nodes"), axis_types=(AxisType.Auto,) * 3)


def mesh_of(array: jax.Array) -> Mesh | None:
    """The mesh that ``array`` is placed on, or None."""
    placed = getattr(array, "sharding", None)
    mesh = placed.mesh if isinstance(placed, NamedSharding) else None
    return mesh if isinstance(mesh, Mesh) else None


def use_mesh_of(array: jax.Array):
    """A context in which functions are traced for the mesh of ``array``.

    If ``array`` has no mesh, the context changes nothing.
    """
    mesh = mesh_of(array)
    return nullcontext() if mesh is None else jax.set_mesh(mesh)


def split_nodes(x: jax.Array) -> jax.Array:
    """``x`` [B, N, ...] with N split over the mesh axis ``nodes``.

    Each device then computes its own nodes, and gathers the keys and values that they attend to
    (lookahead parallelism, Fu et al. 2024, section 3.3). ``x`` is unchanged without that axis, or
    if the size of the axis does not divide N.
    """
    if x.shape[1] % _count_node_parts():
        return x
    return _constrain(x, _FREE, "nodes", *[_FREE] * (x.ndim - 2))


def whole_nodes(tree):
    """A pytree of arrays [B, ...] in which no axis but B is split.

    The computation of these arrays is then not split either; later computations may be.
    """
    return jax.tree.map(lambda x: _constrain(x, _FREE), tree)


def nodes_are_split() -> bool:
    """Whether the mesh in use has a ``nodes`` axis of more than one device."""
    return _count_node_parts() > 1


def _count_node_parts() -> int:
    return jax.sharding.get_abstract_mesh().shape.get("nodes", 1)


def _constrain(x: jax.Array, *spec) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec)) if nodes_are_split() else x


def sharding(param: nnx.Param, mesh: Mesh | None):
    """The sharding of a parameter: on a mesh by ``RULES``, without a mesh on the first device.

    An axis whose size the mesh does not divide is replicated.
    """
    if mesh is None:
        return jax.sharding.SingleDeviceSharding(jax.devices()[0])
    names = [RULES.get(axis) for axis in param.axes]
    divides = lambda name, size: name is not None and size % mesh.shape[name] == 0
    spec = PartitionSpec(*[name if divides(name, size) else None for name, size in zip(names, param.shape)])
    return NamedSharding(mesh, spec)
