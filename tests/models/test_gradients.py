"""Values and gradients of attention in chunks and of linear maps, against attention by its definition and numpy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.kernels.gpu.attention import Scores
from specjax.models.attend import attend as by_definition
from specjax.models.attention import Seen, attend
from specjax.models.layers import linear


def dense_of(seen: Seen, N: int, M: int) -> np.ndarray:
    """The matrix that ``seen`` stands for, entry by entry."""
    group = seen.inner.shape[0] if seen.inner is not None else 1
    calls = seen.inner.shape[1] // group if seen.inner is not None else 0
    first_rows, out = M - calls * N, np.zeros((2, N, M), bool)
    for b in range(2):
        for i in range(N):
            for j in range(first_rows):
                begin = 0 if seen.first is None else np.broadcast_to(seen.first, (2, N))[b, i]
                out[b, i, j] = begin <= j < np.broadcast_to(seen.limit, (2, N))[b, i]
            for call in range(calls):
                for j in range(N):
                    if i // group == j // group:
                        out[b, i, first_rows + call * N + j] = seen.inner[i % group, call * group + j % group]
    return out


LIMITS = np.sort(np.random.default_rng(1).integers(0, 150, (2, 50)), -1).repeat(3, 1)
SEEN = {
    "a window": (150, 150, Seen.causal(150).replace(first=jnp.arange(150)[None] - 6)),
    "chains of training-time test": (140, 420, Seen.causal(140).replace(inner=jnp.ones((1, 2), bool))),
    "blocks": (150, 290, Seen(jnp.asarray(LIMITS), inner=jnp.tril(jnp.ones((3, 3), bool)))),
}


@pytest.mark.parametrize("name", SEEN)
def test_attention_in_chunks_is_attention_by_definition(name):
    """Values and gradients, with more nodes than a chunk has."""
    N, M, seen = SEEN[name]
    keys = jax.random.split(jax.random.key(0), 4)
    q, wanted = (jax.random.normal(k, (2, N, 2, 2, 8)) for k in keys[:2])
    rows = tuple(jax.random.normal(k, (2, 2, M, 8)) for k in keys[2:])

    @jax.jit
    def all_ways(q, rows, dense):
        def value(attend, q, rows, mask):
            out = attend(q, None, None, rows, mask, None, Scores())
            return (out * wanted.reshape(out.shape)).sum(), out

        ways = (attend, seen), (attend, dense), (by_definition, dense)
        return [jax.value_and_grad(partial(value, way), (0, 1), has_aux=True)(q, rows, mask) for way, mask in ways]

    *results, right = all_ways(q, rows, jnp.asarray(dense_of(seen, N, M)))
    for result in results:
        for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(right)):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("rows", [(1,), (2, 5)])
def test_gradients_of_a_linear_map(dtype, tolerance, rows):
    x, w, g = (np.random.default_rng(i).normal(size=s) for i, s in enumerate([(*rows, 6), (4, 6), (*rows, 4)]))
    x, w = (jnp.asarray(a, dtype) for a in (x, w))
    of_x, of_w = jax.grad(lambda x, w: (linear(x, w) * jnp.asarray(g, jnp.float32)).sum(), (0, 1))(x, w)
    assert of_x.dtype == of_w.dtype == dtype
    np.testing.assert_allclose(np.asarray(of_x, np.float64), g @ np.asarray(w, np.float64), tolerance, tolerance)
    expected = g.reshape(-1, 4).T @ np.asarray(x, np.float64).reshape(-1, 6)
    np.testing.assert_allclose(np.asarray(of_w, np.float64), expected, tolerance, 4 * tolerance)
