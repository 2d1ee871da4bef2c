"""Attention over the committed past and over uncommitted nodes, merged by log-sum-exp.

The mask of the past is a length for each row, so its cost follows the tokens in the cache and not
the capacity. The nodes are few, and a dense mask lets them form any tree. ``models.attend`` has the
same attention by its definition. Only files of attention and ``cache.py`` know the cache's layout:
keys and values [B, K, T, D], or in blocks.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ..core.blocks import is_blocks
from ..core.stored_rows import EightBits, HalfRows, Halves, full_dtype, store
from ..kernels.cpu import attention as cpu_kernel
from ..kernels.gpu import attention as attention_kernel
from ..kernels.gpu import cache_write
from ..kernels.gpu.attention import Scores
from .partial_attention import Partial, attend_to_nothing, attend_to_part, attend_to_sink, merge
from .past_attention import PAST_CHUNK, attend_past
from .relative_positions import Bias, Slopes
from .rope import rotate


class Seen(struct.PyTreeNode):
    """A mask for training, stored as intervals instead of a matrix of nodes by rows.

    Training has no cache. With this mask attention goes through the nodes in chunks, so the memory
    of a step grows linearly with the length of a text.

    The first rows are at positions 0, 1, ... A node sees the first rows from position ``first`` up
    to ``limit``, excluded. Further rows come from c calls with N nodes each. The nodes form groups
    of g consecutive nodes. Among further rows a node sees only rows of its own group, as ``inner``
    allows.

    Attributes:
      limit, first: int32, broadcastable to [B, N]. ``first`` None stands for the beginning.
      inner: bool [g, c * g]; None without further rows.
    """

    limit: jax.Array
    first: jax.Array | None = None
    inner: jax.Array | None = None

    @staticmethod
    def causal(nodes: int) -> "Seen":
        """The mask with which each node sees its own row and the rows before, a lower triangle."""
        return Seen(jnp.arange(1, nodes + 1)[None])


def within(mask, first: jax.Array, row_positions: jax.Array):
    """The mask, dense or ``Seen``, without rows before each node's position ``first`` [B, N]."""
    if isinstance(mask, Seen):
        return mask.replace(first=first)
    return mask & (row_positions[:, None, :] >= first[:, :, None])


def rotate_and_attend(
    qkv: jax.Array,
    angles,
    past: tuple | None,
    length,
    rows: tuple | None,
    mask,
    positions,
    scores: Scores,
    dtype,
    **added,
) -> tuple[jax.Array, tuple]:
    """The attention of a layer to its past and its rows, and the nodes' own keys and values.

    On an NVIDIA GPU this is one kernel, where ``kernels.gpu.cache_write.are_usable`` and
    ``kernels.gpu.attention.fits``.

    Args:
      qkv: float32 [B, N, K, G + 2, D], the query heads, the key and the value of each key head.
        They are not rotated yet.
      angles: cosines and sines of the nodes' positions, see ``rope.rotary``.
      rows: keys and values of an earlier call, not committed. They come before the nodes' own.
      added: ``sinks`` and ``bias`` of ``attend``.

    The other arguments are those of ``attend``. The attention is [B, N, K * G * D], in float32 or,
    where the kernel may run, in ``dtype``. The keys and values are [B, K, N, D].
    """

    def by_products(qkv, angles, past, length, rows, mask, positions):
        new = rotate_keys(qkv, angles, dtype)
        rows = new if rows is None else join(rows, new)
        return attend(rotate(qkv[..., :-2, :], *angles), past, length, rows, mask, positions, scores, **added), new

    operands = qkv, angles, past, length, rows, mask, positions
    plain = all(value is None for value in added.values())
    usable = cache_write.are_usable() and plain and not isinstance(dtype, EightBits | Halves)
    if isinstance(mask, Seen) or not (usable and attention_kernel.fits(qkv, past, scores)):
        return by_products(*operands)

    def rounded(*operands):
        attended, new = by_products(*operands)
        return attended.astype(full_dtype(dtype)), new

    def in_kernel(qkv, angles, past, *others):
        table = past[0].table if is_blocks(past[0]) else None
        past = past if table is None else tuple(each.pool for each in past)
        return attention_kernel.attend(qkv, angles, past, *others, table, scores=scores)

    return lax.platform_dependent(*operands, cuda=in_kernel, default=rounded)


def rotate_keys(qkv: jax.Array, angles, dtype) -> tuple:
    """Rotated keys, and values, each [B, K, N, D] of ``dtype``.

    ``qkv`` is as in ``rotate_and_attend``.
    """
    k = rotate(qkv[..., -2, :], *angles)
    v = qkv[..., -1, :]
    return store(k.transpose(0, 2, 1, 3), dtype), store(v.transpose(0, 2, 1, 3), dtype)


def join(rows: tuple, new: tuple) -> tuple:
    """Arrays of rows [B, K, M, D], keys and values or others, followed by new ones."""
    return jax.tree.map(lambda old, new: jnp.concatenate([old, new], 2), tuple(rows), tuple(new))


def attend(
    q: jax.Array,
    past: tuple | None,
    length: jax.Array,
    rows: tuple | None,
    mask: jax.Array | Seen | None,
    positions: jax.Array,
    scores: Scores,
    sinks: jax.Array | None = None,
    bias: Bias | Slopes | None = None,
) -> jax.Array:
    """Attention of N nodes over the cache and over uncommitted rows.

    Args:
      q: [B, N, K, G, D], G query heads for each key head.
      past: keys and values [B, K, T, D] of the cache, or ``Blocks``; None without a cache, in
        training and in scoring.
      length: int32 [B], valid positions of the past.
      rows: uncommitted keys and values [B, K, M, D]. The nodes' own rows are the last ones. None
        for attention to the past alone.
      mask: bool [B, N, M] or [N, M], the rows that each node sees; or a ``Seen``; None without
        rows.
      positions: int32 [B, N], the positions of the nodes.
      scores: its window or chunk restricts the past only; the caller restricts the mask, see
        ``within``.
      sinks: [K * G], for each query head the score of a row without a value, which every node sees
        (Xiao et al. 2024; gpt-oss); or None.

    Returns float32 [B, N, K * G * D].
    """
    first = past if rows is None else rows
    assert first is not None  # past or rows, or both
    q = (q * scores.scale_of(q.shape[-1])).astype(full_dtype(first[0].dtype))
    in_parts = partial(_attend_in_parts, scores=scores, bias=bias)
    operands = q, past, length, rows, mask, positions, sinks
    dense = rows is not None and isinstance(mask, jax.Array) and sinks is None and bias is None
    if past is None or not dense or not cpu_kernel.fits(q, _arrays(past)[0], scores):
        return in_parts(*operands)

    def in_kernel(q, past, length, rows, mask, *_):
        mask = jnp.broadcast_to(mask, (*q.shape[:2], mask.shape[-1]))
        past, rows = _arrays(past), _arrays(rows)
        if is_blocks(past[0]):
            return cpu_kernel.attend(q, tuple(each.pool for each in past), length, rows, mask, past[0].table)
        return cpu_kernel.attend(q, past, length, rows, mask)

    return lax.platform_dependent(*operands, cpu=in_kernel, default=in_parts)


def _arrays(pair: tuple) -> tuple:
    """Keys and values, with the bits of ``HalfRows`` in their place."""
    return tuple(each.bits if isinstance(each, HalfRows) else each for each in pair)


def _attend_in_parts(q, past, length, rows, mask, positions, sinks, *, scores: Scores, bias) -> jax.Array:
    """``attend`` for scaled queries: a part for the rows, the past and the sinks each."""
    # 1. The queries of a key head together.
    B, N, K, G, D = q.shape
    q = q.transpose(0, 2, 1, 3, 4)
    flat = q.reshape(B, K, N * G, D)

    # 2. The rows, the past and the sinks, one after another.
    if rows is None:
        out = attend_to_nothing(flat)
    elif isinstance(mask, Seen):
        keys, values = rows
        out = _attend_to_intervals(q, keys, values, mask, scores.softcap, bias)
    else:
        assert mask is not None  # with rows there is a mask
        mask = jnp.repeat(jnp.broadcast_to(mask, (B, *mask.shape[-2:])), G, 1)[:, None]
        keys, values = rows
        out = attend_to_part(flat, keys, values, mask, scores.softcap, None if bias is None else bias.to(bias.rows))
    if past is not None:
        keys, values = past
        out = attend_past(out, flat, keys, values, length, jnp.repeat(positions, G, 1), scores, bias)
    if sinks is not None:
        out = merge(out, attend_to_sink(sinks.astype(jnp.float32).reshape(K, 1, G), out))

    # 3. The sum, normalised.
    out = out.values / out.weight[..., None]
    return out.reshape(B, K, N, G, D).transpose(0, 2, 1, 3, 4).reshape(B, N, K * G * D)


def _attend_to_intervals(q, k, v, mask: Seen, softcap: float | None, bias: Bias | Slopes | None = None) -> Partial:
    """Attention of q [B, K, N, G, D] over the first rows and the rows of each node's own group."""
    B, K, N, G, D = q.shape
    calls = 0 if mask.inner is None else mask.inner.shape[1] // mask.inner.shape[0]
    split = k.shape[2] - calls * N
    out = _first_rows(q, k[:, :, :split], v[:, :, :split], mask, softcap, bias)
    if mask.inner is None or not calls:
        return out
    g = mask.inner.shape[0]

    def grouped(x):
        by_call = x[:, :, split:].reshape(B, K, calls, N // g, g, D)
        return by_call.swapaxes(2, 3).reshape(B, K * N // g, calls * g, D)

    inner = jnp.repeat(mask.inner, G, 0)
    own = attend_to_part(q.reshape(B, K * N // g, g * G, D), grouped(k), grouped(v), inner, softcap)
    return merge(out, jax.tree.map(lambda mine, like: mine.reshape(like.shape), own, out))


def _first_rows(q, k, v, interval: Seen, softcap: float | None, bias: Bias | Slopes | None = None) -> Partial:
    """Attention over the first rows, in chunks of nodes.

    The backward pass computes the scores of each chunk again.
    """
    B, K, N, G, D = q.shape
    size = min(N, PAST_CHUNK)
    count = -(-N // size)

    def chunks(x, axis):  # to [count, ..., size, ...]; padding sees nothing and is cut off at the end
        x = jnp.pad(x, [(0, count * size - N if i == axis else 0) for i in range(x.ndim)])
        return jnp.moveaxis(x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :]), axis, 0)

    def chunk(part) -> Partial:
        q, first, limit, positions = part
        at = jnp.arange(k.shape[2])
        mask = (at >= first[..., None]) & (at < limit[..., None])
        own = None if bias is None else bias.replace(positions=positions).to(at[None])
        return attend_to_part(q.reshape(B, K, size * G, D), k, v, jnp.repeat(mask, G, 1)[:, None], softcap, own)

    first = jnp.int32(0) if interval.first is None else interval.first
    positions = jnp.int32(0) if bias is None else bias.positions
    parts = chunks(q, 2), *(chunks(jnp.broadcast_to(x, (B, N)), 1) for x in (first, interval.limit, positions))
    if count == 1:
        return chunk(jax.tree.map(lambda x: x[0], parts))
    out = jax.lax.map(jax.checkpoint(chunk), parts)  # leaves [count, B, K, size * G, ...]

    def join_chunks(x):
        return jnp.moveaxis(x, 0, 2).reshape(B, K, count * size * G, *x.shape[4:])[:, :, : N * G]

    return jax.tree.map(join_chunks, out)
