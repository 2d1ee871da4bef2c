"""Selection from a vocabulary: the largest score, the k largest, a draw."""

import jax
import jax.numpy as jnp
from jax import lax

_PIECE = 64
"""The number of tokens in a piece of the vocabulary."""


def argmax(scores: jax.Array) -> jax.Array:
    """The index of the largest of ``scores`` [..., V], int32 [...]; the first index of equals.

    The result is that of ``jnp.argmax``. XLA:CPU is slow at that, because it compares pairs of
    score and index one after another. There only the piece with the largest score is searched this
    way.
    """
    on_cpu = _argmax_at_once if scores.shape[-1] % _PIECE else _argmax_in_pieces
    return lax.platform_dependent(scores, cpu=on_cpu, default=_argmax_at_once)


def _argmax_at_once(scores: jax.Array) -> jax.Array:
    return jnp.argmax(scores, -1).astype(jnp.int32)


def _argmax_in_pieces(scores: jax.Array) -> jax.Array:
    pieces = scores.reshape(*scores.shape[:-1], -1, _PIECE)
    first = jnp.argmax(pieces.max(-1), -1)
    piece = jnp.take_along_axis(pieces, first[..., None, None], -2)[..., 0, :]
    return (first * _PIECE + jnp.argmax(piece, -1)).astype(jnp.int32)


def likeliest(scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest of ``scores`` [..., V] and their indices int32, both [..., k].

    The result is that of ``lax.top_k``, but comes faster. The vocabulary is cut into pieces. The k
    pieces with the largest maxima contain the k largest scores. These pieces stay in order, so
    equal scores come in the order of their indices.
    """
    size = _PIECE
    if not k or scores.shape[-1] < 2 * k * size or scores.shape[-1] % size:
        values, where = lax.top_k(scores, k)
        return values, where.astype(jnp.int32)
    pieces = scores.reshape(*scores.shape[:-1], -1, size)
    numbers = jnp.sort(lax.top_k(pieces.max(-1), k)[1], -1)
    candidates = jnp.take_along_axis(pieces, numbers[..., None], -2).reshape(*scores.shape[:-1], k * size)
    values, where = lax.top_k(candidates, k)
    piece = jnp.take_along_axis(numbers, where // size, -1)
    return values, (piece * size + where % size).astype(jnp.int32)


def draw(key: jax.Array, p: jax.Array) -> jax.Array:
    """One token, int32, drawn from ``p`` float32 [V].

    A piece of the vocabulary is drawn by the sums of the pieces, then a token of this piece, both
    with Gumbel noise as in ``jax.random.categorical``. The noise of all V tokens would cost a CPU
    as much as a small model's forward pass; this reads p once, and needs noise for the pieces and
    for the tokens of one piece. The same key mostly draws the same token from two close
    distributions, as with one noise for all tokens.
    """
    keys = jax.random.split(key)
    pieces = jnp.pad(p, (0, -p.size % _PIECE)).reshape(-1, _PIECE)
    piece = _draw(keys[0], pieces.sum(-1))
    return (piece * _PIECE + _draw(keys[1], pieces[piece])).astype(jnp.int32)


def _draw(key: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.argmax(jnp.log(weights) + jax.random.gumbel(key, weights.shape))
