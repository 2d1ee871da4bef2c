"""The kernel of the past on CPU, against numpy's softmax in float64 over all rows at once."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import parallel
from specjax.kernels.cpu import past_attention
from specjax.kernels.cpu import product as product_kernel
from specjax.kernels.gpu.attention import Scores
from specjax.models import attention
from specjax.models.attend import attend as by_definition
from specjax.models.partial_attention import Partial

SHAPES = [(1, 2, 3, 100, 64), (3, 4, 18, 160, 64), (2, 3, 5, 203, 128), (9, 2, 7, 64, 16), (2, 1, 1, 16, 48)]


def make_input(B: int, K: int, M: int, T: int, D: int) -> tuple:
    """Attention over other rows, queries, keys, values and lengths, among them none and all of the positions."""
    random = np.random.default_rng(T)
    q, k, v, values = (jnp.float32(random.normal(size=(B, K, n, D))) for n in (M, T, T, M))
    top, weight = jnp.float32(random.normal(size=(2, B, K, M)))
    length = random.integers(0, T + 1, B)
    length[0], length[-1] = T // 2, T
    return Partial(values, top, jnp.exp(weight)), q, k, v, jnp.int32(length)


def in_kernel(own: Partial, *given) -> Partial:
    return Partial(*jax.jit(past_attention.attend)((own.values, own.top, own.weight), *given))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_over_the_past(shape):
    own, q, k, v, length = make_input(*shape)
    scores = np.einsum("bkmd,bktd->bkmt", np.float64(q), np.float64(k))
    seen = np.arange(shape[3]) < np.asarray(length)[:, None, None, None]
    shares = np.where(seen, np.exp(scores), 0)
    scale = np.exp(np.float64(own.top))
    total = own.weight * scale + shares.sum(-1)
    wanted = (own.values * scale[..., None] + np.einsum("bkmt,bktd->bkmd", shares, np.float64(v))) / total[..., None]
    found = in_kernel(own, q, k, v, length)
    np.testing.assert_allclose(found.values / found.weight[..., None], wanted, atol=1e-5)
    np.testing.assert_allclose(found.top + np.log(found.weight), np.log(total), rtol=1e-6)
    assert (found.top >= own.top).all()


def test_without_a_past_nothing_changes():
    own, q, k, v, length = make_input(2, 2, 3, 32, 16)
    for found, given in zip(jax.tree.leaves(in_kernel(own, q, k, v, 0 * length)), jax.tree.leaves(own)):
        np.testing.assert_array_equal(found, given)


def test_a_query_depends_neither_on_others_nor_on_the_capacity():
    """Bit by bit, so that plain decoding and a tree see the same past."""
    own, q, k, v, length = make_input(2, 4, 18, 96, 64)
    length = jnp.minimum(length, 70)
    whole = in_kernel(own, q, k, v, length)
    few = jax.tree.map(lambda leaf: leaf[:, :, 5:8], (own, q))
    for found, wanted in zip(
        jax.tree.leaves(in_kernel(*few, k[:, :, :80], v[:, :, :80], length)), jax.tree.leaves(whole)
    ):
        np.testing.assert_array_equal(found, wanted[:, :, 5:8])


def test_scores_far_apart_and_queries_of_nan():
    own, q, k, v, length = make_input(1, 1, 2, 64, 16)
    found = in_kernel(own, 1e4 * q, k, v, length)
    top = np.einsum("bkmd,bktd->bkmt", np.float64(1e4 * q), np.float64(k))[..., : int(length[0])]
    np.testing.assert_allclose(found.values / found.weight[..., None], v[:, :, top[0, 0].argmax(-1)], rtol=1e-5)
    assert jnp.isnan(in_kernel(own, q.at[:, :, 0].set(jnp.nan), k, v, length).values[:, :, 0]).all()


@pytest.mark.parametrize("heads, threads, calls", [(4, 2, 1), (9, 2, 9), (40, 2, 16), (40, 30, 40), (40, 1, 1)])
def test_many_queries_are_computed_in_parts(heads, threads, calls, monkeypatch):
    """Decoding does not read the top. XLA gives results that nobody reads one buffer, so calls with one would wait."""
    monkeypatch.setattr(past_attention, "threads", lambda: threads)
    own, *given = make_input(1, heads, 3, 64, 16)
    attend = lambda *given: past_attention.attend(*given)[::2]
    text = jax.jit(attend).lower((own.values, own.top, own.weight), *given).compile().as_text()
    results = re.findall(r"= (\S+) custom-call", text)
    assert len(results) == calls and all(re.fullmatch(r"f32\[\d+,18\]\{1,0\}", result) for result in results)


def test_where_the_kernel_fits(monkeypatch):
    def fits(M=1, T=16, D=16, dtype="float32", queries="float32", **scores):
        return past_attention.fits(jnp.zeros((1, 1, M, D), queries), jnp.zeros((1, 1, T, D), dtype), Scores(**scores))

    monkeypatch.setattr(past_attention, "threads", lambda: 2)
    assert fits() and fits(M=18, T=17, D=128)
    assert not (fits(M=19) or fits(T=15) or fits(D=8) or fits(window=4) or fits(chunk=4))
    assert not (fits(dtype="bfloat16") or fits(queries="bfloat16"))
    with parallel.use_mesh(parallel.make_mesh(data=2)):
        assert not fits()
    monkeypatch.setattr(past_attention, "threads", lambda: 1)
    assert fits(M=9) and not fits(M=10)
    monkeypatch.setattr(past_attention, "is_installed", lambda: False)
    assert not fits()


def test_attention_uses_the_kernel_if_it_is_installed(monkeypatch):
    _, q, k, v, length = make_input(2, 2, 6, 64, 16)  # three nodes, two query heads for each key head
    given = q.reshape(2, 2, 3, 2, 16).transpose(0, 2, 1, 3, 4), (k, v), length, (k[:, :, :3], v[:, :, :3])
    call = jax.jit(lambda *given: attention.attend(*given, jnp.tri(3, dtype=bool), jnp.zeros((2, 3), int), Scores()))
    with_kernel, text = call(*given), call.lower(*given).compile().as_text()
    assert "specjax_past_16" in text
    wanted = by_definition(*given, jnp.tri(3, dtype=bool), None, Scores())
    np.testing.assert_allclose(with_kernel, wanted, atol=2e-6)
    jax.clear_caches()
    monkeypatch.setattr(past_attention, "is_installed", lambda: False)
    assert product_kernel.is_installed()
    np.testing.assert_allclose(call(*given), wanted, atol=2e-6)
    assert "specjax_past" not in call.lower(*given).compile().as_text()
