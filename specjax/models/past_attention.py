"""Attention over the committed past, merged with the attention over the nodes' rows."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from ..core.blocks import is_blocks, map_arrays
from ..kernels.gpu.attention import Scores
from .partial_attention import Partial, attend_to_part, merge
from .relative_positions import Bias, Slopes

PAST_CHUNK = 128
"""Positions of the past that one iteration reads, on platforms that read the past in a loop."""

_LARGEST_COPY = 1 << 22
"""Bytes that a GPU copies about as fast as it launches a kernel."""


def attend_past(own: Partial, q, k, v, length, positions, scores: Scores, bias: Bias | Slopes | None = None) -> Partial:
    """Attention over the valid part of the cache, merged with ``own``, the attention over rows.

    On CPU it reads chunks up to the longest row, so unused capacity costs nothing. On other
    platforms it is one masked product, because a loop would wait for the host. Callers there keep
    the capacity close to the content. Blocks are read in chunks on all platforms, because one
    product would need a copy of the whole past. On TPU a chunk is a block: XLA:TPU moves several to
    join them, which takes longer than the products.

    XLA:GPU joins products that have an operand in common. It would copy all keys of the cache, next
    to the keys of the nodes. If the copy costs more than a launch, a barrier keeps the products
    apart.
    """
    in_chunks, at_once = (partial(each, scores=scores, bias=bias) for each in (_past_in_chunks, _past_at_once))
    first = jax.tree.leaves(k, is_leaf=is_blocks)[0]
    if is_blocks(first):
        one_by_one = partial(in_chunks, most=first.block)
        return lax.platform_dependent(own, q, k, v, length, positions, tpu=one_by_one, default=in_chunks)
    if sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(k)) <= _LARGEST_COPY:
        return lax.platform_dependent(own, q, k, v, length, positions, cpu=in_chunks, default=at_once)

    def apart(own, q, *operands):
        return at_once(own, lax.optimization_barrier(q), *operands)

    return lax.platform_dependent(
        own, q, k, v, length, positions, cpu=in_chunks, cuda=apart, rocm=apart, default=at_once
    )


def _past_at_once(own: Partial, q, k, v, length, positions, *, scores: Scores, bias: Bias | Slopes | None) -> Partial:
    at = jnp.arange(k.shape[2])
    mask = _visible(at, length, scores.first(positions))
    return merge(own, attend_to_part(q, k, v, mask, scores.softcap, None if bias is None else bias.to(at[None])))


def _past_in_chunks(
    own: Partial,
    q,
    k,
    v,
    length,
    positions,
    *,
    scores: Scores,
    bias: Bias | Slopes | None,
    most: int | None = None,
) -> Partial:
    size = min(most or PAST_CHUNK, k.shape[2])
    oldest = scores.first(positions)

    def read_chunk(i, out):
        # The last chunk may overlap the one before. ``fresh`` masks the overlap.
        start = jnp.minimum(i * size, k.shape[2] - size)
        at = start + jnp.arange(size)
        fresh = (at >= i * size) & _visible(at, length, oldest)
        keys, values = map_arrays(lambda leaf: _positions(leaf, start, size), (k, v))
        added = None if bias is None else bias.to(at[None])
        return merge(out, attend_to_part(q, keys, values, fresh, scores.softcap, added))

    first = scores.first(jnp.min(length))
    first = 0 if first is None else jnp.maximum(first, 0) // size
    last = (jnp.max(length) + size - 1) // size
    return lax.fori_loop(first, last, read_chunk, own)


def _positions(leaf, start, size: int) -> jax.Array:
    """The ``size`` positions from ``start`` on of an array of the cache, [B, K, size, D]."""
    return leaf.read(start, size) if is_blocks(leaf) else lax.dynamic_slice_in_dim(leaf, start, size, axis=2)


def _visible(at: jax.Array, length: jax.Array, first: jax.Array | None) -> jax.Array:
    """Bool [B, 1, M or 1, T], the positions ``at`` [T] that each query sees, from ``first`` on."""
    visible = (at < length[:, None])[:, None, None]
    if first is not None:
        visible = visible & (at >= first[:, :, None])[:, None]
    return visible
