"""Attention of few nodes on CPU, as a kernel that LLVM compiles for this processor.

XLA:CPU reads the past in a loop of small steps, whose start costs a small model more than their
work. Its sums over the rows of a tree also depend on the number of nodes. ``attention_llvm`` has
the kernel's code.
"""

import jax
import jax.numpy as jnp

from ..gpu.attention import Scores
from .processor import matrix_extensions
from .product import chunks_of, is_installed, threads

_MOST = 64
"""Nodes. XLA multiplies more of them faster than the kernel does."""

_CHUNK = 1 << 18
"""Multiplications of a chunk, which take a core some ten microseconds."""


def fits(q: jax.Array, k: jax.Array, scores: Scores) -> bool:
    """Whether the kernel computes attention of q [B, N, K, G, D] over keys k [B, K, T, D].

    XLA cannot split a kernel over devices, so a mesh of several devices has none.
    """
    return (
        q.shape[1] <= _MOST
        and q.dtype == jnp.float32
        and k.dtype in (jnp.float32, jnp.uint16)
        and k.shape[2] >= 16
        and k.shape[3] % 16 == 0
        and scores.window is None
        and scores.chunk is None
        and scores.softcap is None
        and jax.sharding.get_abstract_mesh().size <= 1
        and is_installed()
    )


def attend(
    q: jax.Array, past: tuple, length: jax.Array, rows: tuple, mask: jax.Array, table: jax.Array | None = None
) -> jax.Array:
    """Attention over the valid past, and then over rows; float32 [B, N, K * G * D].

    A node's sums add the positions that it sees in the order of the text. They depend neither on
    other nodes, nor on the capacity T, nor on whether an ancestor lies in the past or among the
    rows.

    Args:
      q: float32 [B, N, K, G, D], scaled.
      past: keys and values, float32 [B, K, T, D], or uint16, the bits of bfloat16; with a table
        those of all blocks, [blocks, K, S, D], where S is a multiple of 16.
      length: int32 [B].
      rows: keys and values [B, K, M, D] of the same dtype; ancestors come before their descendants.
      mask: bool [B, N, M], the rows that each node sees.
      table: int32 [B, T / S], the block of each S positions; or None.
    """
    from . import attention_llvm, llvm  # need llvmlite

    B, N, K, G, D = q.shape
    fill = -mask.shape[-1] % llvm.LANES
    keys, values = (jnp.pad(each, [(0, 0), (0, 0), (0, fill), (0, 0)]) for each in rows)
    mask = jnp.pad(mask.astype(jnp.uint8), [(0, 0), (0, 0), (0, fill)])
    wide = "avx512f" in matrix_extensions()
    block = None if table is None else past[0].shape[2]
    halves = keys.dtype == jnp.uint16
    name = llvm.register(attention_llvm.node_attention, D, threads() - 1, wide, block, halves)
    groups = B * K * -(-N * G // attention_llvm.TOGETHER)
    T = past[0].shape[2] if table is None else table.shape[1] * past[0].shape[2]
    work = q.size * (T + keys.shape[2])
    call = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(q.shape, jnp.float32), vmap_method="sequential")
    operands = q, *past, length, keys, values, mask, *([] if table is None else [table])
    attended = call(*operands, chunks=chunks_of(groups, work, _CHUNK))
    return attended.reshape(B, N, K * G * D)
