"""Attention by its definition against loops in float64, and attention in blocks against its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.kernels.gpu.attention import Scores
from specjax.models import attention
from specjax.models.attend import attend

B, N, K, G, D, T = 2, 4, 2, 3, 8, 300
LENGTH = np.array([5, 290])
MASK = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], bool)  # the tree of ``attend``
POSITIONS = LENGTH[:, None] + MASK.sum(-1) - 1
CHUNKS = Scores(chunk=97)  # the second row's tree begins in one chunk, at 290, and ends in the next, at 292


def make_input() -> tuple:
    """The arguments of ``attend`` up to the positions."""
    draw = np.random.default_rng(0).normal
    q = draw(size=(B, N, K, G, D))
    past, rows = (tuple(jnp.float32(draw(size=(B, K, count, D))) for _ in range(2)) for count in (T, N))
    return jnp.float32(q), past, jnp.int32(LENGTH), rows, jnp.asarray(MASK), jnp.int32(POSITIONS)


def by_loops(q, past, rows, scores: Scores) -> np.ndarray:
    """The attention of each query head of each node, row by row."""
    q, past, rows = jax.tree.map(np.float64, (q, past, rows))
    out = np.zeros((B, N, K, G, D))
    for b, n, k, g in np.ndindex(B, N, K, G):
        first = 0 if scores.window is None else max(0, POSITIONS[b, n] - scores.window + 1)
        first = first if scores.chunk is None else POSITIONS[b, n] // scores.chunk * scores.chunk
        keys, values = (np.concatenate([past[i][b, k, first : LENGTH[b]], rows[i][b, k, MASK[n]]]) for i in (0, 1))
        score = keys @ q[b, n, k, g] / D**0.5
        if scores.softcap is not None:
            score = scores.softcap * np.tanh(score / scores.softcap)
        weights = np.exp(score)
        out[b, n, k, g] = weights @ values / weights.sum()
    return out.reshape(B, N, -1)


@pytest.mark.parametrize("scores", [Scores(), Scores(window=40), Scores(softcap=2.0), CHUNKS], ids=str)
def test_attention_of_a_tree_over_a_cache(scores):
    arguments = make_input()
    wanted = by_loops(arguments[0], arguments[1], arguments[3], scores)
    for way in (attend, attention.attend):
        np.testing.assert_allclose(jax.jit(way, static_argnums=6)(*arguments, scores), wanted, atol=1e-5)
