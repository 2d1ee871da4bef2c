"""Attention over the committed past and over uncommitted nodes, merged by log-sum-exp.

The mask of the past is a length for each row, so its cost follows the tokens in the cache and not
the capacity. The nodes are few, and a dense mask lets them form any tree. ``models.attend`` has the
same attention by its definition. Only this file and ``cache.py`` know the cache's layout: keys and
values [B, K, T, D].
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ..core.cache import EightBitRows, EightBits, full_dtype, store
from ..kernels.cpu import past_attention
from ..kernels.gpu import attention as attention_kernel
from ..kernels.gpu import cache_write
from ..kernels.gpu.attention import NEVER, Scores
from .rope import rotate

PAST_CHUNK = 128
"""Positions of the past that one iteration reads, on platforms that read the past in a loop."""

_LARGEST_COPY = 1 << 22
"""Bytes that a GPU copies about as fast as it launches a kernel."""


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


def within(mask, positions: jax.Array, row_positions: jax.Array, window: int):
    """The mask, dense or ``Seen``, without rows that are ``window`` or more positions back."""
    if isinstance(mask, Seen):
        return mask.replace(first=positions - window + 1)
    return mask & (row_positions[:, None, :] > positions[:, :, None] - window)


class Bias(struct.PyTreeNode):
    """Numbers that are added to the scores by the distance between row and node (Raffel et al. 2020).

    Every query head has its own key head.

    Attributes:
      by_distance: float32 [H, 2 D + 1], for rows from D positions before a node to D after it. Rows
        farther away have the numbers of D.
      positions: int32 [B, N], the positions of the nodes.
      rows: int32 [B, M], the positions of the uncommitted rows. Row i of the past is at position i.
    """

    by_distance: jax.Array
    positions: jax.Array
    rows: jax.Array

    def to(self, rows: jax.Array) -> jax.Array:
        """The bias float32 [B, H, N, M] of rows at positions int32 [B or 1, M]."""
        most = self.by_distance.shape[1] // 2
        distance = rows[:, None] - self.positions[:, :, None]
        return self.by_distance[:, jnp.clip(distance, -most, most) + most].swapaxes(0, 1)


class Partial(struct.PyTreeNode):
    """The softmax-weighted sum over a part of the rows, not yet normalised.

    Attributes:
      values: float32 [B, K, M, D], the weighted sum.
      top: float32 [B, K, M], the largest score.
      weight: float32 [B, K, M], the sum of the weights.
    """

    values: jax.Array
    top: jax.Array
    weight: jax.Array


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

    On an NVIDIA GPU this is one kernel, where ``kernels.are_usable`` and ``attention_kernel.fits``.

    Args:
      qkv: float32 [B, N, K, G + 2, D], the query heads, the key and the value of each key head. They
        are not rotated yet.
      angles: cosines and sines of the nodes' positions, see ``layers.rotary``.
      rows: keys and values of an earlier call, not committed. They come before the nodes' own.
      dtype: the dtype of the keys and values.
      added: ``sinks`` and ``bias`` of ``attend``.

    The other arguments are those of ``attend``. The attention is [B, N, K * G * D], in float32 or,
    where the kernel may run, in ``dtype``. The keys and values are [B, K, N, D].
    """

    def by_products(qkv, angles, past, length, rows, mask, positions):
        new = rotate_keys(qkv, angles, dtype)
        seen = new if rows is None else join(rows, new)
        return attend(rotate(qkv[..., :-2, :], *angles), past, length, seen, mask, positions, scores, **added), new

    given = qkv, angles, past, length, rows, mask, positions
    plain = all(value is None for value in added.values())
    usable = cache_write.are_usable() and plain and not isinstance(dtype, EightBits)
    if isinstance(mask, Seen) or not (usable and attention_kernel.fits(qkv, past, scores)):
        return by_products(*given)

    def rounded(*given):
        attended, new = by_products(*given)
        return attended.astype(full_dtype(dtype)), new

    in_kernel = partial(attention_kernel.attend, scores=scores)
    return lax.platform_dependent(*given, cuda=in_kernel, default=rounded)


def rotate_keys(qkv: jax.Array, angles, dtype) -> tuple:
    """Rotated keys, and values, each [B, K, N, D] of ``dtype``; ``qkv`` as in ``rotate_and_attend``."""
    k, v = rotate(qkv[..., -2, :], *angles), qkv[..., -1, :]
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
    bias: Bias | None = None,
) -> jax.Array:
    """Attention of N nodes over the cache and over uncommitted rows.

    Args:
      q: [B, N, K, G, D], G query heads for each key head.
      past: keys and values [B, K, T, D] of the cache; None without a cache (training, scoring).
      length: int32 [B], valid positions of the past.
      rows: uncommitted keys and values [B, K, M, D]. The nodes' own rows are the last ones. None for
        attention to the past alone.
      mask: bool [B, N, M] or [N, M], the rows that each node sees; or a ``Seen``; None without rows.
      positions: int32 [B, N], the positions of the nodes.
      scores: its window restricts the past only; the caller restricts the mask, see ``within``.
      sinks: [K * G], for each query head the score of a row without a value, which every node sees
        (Xiao et al. 2024; gpt-oss); or None.
      bias: the bias of the scores, or None.

    Returns float32 [B, N, K * G * D].
    """
    B, N, K, G, D = q.shape
    first = past if rows is None else rows
    assert first is not None  # past or rows, or both
    keys, values = first
    q = (q * scores.scale_of(D)).astype(full_dtype(keys.dtype)).transpose(0, 2, 1, 3, 4)
    flat = q.reshape(B, K, N * G, D)
    if rows is None:
        out = _nothing(flat)
    elif isinstance(mask, Seen):
        out = _attend_seen(q, keys, values, mask, scores.softcap, bias)
    else:
        assert mask is not None  # with rows there is a mask
        mask = jnp.repeat(jnp.broadcast_to(mask, (B, *mask.shape[-2:])), G, 1)[:, None]
        out = _partial(flat, keys, values, mask, scores.softcap, None if bias is None else bias.to(bias.rows))
    if past is not None:
        keys, values = past
        out = _attend_past(out, flat, keys, values, length, jnp.repeat(positions, G, 1), scores, bias)
    if sinks is not None:
        out = _merge(out, _sink(sinks.astype(jnp.float32).reshape(K, 1, G), out))
    out = out.values / out.weight[..., None]
    return out.reshape(B, K, N, G, D).transpose(0, 2, 1, 3, 4).reshape(B, N, K * G * D)


def _nothing(q: jax.Array) -> Partial:
    """The attention of q [B, K, M, D] to no rows."""
    zeros = jnp.zeros(q.shape[:-1])
    return Partial(jnp.zeros(q.shape), zeros + NEVER, zeros)


def _sink(score: jax.Array, like: Partial) -> Partial:
    """The attention to a row of zeros with these scores, [K, 1, G]."""
    top = like.top.reshape(*like.top.shape[:2], -1, score.shape[-1])
    top = jnp.broadcast_to(score, top.shape).reshape(like.top.shape)
    return Partial(jnp.zeros_like(like.values), top, jnp.ones_like(like.weight))


def _attend_seen(q, k, v, seen: Seen, softcap: float | None, bias: Bias | None = None) -> Partial:
    """Attention of q [B, K, N, G, D] over the first rows and the rows of each node's own group."""
    B, K, N, G, D = q.shape
    calls = 0 if seen.inner is None else seen.inner.shape[1] // seen.inner.shape[0]
    split = k.shape[2] - calls * N
    out = _first_rows(q, k[:, :, :split], v[:, :, :split], seen, softcap, bias)
    if seen.inner is None or not calls:
        return out
    g = seen.inner.shape[0]
    by_call = lambda x: x[:, :, split:].reshape(B, K, calls, N // g, g, D)
    grouped = lambda x: by_call(x).swapaxes(2, 3).reshape(B, K * N // g, calls * g, D)
    inner = jnp.repeat(seen.inner, G, 0)
    own = _partial(q.reshape(B, K * N // g, g * G, D), grouped(k), grouped(v), inner, softcap)
    return _merge(out, jax.tree.map(lambda mine, like: mine.reshape(like.shape), own, out))


def _first_rows(q, k, v, seen: Seen, softcap: float | None, bias: Bias | None = None) -> Partial:
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
        return _partial(q.reshape(B, K, size * G, D), k, v, jnp.repeat(mask, G, 1)[:, None], softcap, own)

    first = jnp.int32(0) if seen.first is None else seen.first
    positions = jnp.int32(0) if bias is None else bias.positions
    parts = chunks(q, 2), *(chunks(jnp.broadcast_to(x, (B, N)), 1) for x in (first, seen.limit, positions))
    if count == 1:
        return chunk(jax.tree.map(lambda x: x[0], parts))
    out = jax.lax.map(jax.checkpoint(chunk), parts)  # leaves [count, B, K, size * G, ...]
    join = lambda x: jnp.moveaxis(x, 0, 2).reshape(B, K, count * size * G, *x.shape[4:])
    return jax.tree.map(lambda x: join(x)[:, :, : N * G], out)


def _attend_past(own: Partial, q, k, v, length, positions, scores: Scores, bias: Bias | None = None) -> Partial:
    """Attention over the valid part of the cache, merged with ``own``, the attention over rows.

    On CPU it reads chunks up to the longest row, so unused capacity costs nothing. On other
    platforms it is one masked product, because a loop would wait for the host. Callers there keep
    the capacity close to the content.

    XLA:GPU joins products that have an operand in common. It would copy all keys of the cache, next
    to the keys of the nodes. If the copy costs more than a launch, a barrier keeps the products
    apart.
    """
    in_chunks, at_once = (partial(each, scores=scores, bias=bias) for each in (_past_in_chunks, _past_at_once))
    if bias is None and not isinstance(k, EightBitRows) and past_attention.fits(q, k, scores):
        in_chunks = _past_in_kernel
    if sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(k)) <= _LARGEST_COPY:
        return lax.platform_dependent(own, q, k, v, length, positions, cpu=in_chunks, default=at_once)
    apart = lambda own, q, *given: at_once(own, lax.optimization_barrier(q), *given)
    return lax.platform_dependent(
        own, q, k, v, length, positions, cpu=in_chunks, cuda=apart, rocm=apart, default=at_once
    )


def _past_at_once(own: Partial, q, k, v, length, positions, *, scores: Scores, bias: Bias | None) -> Partial:
    at = jnp.arange(k.shape[2])
    mask = _visible(at, length, positions, scores.window)
    return _merge(own, _partial(q, k, v, mask, scores.softcap, None if bias is None else bias.to(at[None])))


def _past_in_kernel(own: Partial, q, k, v, length, positions) -> Partial:
    return Partial(*past_attention.attend((own.values, own.top, own.weight), q, k, v, length))


def _past_in_chunks(own: Partial, q, k, v, length, positions, *, scores: Scores, bias: Bias | None) -> Partial:
    size, window = min(PAST_CHUNK, k.shape[2]), scores.window

    def read(i, out):
        # The last chunk may overlap the one before. ``fresh`` masks the overlap.
        start = jnp.minimum(i * size, k.shape[2] - size)
        at = start + jnp.arange(size)
        fresh = (at >= i * size) & _visible(at, length, positions, window)
        keys, values = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, size, axis=2), (k, v))
        added = None if bias is None else bias.to(at[None])
        return _merge(out, _partial(q, keys, values, fresh, scores.softcap, added))

    first = 0 if window is None else jnp.maximum(jnp.min(length) - window + 1, 0) // size
    last = (jnp.max(length) + size - 1) // size
    return lax.fori_loop(first, last, read, own)


def _visible(at: jax.Array, length: jax.Array, positions: jax.Array, window: int | None) -> jax.Array:
    """Bool [B, 1, M or 1, T], the positions ``at`` [T] of the past that each query sees."""
    seen = (at < length[:, None])[:, None, None]
    if window is not None:
        seen = seen & (at > positions[:, :, None] - window)[:, None]
    return seen


def _partial(q, k, v, mask, softcap: float | None, bias: jax.Array | None = None) -> Partial:
    """Attention of q [B, K, M, D] over k and v [B, K, T, D], with a bias [B, K, M, T] of the scores or None.

    Scales multiply scores and weights, not vectors.
    """
    (k, key_scales), (v, value_scales) = _numbers(k), _numbers(v)
    scores = jnp.einsum("bkmd,bktd->bkmt", q, k.astype(q.dtype), preferred_element_type=jnp.float32)
    if key_scales is not None:
        scores = scores * key_scales
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    scores = jnp.where(mask, scores, NEVER)
    top = lax.stop_gradient(scores.max(-1))  # the result does not depend on this number
    weights = jnp.exp(scores - top[..., None])
    scaled = weights
    if value_scales is not None:
        scaled, v = weights * value_scales, v.astype(q.dtype)
    values = jnp.einsum("bkmt,bktd->bkmd", scaled.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return Partial(values, top, weights.sum(-1))


def _numbers(rows: jax.Array | EightBitRows) -> tuple[jax.Array, jax.Array | None]:
    """Keys or values without their scales, and the scales float32 [B, K, 1, T]; None without scales."""
    if not isinstance(rows, EightBitRows):
        return rows, None
    return rows.values, rows.scales.swapaxes(2, 3).astype(jnp.float32)


def _merge(a: Partial, b: Partial) -> Partial:
    top = jnp.maximum(a.top, b.top)
    scale_a, scale_b = jnp.exp(a.top - top), jnp.exp(b.top - top)
    values = a.values * scale_a[..., None] + b.values * scale_b[..., None]
    return Partial(values, top, a.weight * scale_a + b.weight * scale_b)
