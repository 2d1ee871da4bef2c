"""Temperature, top-k, top-p and min-p, without a sort of the vocabulary.

The options apply in this order. Each keeps a set of likeliest tokens, so each comes down to one
threshold for each node. A search over the bits of a float finds it, and reads the vocabulary a few
times. A sort of 64 nodes with 128,000 tokens takes seconds on a CPU.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax


@jax.jit
def truncated_softmax(
    logits: jax.Array, temperature: jax.Array, top_k: jax.Array, top_p: jax.Array, min_p: jax.Array
) -> jax.Array:
    """Distributions float32 [B, N, V] over the tokens that top-k, then top-p, then min-p keep.

    Top-k keeps the k tokens with the largest logits, and all tokens whose logit equals the last of
    them, as in transformers. Top-p keeps the smallest set of likeliest tokens whose mass reaches
    top_p. It keeps or drops tokens of equal weight together. A mass is a float32 sum over the
    node's own weights, so it depends on no other node. Min-p compares each weight with that of the
    likeliest token, which is 1. The likeliest token always stays. If a node's logits contain NaN or
    are all minus infinity, its distribution is NaN.

    Args:
      logits: float32 [B, N, V].
      temperature: float32 [B, 1, 1], above 0.
      top_k, top_p, min_p: [B, 1, 1], see ``sampling.SamplingParams``.
    """
    largest = logits.max(-1, keepdims=True)
    keep_all = jnp.zeros_like(largest)

    # Functions instead of arrays: each use computes its values again, and none of [B, N, V] is
    # stored.
    def scaled():
        return (logits - largest) / temperature  # the largest is 0, finite at any temperature

    def weights():
        return jnp.exp(scaled())

    def by_top_k():
        count = jnp.where(top_k > 0, jnp.float32(top_k), jnp.inf)
        return least_kept(_rank(scaled()), jnp.float32(1), count + keep_all)

    def by_top_p():
        w = weights()
        mass = jnp.where(_rank(scaled()) < least_rank, 0, w).sum(-1, keepdims=True)
        least_mass = jnp.where(top_p < 1, top_p * mass, jnp.inf)
        return least_kept(w, w, jnp.maximum(least_mass, jnp.finfo(jnp.float32).tiny))

    least_rank = lax.cond(jnp.any(top_k > 0), by_top_k, lambda: keep_all)
    least_weight = lax.cond(jnp.any(top_p < 1), by_top_p, lambda: keep_all)
    dropped = (_rank(scaled()) < least_rank) | (weights() < jnp.maximum(least_weight, min_p))
    p = jnp.where(dropped, 0, weights())  # NaN stays
    return p / p.sum(-1, keepdims=True)


def least_kept(scores: jax.Array, weights: jax.Array, least_sum: jax.Array) -> jax.Array:
    """The largest t for which the weights of all scores from t up reach the sum ``least_sum``.

    The tokens with scores from t up are the smallest set of largest scores, equals included, whose
    weights reach that sum. If the weights of all scores fall short of it, t is 0.

    Args:
      scores: float32 [..., V], not negative.
      weights: float32, broadcasts to [..., V]; not negative. Their sums are float32.
      least_sum: float32 [..., 1], above 0.

    Returns float32 [..., 1].
    """
    # A GPU or TPU waits for memory, and fixes four bits a pass. A CPU waits for arithmetic.
    cpu = partial(search_bits, bits=1)
    default = partial(search_bits, bits=4)
    return lax.platform_dependent(scores, weights, least_sum, cpu=cpu, default=default)


def search_bits(scores: jax.Array, weights: jax.Array, least_sum: jax.Array, *, bits: int) -> jax.Array:
    """The result of ``least_kept``, by ``31 / bits`` passes over the scores, rounded up.

    The search fixes t from the highest bits down, because non-negative floats have the order of
    their bits. Each pass sums the weights from t up for all values of the next ``bits`` bits, and
    keeps the largest value whose sum reaches ``least_sum``. Scores below the least normal float
    count as 0, because devices differ in how they compare them.
    """

    def fix(step, bits_of_t):
        shift = jnp.maximum(31 - bits * (step + 1), 0)  # the sign bit is zero; the last passes may overlap
        larger = [bits_of_t + (digit << shift) for digit in range(1, 2**bits)]
        sums = _sum_last([jnp.where(scores >= _as_float(t), weights, 0) for t in larger])
        return bits_of_t + (sum(jnp.int32(mass >= least_sum) for mass in sums) << shift)

    bits_of_t = lax.fori_loop(0, -(-31 // bits), fix, jnp.zeros(least_sum.shape, jnp.int32))
    return _as_float(jnp.where(bits_of_t < 1 << 23, 0, bits_of_t))


def _rank(scaled: jax.Array) -> jax.Array:
    """Float32 from 0 up, in the order of logits from minus infinity to 0.

    The bits of the absolute value are subtracted from those of infinity. Different logits therefore
    have different ranks.
    """

    def bits(x):
        return lax.bitcast_convert_type(jnp.float32(x), jnp.int32)

    return _as_float(bits(jnp.inf) - bits(jnp.abs(scaled)))


def _as_float(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits, jnp.float32)


def _sum_last(terms: list[jax.Array]) -> list[jax.Array]:
    """The sums [..., 1] of each term over its last axis. One pass over memory computes them all."""

    def add(a, b):
        return tuple(x + y for x, y in zip(a, b))

    sums = lax.reduce(tuple(terms), (jnp.float32(0),) * len(terms), add, (terms[0].ndim - 1,))
    return [total[..., None] for total in sums]
