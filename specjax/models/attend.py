"""Attention by its definition: one softmax over the cache and the nodes of a tree.

It is the reference of ``attention.attend``, which reads the cache in blocks, and of the kernels.
The root of this tree has the children a and b, and a has the child c. Three of four positions of
the cache are valid:

                cache        root  a   b   c
      root     x x x .        x    .   .   .
      a        x x x .        x    x   .   .
      b        x x x .        x    .   x   .
      c        x x x .        x    x   .   x

``length`` gives the part on the left, and ``mask`` the part on the right: each node sees itself and
its ancestors.
"""

import jax
import jax.numpy as jnp

from ..kernels.gpu.attention import Scores


def attend(q: jax.Array, past: tuple | None, length, rows: tuple | None, mask, positions, scores: Scores) -> jax.Array:
    """The attention of N nodes, float32 [B, N, K * G * D]; each node must see at least one row.

    Args:
      q: [B, N, K, G, D], rotated queries; each of K key heads serves G query heads (Ainslie et al.
        2023).
      past: rotated keys, and values, [B, K, T, D], of the cache; None without a cache.
      length: int32 [B], valid positions of the past; unused without a past.
      rows: keys and values [B, K, M, D] of rows that are not in the cache; None without such rows.
      mask: bool [B, N, M] or [N, M], the rows that each node sees.
      positions: int32 [B, N], the positions of the nodes; only a window or a chunk needs them.
      scores: scale, bound, window and chunk of the scores. The last two restrict the past only.
    """
    B, N, K, G, D = q.shape
    keys = []
    values = []
    masks = []
    if past is not None:
        at = jnp.arange(past[0].shape[2])
        valid = jnp.broadcast_to(at < length[:, None, None], (B, N, at.size))
        if scores.window is not None:
            valid &= at > positions[:, :, None] - scores.window
        if scores.chunk is not None:
            valid &= at // scores.chunk == positions[:, :, None] // scores.chunk
        keys.append(past[0])
        values.append(past[1])
        masks.append(valid)
    if rows is not None:
        keys.append(rows[0])
        values.append(rows[1])
        masks.append(jnp.broadcast_to(mask, (B, *mask.shape[-2:])))
    k, v = (jnp.concatenate(parts, 2).astype(jnp.float32) for parts in (keys, values))
    score = jnp.einsum("bnkgd,bktd->bkgnt", q.astype(jnp.float32), k, precision="highest") * scores.scale_of(D)
    if scores.softcap is not None:
        score = scores.softcap * jnp.tanh(score / scores.softcap)
    score = jnp.where(jnp.concatenate(masks, -1)[:, None, None], score, -jnp.inf)
    attended = jnp.einsum("bkgnt,bktd->bnkgd", jax.nn.softmax(score), v, precision="highest")
    return attended.reshape(B, N, K * G * D)
