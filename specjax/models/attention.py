"""Attention in two parts, merged by their log-sum-exp: the committed past, and the nodes that are
not committed yet.

The past needs only a length per row, so that its cost follows the tokens in the cache, not the
capacity. The nodes are few, and a dense mask gives them any tree. Only this file and ``cache.py``
know the cache's layout: keys and values [B, K, T, D].
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

PAST_CHUNK = 128
"""Positions of the past that one iteration reads, on platforms that read the past in a loop."""

_NEVER = -1e30  # finite, because an empty past must not give NaN


@struct.dataclass
class Seen:
    """A mask without a matrix of nodes by rows, for training, where there is no cache.

    Attention goes by chunks of nodes, so that the memory of a step grows linearly with the length
    of a text.

    The first rows stand at positions 0, 1, ... A node sees the rows from ``first`` on and before
    ``limit``. Further rows come in calls of N, one for each node. A node sees the rows of its own
    group of g consecutive nodes that ``inner`` allows.

    Attributes:
      limit, first: int32, broadcastable to [B, N]. ``first`` None means the beginning.
      inner: bool [g, c * g] for c calls and groups of g nodes; None without further rows.
    """

    limit: jax.Array
    first: jax.Array | None = None
    inner: jax.Array | None = None

    @staticmethod
    def causal(nodes: int) -> "Seen":
        """Each node sees the rows up to its own, as with a lower triangle."""
        return Seen(jnp.arange(1, nodes + 1)[None])


def within(mask, positions: jax.Array, row_positions: jax.Array, window: int):
    """The mask, dense or ``Seen``, without the rows that are ``window`` or more positions back."""
    if isinstance(mask, Seen):
        return mask.replace(first=positions - window + 1)
    return mask & (row_positions[:, None, :] > positions[:, :, None] - window)


@struct.dataclass
class Partial:
    """An unnormalised softmax-weighted sum: values float32 [B, K, M, D], largest score and sum of
    weights [B, K, M].
    """

    values: jax.Array
    top: jax.Array
    weight: jax.Array


def attend(
    q: jax.Array,
    past: tuple | None,
    length: jax.Array,
    rows: tuple,
    mask: jax.Array | Seen,
    positions: jax.Array,
    window: int | None,
) -> jax.Array:
    """Attention of N nodes over the cache and over uncommitted rows.

    Args:
      q: [B, N, K, G, D], G query heads to a key head.
      past: keys and values [B, K, T, D] of the cache, or None without a cache (training, scoring).
      length: int32 [B], valid positions of the past.
      rows: uncommitted keys and values [B, K, M, D], the nodes' own last.
      mask: bool [B, N, M] or [N, M], the rows that each node sees; or the same as ``Seen``.
      positions: int32 [B, N] of the nodes.
      window: how many positions back a node sees, its own included; None for all. It restricts the
        past only: the caller restricts the mask.

    Returns float32 [B, N, K * G * D].
    """
    B, N, K, G, D = q.shape
    q = (q * D**-0.5).astype(rows[0].dtype).transpose(0, 2, 1, 3, 4)
    flat = q.reshape(B, K, N * G, D)
    if isinstance(mask, Seen):
        out = _attend_seen(q, *rows, mask)
    else:
        out = _partial(flat, *rows, jnp.repeat(jnp.broadcast_to(mask, (B, *mask.shape[-2:])), G, 1)[:, None])
    if past is not None:
        out = _merge(out, _attend_past(flat, *past, length, jnp.repeat(positions, G, 1), window))
    out = out.values / out.weight[..., None]
    return out.reshape(B, K, N, G, D).transpose(0, 2, 1, 3, 4).reshape(B, N, K * G * D)


def _attend_seen(q, k, v, seen: Seen) -> Partial:
    """Attention over the first rows and over the rows of each node's own group; q is [B, K, N, G,
    D].
    """
    B, K, N, G, D = q.shape
    calls = 0 if seen.inner is None else seen.inner.shape[1] // seen.inner.shape[0]
    split = k.shape[2] - calls * N
    out = _first_rows(q, k[:, :, :split], v[:, :, :split], seen)
    if not calls:
        return out
    g = seen.inner.shape[0]
    grouped = lambda x: (
        x[:, :, split:].reshape(B, K, calls, N // g, g, D).swapaxes(2, 3).reshape(B, K * N // g, calls * g, D)
    )
    own = _partial(q.reshape(B, K * N // g, g * G, D), grouped(k), grouped(v), jnp.repeat(seen.inner, G, 0))
    return _merge(out, jax.tree.map(lambda mine, like: mine.reshape(like.shape), own, out))


def _first_rows(q, k, v, seen: Seen) -> Partial:
    """Attention over the first rows, in chunks of nodes.

    The gradient computes the scores of a chunk again.
    """
    B, K, N, G, D = q.shape
    size = min(N, PAST_CHUNK)
    count = -(-N // size)

    def chunks(x, axis):  # to [count, ..., size, ...]; padded nodes see nothing and are cut off again
        x = jnp.pad(x, [(0, count * size - N if i == axis else 0) for i in range(x.ndim)])
        return jnp.moveaxis(x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :]), axis, 0)

    def chunk(part) -> Partial:
        q, first, limit = part
        at = jnp.arange(k.shape[2])
        mask = (at >= first[..., None]) & (at < limit[..., None])
        return _partial(q.reshape(B, K, size * G, D), k, v, jnp.repeat(mask, G, 1)[:, None])

    first = jnp.int32(0) if seen.first is None else seen.first
    parts = chunks(q, 2), *(chunks(jnp.broadcast_to(x, (B, N)), 1) for x in (first, seen.limit))
    if count == 1:
        return chunk(jax.tree.map(lambda x: x[0], parts))
    out = jax.lax.map(jax.checkpoint(chunk), parts)  # leaves [count, B, K, size * G, ...]
    return jax.tree.map(
        lambda x: jnp.moveaxis(x, 0, 2).reshape(B, K, count * size * G, *x.shape[4:])[:, :, : N * G], out
    )


def _attend_past(q, k, v, length, positions, window) -> Partial:
    """Attention over the valid part of the cache.

    On CPU it reads chunks up to the longest row, so that capacity costs nothing. Elsewhere it is
    one masked product, because a loop would wait for the host; callers keep the capacity near the
    content by buckets.
    """
    return lax.platform_dependent(
        q, k, v, length, positions,
        cpu=lambda *args: _past_in_chunks(*args, window),
        default=lambda *args: _past_at_once(*args, window),
    )  # fmt: skip


def _past_at_once(q, k, v, length, positions, window) -> Partial:
    return _partial(q, k, v, _visible(jnp.arange(k.shape[2]), length, positions, window))


def _past_in_chunks(q, k, v, length, positions, window) -> Partial:
    size = min(PAST_CHUNK, k.shape[2])

    def read(i, out):
        start = jnp.minimum(
            i * size, k.shape[2] - size
        )  # the last chunk may overlap the one before; ``fresh`` masks the overlap
        at = start + jnp.arange(size)
        fresh = (at >= i * size) & _visible(at, length, positions, window)
        part = lambda leaf: lax.dynamic_slice_in_dim(leaf, start, size, axis=2)
        return _merge(out, _partial(q, part(k), part(v), fresh))

    first = 0 if window is None else jnp.maximum(jnp.min(length) - window + 1, 0) // size
    last = (jnp.max(length) + size - 1) // size
    nothing = Partial(jnp.zeros(q.shape, jnp.float32), jnp.full(q.shape[:-1], _NEVER), jnp.zeros(q.shape[:-1]))
    return lax.fori_loop(first, last, read, nothing)


def _visible(at: jax.Array, length: jax.Array, positions: jax.Array, window: int | None) -> jax.Array:
    """Bool [B, 1, M or 1, T], which positions ``at`` [T] of the past a query sees."""
    seen = (at < length[:, None])[:, None, None]
    if window is not None:
        seen = seen & (at > positions[:, :, None] - window)[:, None]
    return seen


def _partial(q, k, v, mask) -> Partial:
    scores = jnp.einsum("bkmd,bktd->bkmt", q, k.astype(q.dtype), preferred_element_type=jnp.float32)
    scores = jnp.where(mask, scores, _NEVER)
    top = lax.stop_gradient(scores.max(-1))  # any number gives the same result
    weights = jnp.exp(scores - top[..., None])
    values = jnp.einsum("bkmt,bktd->bkmd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return Partial(values, top, weights.sum(-1))


def _merge(a: Partial, b: Partial) -> Partial:
    top = jnp.maximum(a.top, b.top)
    scale_a, scale_b = jnp.exp(a.top - top), jnp.exp(b.top - top)
    values = a.values * scale_a[..., None] + b.values * scale_b[..., None]
    return Partial(values, top, a.weight * scale_a + b.weight * scale_b)
