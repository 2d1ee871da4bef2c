"""The attention of a layer in one GPU kernel, or two: past, own rows with their mask, and rotation.

The kernel is flash decoding (Dao et al. 2023) with a second part for uncommitted rows. One program
handles up to 64 queries of one key head, fewer for large heads, and a share of the past. The last
share also takes the uncommitted rows. If there are several shares, a second kernel merges them.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

NEVER = -1e30
"""The score of a masked position. It is finite, because an empty past must not give NaN."""
_CHUNK = {32: 64, 64: 64, 128: 64, 256: 16}
"""Positions read at once, and the most queries, by head size: shared memory limits both."""
_SHARE, _PROGRAMS = 64, 512
"""Positions that are worth a program of their own, and programs that fill a GPU."""
_WARPS, _STAGES = 4, 2
"""Warps of a program, and loads of keys and values that it begins ahead."""
_MOST_NODES = 256
"""More nodes than this are a prompt, for which XLA's products are as good."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """How a layer scores the positions that a node attends to. Static.

    Attributes:
      window: the number of positions that a node sees, from its own back; None for all.
      chunk: the size of the chunks into which positions are cut, of which a node sees its own
        (Llama 4); None for one chunk. A layer has no window beside it.
      scale: the factor on the products of queries and keys; None for D ** -0.5.
      softcap: the bound c of scores s, which become c * tanh(s / c) (Gemma 2); None for no bound.
    """

    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    chunk: int | None = None

    def first(self, positions: jax.Array) -> jax.Array | None:
        """The first positions that nodes at these ``positions`` see, maybe below 0.

        It is None where nodes see all positions.
        """
        if self.chunk is not None:
            return positions - positions % self.chunk
        return None if self.window is None else positions - self.window + 1

    def scale_of(self, head_dim: int) -> float:
        """The factor on the products for heads of this size."""
        return head_dim**-0.5 if self.scale is None else self.scale


class Shapes(NamedTuple):
    """The static options of a kernel.

    Attributes:
      nodes, groups, head_dim: N, G and D.
      earlier: uncommitted rows before the nodes' own.
      chunk: positions that a program reads at once.
      tile: queries of a program.
      shares: programs that share a past.
      block: positions of a block of the past; None where a row's positions lie together.
      scores: its ``softcap`` is None.
    """

    nodes: int
    groups: int
    head_dim: int
    earlier: int
    chunk: int
    tile: int
    shares: int
    block: int | None
    scores: Scores


def fits(qkv: jax.Array, past: tuple | None, scores: Scores) -> bool:
    """Whether the kernel takes these shapes and scores.

    It takes a 16-bit cache, a head size that ``_CHUNK`` names, and scores without a bound.
    """
    N, D = qkv.shape[1], qkv.shape[-1]
    if scores.softcap is not None:
        return False
    return past is not None and past[0].dtype.itemsize == 2 and D in _CHUNK and N <= _MOST_NODES


@functools.partial(jax.jit, static_argnames=("scores", "interpret"))
def attend(qkv, angles, past, length, rows, mask, positions, table=None, *, scores: Scores, interpret: bool = False):
    """See ``attention.rotate_and_attend``; ``mask`` is bool [B, N, M].

    With a table, int32 [B, T / S], the past is [blocks, K, S, D], where S is a power of two from 16
    on. ``interpret`` runs the kernel on any device.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    B, N, K, G, D = *qkv.shape[:3], qkv.shape[3] - 2, qkv.shape[4]
    block = None if table is None else past[0].shape[2]
    T, M, dtype = past[0].shape[2] * (1 if table is None else table.shape[1]), mask.shape[-1], past[0].dtype
    mask = jnp.broadcast_to(mask, (B, N, M)).astype(jnp.int8)
    angles = tuple(jnp.broadcast_to(table, (B, N, D // 2)) for table in angles)
    length, positions = jnp.broadcast_to(length, B), jnp.broadcast_to(positions, (B, N))
    chunk = min(_CHUNK[D], block or _CHUNK[D])
    tile = min(max(pl.next_power_of_2(N * G), 16), chunk)
    tiles = pl.cdiv(N * G, tile)
    shares = max(1, min(pl.cdiv(T, _SHARE), _PROGRAMS // (B * K * tiles)))
    shapes = Shapes(N, G, D, M - N, chunk, tile, shares, block, scores)
    of = lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype)
    row = of((B, K, N, D), dtype)
    parts = (of((B, N, K, G, D), dtype),)
    if shares > 1:
        parts = of((shares, B, N, K, G, D), jnp.float32), *(of((shares, B, N, K, G), jnp.float32),) * 2
    out = pl.pallas_call(
        functools.partial(_kernel, shapes),
        grid=(B, K, tiles, shares),
        out_shape=(row, row, *parts),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=_STAGES),
        interpret=interpret,
        name="decode_attention",
    )(qkv, *angles, length, positions, mask, *past, *([] if table is None else [table]), *(rows or ()))
    new_rows, parts = out[:2], out[2:]
    attended = parts[0]
    if shares > 1:
        values, top, weight = parts[0].reshape(shares, -1, D), *(x.reshape(shares, -1) for x in parts[1:])
        attended = _merge(values, top, weight, dtype, interpret)
    return attended.reshape(B, N, K * G * D), new_rows


def _merge(values, top, weight, dtype, interpret: bool) -> jax.Array:
    """The sum of all shares [S, Q, D], by their largest scores and weights [S, Q].

    XLA would need two kernels.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (S, Q, D), each = values.shape, pl.next_power_of_2(values.shape[0])

    def kernel(values, top, weight, out):
        query, share, column = pl.program_id(0), jnp.arange(each), jnp.arange(D)
        real = share < S
        highest = triton.load(top.at[share, query], mask=real, other=NEVER)
        scale = jnp.exp(highest - highest.max())
        total = (triton.load(weight.at[share, query], mask=real, other=0) * scale).sum()
        whole = jnp.broadcast_to(real[:, None], (each, D))
        parts = triton.load(values.at[share[:, None], query, column[None]], mask=whole, other=0)
        out[query, column] = ((parts * scale[:, None]).sum(0) / _divisor(total)).astype(dtype)

    return pl.pallas_call(
        kernel,
        grid=(Q,),
        out_shape=jax.ShapeDtypeStruct((Q, D), dtype),
        compiler_params=triton.CompilerParams(num_warps=2, num_stages=1),
        interpret=interpret,
        name="merge_attention",
    )(values, top, weight)


def _divisor(weight):
    """The weight; 1 for a query that sees nothing, whose result is 0."""
    return jnp.where(weight > 0, weight, 1.0)


def _kernel(shapes: Shapes, qkv, cos, sin, length, positions, mask, past_k, past_v, *refs):
    """One program; see the top of the file.

    The two halves of a head are kept apart, because rotation mixes them.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    N, G, D, earlier, chunk, tile, shares, block, scoring = shapes
    table, refs = refs[:1], refs[1:] if block else refs
    old_k, old_v = refs[:2] if earlier else (None, None)
    new_k, new_v, *out = refs[2 if earlier else 0 :]
    b, k, part, share = (pl.program_id(i) for i in range(4))
    dtype, half = past_k.dtype, D // 2
    first, whole = jnp.arange(half)[None], jnp.arange(D)[None]
    load = lambda ref, at, real: triton.load(ref.at[at], mask=jnp.broadcast_to(real, _shape(at)), other=0)

    def rotated(nodes, head, real, scale=1.0):
        """Both halves of rotated vectors, each [..., D / 2]."""
        a, c = (load(qkv, (b, nodes, k, head, first + at), real).astype(jnp.float32) for at in (0, half))
        cosine, sine = (load(table, (b, nodes, first), real) for table in (cos, sin))
        return ((a * cosine - c * sine) * scale).astype(dtype), ((c * cosine + a * sine) * scale).astype(dtype)

    query = part * tile + jnp.arange(tile)
    real = (query < N * G)[:, None]
    node, group = (query // G)[:, None], (query % G)[:, None]
    q = rotated(node, group, real, scoring.scale_of(D))
    oldest = scoring.first(load(positions, (b, node), real))

    def add(state, keys, values, seen):
        """The online softmax after more rows, of which each query sees ``seen`` [tile, rows]."""
        acc, top, weight = state
        scores = sum(triton.dot(x, y, trans_b=True) for x, y in zip(q, keys))
        scores = jnp.where(seen, scores, NEVER)
        higher = jnp.maximum(top, scores.max(1))
        scale, weights = jnp.exp(top - higher), jnp.where(seen, jnp.exp(scores - higher[:, None]), 0.0)
        acc = acc * scale[:, None] + triton.dot(weights.astype(dtype), values)
        return acc, higher, weight * scale + weights.sum(1)

    def read_past(i, state):
        at = (i * chunk + jnp.arange(chunk))[:, None]
        valid = at < count
        row, place = (table[0][b, i * chunk // block], at % block) if block else (b, at)
        keys = tuple(load(past_k, (row, k, place, first + shift), valid) for shift in (0, half))
        seen = jnp.broadcast_to(valid.reshape(1, chunk), (tile, chunk))
        if oldest is not None:
            seen = seen & (at.reshape(1, chunk) >= oldest)
        return add(state, keys, load(past_v, (row, k, place, whole), valid), seen)

    def read_earlier(i, state):
        at = (i * own + jnp.arange(own))[:, None]
        valid = at < earlier
        keys = tuple(load(old_k, (b, k, at, first + shift), valid) for shift in (0, half))
        return add(state, keys, load(old_v, (b, k, at, whole), valid), allowed(at, valid))

    def read_own(i, state):
        at = (i * own + jnp.arange(own))[:, None]
        valid = at < N
        keys = rotated(at, G, valid)
        values = load(qkv, (b, at, k, G + 1, whole), valid).astype(dtype)
        write = valid & (part == 0)
        for ref, columns, rows in ((new_k, first, keys[0]), (new_k, first + half, keys[1]), (new_v, whole, values)):
            triton.store(ref.at[b, k, at, columns], rows, mask=jnp.broadcast_to(write, rows.shape))
        return add(state, keys, values, allowed(at + earlier, valid))

    def allowed(at, valid):
        at, valid = at.reshape(1, own), valid.reshape(1, own)
        return load(mask, (b, node, at), real & valid) != 0

    own = min(max(pl.next_power_of_2(N), 16), chunk)
    count = length[b]
    start = scoring.first(count)
    start = 0 if start is None else jnp.maximum(start, 0) // chunk
    end = (count + chunk - 1) // chunk
    each = (jnp.maximum(end - start, 0) + shares - 1) // shares
    state = jnp.zeros((tile, D), jnp.float32), jnp.full(tile, NEVER), jnp.zeros(tile, jnp.float32)
    begin = start + share * each
    state = lax.fori_loop(begin, jnp.minimum(begin + each, end), read_past, state)
    mine = (share == shares - 1).astype(jnp.int32)  # the last share of a past is often the shortest
    if earlier:
        state = lax.fori_loop(0, mine * pl.cdiv(earlier, own), read_earlier, state)
    acc, top, weight = lax.fori_loop(0, mine * pl.cdiv(N, own), read_own, state)
    store = lambda ref, at, x, real: triton.store(ref.at[at], x.astype(ref.dtype), mask=jnp.broadcast_to(real, x.shape))
    if shares == 1:
        store(out[0], (b, node, k, group, whole), acc / _divisor(weight)[:, None], real)
    else:
        store(out[0], (share, b, node, k, group, whole), acc, real)
        for ref, x in zip(out[1:], (top, weight)):
            store(ref, (share, b, query // G, k, query % G), x, query < N * G)


def _shape(at: tuple) -> tuple[int, ...]:
    return jnp.broadcast_shapes(*(x.shape for x in at if isinstance(x, jax.Array)))
