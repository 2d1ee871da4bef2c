"""Meshes of devices, and the table that maps logical axes of arrays to axes of the mesh."""

import math
import re
from collections.abc import Mapping
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from ..errors import RequestError

AXES = ("data", "model", "nodes")
"""The axes of a mesh: rows of the batch, weights, and nodes of token trees."""

Rules = Mapping[str, str | None]
"""The mesh axis of each logical axis of an array; None, or no entry, replicates the axis."""

RULES: Rules = {"heads": "model", "mlp": "model", "vocab": "model", "width": "model"}
"""The rules of a model that is split over the mesh.

"width" is the second axis of the table of embeddings. Its first axis stays whole, because XLA for
GPUs would gather the whole table for a lookup in its parts.
"""

WHOLE: Rules = {}
"""The rules of a module that every device holds whole, such as a draft."""


def make_mesh(data: int = 1, model: int = 1, nodes: int = 1, *, devices=None) -> Mesh:
    """A mesh of ``data * model * nodes`` devices.

    The axis ``data`` splits rows of the batch, ``model`` splits weights, and ``nodes`` splits the
    nodes of token trees. Weights are replicated along ``data`` and ``nodes``.

    ``devices``: the devices to take the first ones of; by default all devices of all hosts.

    Raises RequestError for sizes below 1, and for more devices than there are.
    """
    sizes, devices = (data, model, nodes), jax.devices() if devices is None else devices
    for name, size in zip(AXES, sizes):
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise RequestError(f"mesh axis {name} must be a whole number from 1, not {size!r}")
    count = math.prod(map(int, sizes))
    if count > len(devices):
        raise RequestError(
            f"the mesh needs {count} devices and the number at hand is {len(devices)}; lower data or model"
        )
    if count < len(devices) and jax.process_count() > 1:
        raise RequestError(f"the mesh has {count} of {len(devices)} devices; with several hosts it must have all")
    return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices[:count])


def make_draft_mesh(text: str, mesh: Mesh | None) -> Mesh:
    """A mesh for drafts, of devices that the target on ``mesh`` leaves.

    Args:
      text: sizes as in ``parse_mesh``, or "cpu" for a CPU beside other devices.
      mesh: None stands for the default device.

    Raises RequestError for another form, an unknown axis, or more devices than are left.
    """
    used = {jax.devices()[0]} if mesh is None else {*mesh.devices.flat}
    sizes = {} if text == "cpu" else parse_mesh(text)
    try:
        devices = jax.devices("cpu") if text == "cpu" else jax.devices()
    except RuntimeError:
        raise RequestError(
            "JAX has no CPU device for the draft mesh; add cpu to JAX_PLATFORMS, such as JAX_PLATFORMS=cuda,cpu"
        ) from None
    left = [device for device in devices if device not in used]
    if math.prod(sizes.values()) > len(left):
        raise RequestError(
            f"the draft mesh needs {math.prod(sizes.values())} devices and the target leaves {len(left)} of "
            f"{len(devices)}; lower --draft-mesh or --mesh"
        )
    return make_mesh(**sizes, devices=left)


def parse_mesh(text: str) -> dict[str, int]:
    """The arguments of ``make_mesh`` in a text such as "data=2,model=4".

    Raises RequestError for another form or an unknown axis.
    """
    sizes = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+)\s*", part)
        if match is None or match[1] not in AXES or match[1] in sizes:
            raise RequestError(f"mesh {text!r} is no list of axes such as data=2,model=4; axes are {', '.join(AXES)}")
        sizes[match[1]] = int(match[2])
    return sizes


def mesh_of(tree) -> Mesh | None:
    """The mesh that the arrays of a pytree are placed on, or None; the first array decides."""
    placed = getattr(next(iter(jax.tree.leaves(tree)), None), "sharding", None)
    mesh = placed.mesh if isinstance(placed, NamedSharding) else None
    return mesh if isinstance(mesh, Mesh) else None


def are_apart(tree, other) -> bool:
    """Whether a pytree's arrays are on a mesh that has no device of the arrays of ``other``."""
    mesh, placed = mesh_of(tree), getattr(next(iter(jax.tree.leaves(other)), None), "sharding", None)
    return mesh is not None and placed is not None and placed.device_set.isdisjoint(mesh.devices.flat)


def use_mesh(mesh: Mesh | None):
    """A context in which functions are traced for ``mesh``; None changes nothing."""
    return nullcontext() if mesh is None else jax.set_mesh(mesh)


def sharding(param: nnx.Param, mesh: Mesh | AbstractMesh | None, rules: Rules = RULES):
    """The sharding of a parameter: on a mesh by ``rules``, without a mesh on the first device.

    An axis whose size the mesh does not divide is replicated.
    """
    if mesh is None:
        return jax.sharding.SingleDeviceSharding(jax.devices()[0])
    names = [rules.get(axis) for axis in param.axes]
    divides = lambda name, size: name is not None and size % mesh.shape[name] == 0
    spec = PartitionSpec(*[name if divides(name, size) else None for name, size in zip(names, param.shape)])
    return NamedSharding(mesh, spec)


def place(tree, mesh: Mesh | None, *, rows: bool):
    """A pytree of host arrays or local device arrays, on the devices of ``mesh``.

    Args:
      mesh: None stands for the default device.
      rows: whether the first axis of each array is that of the batch's rows. It is split over
        ``data`` if the size of that axis divides the number of rows, and otherwise every device
        holds all rows.
    """
    if mesh is None:
        return jax.device_put(tree)

    def put(x):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        split = rows and x.ndim and x.shape[0] % mesh.shape["data"] == 0
        spec, host = PartitionSpec("data") if split else PartitionSpec(), np.asarray(x)
        return jax.make_array_from_callback(host.shape, NamedSharding(mesh, spec), lambda index: host[index])

    return jax.tree.map(put, tree)


def fetch(tree):
    """The pytree's arrays on every host, as numpy arrays. Waits for the devices."""
    arrays = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
    if all(x.is_fully_addressable or x.is_fully_replicated for x in arrays):
        return jax.device_get(tree)
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(tree, tiled=True)
