"""Meshes, and the one table that maps axes of parameters to axes of the mesh."""

from contextlib import nullcontext

import jax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

RULES = {"heads": "model", "mlp": "model", "vocab": "model", "embed": None}
"""From the logical axis of a parameter to the mesh axis that splits it; None replicates it."""

_FREE = PartitionSpec.UNCONSTRAINED


def make_mesh(data: int = 1, model: int = 1, nodes: int = 1) -> Mesh:
    """A mesh of ``data * model * nodes`` devices.

    Batch rows are split over ``data``, weights over ``model``, the nodes of token trees over
    ``nodes``. Every device of the ``nodes`` axis holds all weights.
    """
    return jax.make_mesh((data, model, nodes), ("data", "model", "nodes"), axis_types=(AxisType.Auto,) * 3)


def mesh_of(array: jax.Array) -> Mesh | None:
    """The mesh of ``array``, or None."""
    placed = getattr(array, "sharding", None)
    return placed.mesh if isinstance(placed, NamedSharding) else None


def use_mesh_of(array: jax.Array):
    """The context in which functions are traced for the mesh of ``array``.

    Without a mesh it changes nothing.
    """
    mesh = mesh_of(array)
    return nullcontext() if mesh is None else jax.set_mesh(mesh)


def split_nodes(x: jax.Array) -> jax.Array:
    """``x`` [B, N, ...] with N split over the mesh axis ``nodes`` (Lookahead parallelism, Fu et al.
    2024, section 3.3).

    Every device then computes its own nodes, and gathers the keys and values they attend to.
    Without that axis, or where its size does not divide N, ``x`` is unchanged.
    """
    if x.shape[1] % _node_parts():
        return x
    return _constrained(x, _FREE, "nodes", *[_FREE] * (x.ndim - 2))


def whole_nodes(tree):
    """A pytree of arrays [B, ...] with no axis split but B.

    Later computations may be split; this one is not.
    """
    return jax.tree.map(lambda x: _constrained(x, _FREE), tree)


def nodes_are_split() -> bool:
    """Whether the mesh in use has a ``nodes`` axis of more than one device."""
    return _node_parts() > 1


def _node_parts() -> int:
    return jax.sharding.get_abstract_mesh().shape.get("nodes", 1)


def _constrained(x: jax.Array, *spec) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec)) if nodes_are_split() else x


def sharding(param: nnx.Param, mesh: Mesh | None):
    """The sharding of a parameter: by ``RULES`` on a mesh, else the first device.

    An axis that does not divide is replicated.
    """
    if mesh is None:
        return jax.sharding.SingleDeviceSharding(jax.devices()[0])
    names = [RULES.get(axis) for axis in param.axes]
    return NamedSharding(
        mesh,
        PartitionSpec(
            *[name if name and size % mesh.shape[name] == 0 else None for name, size in zip(names, param.shape)]
        ),
    )
