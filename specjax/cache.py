"""The key/value cache, and the only functions that write it.

Rows are left-aligned with a length of their own. A forward never writes: the rows of a verified tree are gathered along the
accepted path and written here, once per layer. A position from ``length`` on may hold anything; it is masked and will be
overwritten.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from .models.config import ModelConfig


@struct.dataclass
class KVCache:
    """Keys and values of the committed tokens.

    Attributes:
      layers: for each layer a pair of arrays [B, K, T, D].
      length: int32 [B], committed tokens of each row.
    """

    layers: tuple
    length: jax.Array

    @property
    def capacity(self) -> int:
        return self.layers[0][0].shape[2]


def empty(config: ModelConfig, batch: int, capacity: int, dtype) -> KVCache:
    """A cache for ``capacity`` positions. Leave room for one path beyond the last token: writes must not be clamped."""
    shape = (batch, config.num_kv_heads, capacity, config.head_dim)
    layers = tuple((jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(config.num_layers))
    return KVCache(layers, jnp.zeros(batch, jnp.int32))


def commit(cache: KVCache, rows: tuple, path: jax.Array | None, start: jax.Array, length: jax.Array) -> KVCache:
    """Writes the rows of a path and sets the new length.

    Args:
      rows: for each layer keys and values [B, K, N, D], as a forward returns them.
      path: int32 [B, P], the nodes whose rows are kept, in order; None for all as they stand (a chain). Entries beyond the accepted
        part are written too, and lie beyond ``length``.
      start: int32 [B], position of the first.
      length: int32 [B], the new lengths. ``start + P`` must not exceed the capacity.
    """

    def kept(leaf):
        return leaf if path is None else jnp.take_along_axis(leaf, path[:, None, :, None], axis=2)

    layers = tuple((_write(k, kept(new_k), start), _write(v, kept(new_v), start)) for (k, v), (new_k, new_v) in zip(cache.layers, rows))
    return KVCache(layers, length)


def _write(leaf: jax.Array, rows: jax.Array, start: jax.Array) -> jax.Array:
    """One slice per batch row, in a loop: a vectorised write becomes a scatter, for which XLA copies the cache."""

    def row(b, leaf):
        return lax.dynamic_update_slice(leaf, lax.dynamic_slice_in_dim(rows, b, 1).astype(leaf.dtype), (b, 0, start[b], 0))

    return row(0, leaf) if leaf.shape[0] == 1 else lax.fori_loop(0, leaf.shape[0], row, leaf)
