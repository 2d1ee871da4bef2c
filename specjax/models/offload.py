"""Layers whose weights stay in the host's memory, and are copied to the device for each forward.

A device that holds less than the target reads every layer over its link to the host once a forward.
A forward that scores a tree of drafted tokens pays for that link once (SpecInfer, Miao et al. 2024,
offloading-based inference).

    link       [ layer 1 ][ layer 2 ][ layer 3 ]
    device     [ layer 0 ][ layer 1 ][ layer 2 ]     the next layer is copied while a layer runs

No copy depends on a computation by itself, so XLA would start all copies at once. Each copy here
waits for the input of the layer before.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from ..errors import RequestError

HOST = "pinned_host"
"""JAX's name of the memory of the host from which devices copy."""

FETCH = "fetch_weight"
"""The name of the function in traced programs whose result is its first argument, on the device."""

M = TypeVar("M", bound=nnx.Module)
T = TypeVar("T")


def to_host(tree: T) -> T:
    """The pytree with its arrays in the memory of the host."""
    return jax.tree.map(lambda x: jax.device_put(x, x.sharding.with_memory_kind(HOST)), tree)


def is_streamed(module) -> bool:
    """Whether a module, or any pytree of arrays, has weights in the memory of the host."""
    return any(jax.typeof(x).memory_space == jax.memory.Space.Host for x in jax.tree.leaves(module))


def check_streaming(mesh: jax.sharding.Mesh | None) -> None:
    """Raises RequestError for devices without memory beside the host's, and for several devices."""
    device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    if device.platform == "cpu":
        raise RequestError(
            "offload keeps layers in the host's memory, and a CPU has no other memory to copy them to; "
            "leave it out, or run on a TPU or GPU"
        )
    if mesh is not None and mesh.size > 1:
        raise RequestError("offload copies layers to one device, and the mesh has several; leave out offload or mesh")


def fetch(layer: M, after: jax.Array) -> M:
    """The layer with all its weights on the device; the layer itself if they are there already.

    ``after``: an array of the traced program before which no copy starts.
    """
    if not is_streamed(layer):
        return layer
    return jax.tree.map(lambda weight: fetch_weight(weight, after), layer)


@jax.jit
def fetch_weight(weight: jax.Array, after: jax.Array) -> jax.Array:
    """The weight [rows, ...] on the device. Its copy starts after ``after`` is known."""
    return lax.platform_dependent(weight, after, tpu=copy_in_halves, default=_copy)


def _copy(weight: jax.Array, after: jax.Array) -> jax.Array:
    return _to_device(lax.optimization_barrier((weight, after))[0])


def copy_in_halves(weight: jax.Array, after: jax.Array) -> jax.Array:
    """The weight as two slices of its rows, whose numbers XLA cannot know before ``after``.

    XLA for TPU removes a barrier before it schedules copies. Vectors are copied without a slice.
    """
    if weight.ndim < 2 or len(weight) % 2:
        return _copy(weight, after)
    first = after.ravel()[0]
    zero = (jnp.isnan(first) if jnp.issubdtype(first.dtype, jnp.floating) else first < 0).astype(jnp.int32)
    halves = weight.reshape(2, len(weight) // 2, *weight.shape[1:])
    return jnp.concatenate([_to_device(lax.dynamic_index_in_dim(halves, zero + k, 0, False)) for k in (0, 1)])


def _to_device(weight: jax.Array) -> jax.Array:
    return jax.device_put(weight, jax.memory.Space.Device)
