"""Norms of rows on CPU, as a kernel that LLVM compiles for this processor.

XLA:CPU adds the squares of a row one by one, and for some numbers of rows in another order. With
the kernel a row's norm does not depend on other rows. ``norms_llvm`` has its code.
"""

import jax
import jax.numpy as jnp
import numpy as np

from .product import is_installed


def fits(x: jax.Array) -> bool:
    """Whether the kernel computes norms of x [..., E].

    XLA cannot split a kernel over devices, so a mesh of several devices has none.
    """
    return x.shape[-1] % 16 == 0 and x.size > 0 and jax.sharding.get_abstract_mesh().size <= 1 and is_installed()


def norms(x: jax.Array, weight: jax.Array, eps: float, centred: bool) -> jax.Array:
    """(x - m) / sqrt(mean((x - m)^2) + eps) * weight, over the last axis of float32 x [..., E].

    Args:
      weight: [E], which the kernel reads as float32 or bfloat16.
      centred: whether m is the mean of x, else m is 0.
    """
    from . import llvm, norms_llvm  # need llvmlite

    weight = weight if weight.dtype == jnp.bfloat16 else weight.astype(jnp.float32)
    name = llvm.register(norms_llvm.row_norms, centred, weight.dtype == jnp.bfloat16)
    rows = x.reshape(-1, x.shape[-1])
    call = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(rows.shape, jnp.float32), vmap_method="sequential")
    return call(rows, weight, eps=int(np.float32(eps).view(np.int32))).reshape(x.shape)
