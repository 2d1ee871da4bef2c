"""The kernel of attention on CPU, against numpy's softmax in float64 over all that a node sees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import parallel
from specjax.core.stored_rows import HalfRows, Halves, blank, store
from specjax.kernels.cpu import attention as kernel
from specjax.kernels.cpu import product as product_kernel
from specjax.kernels.gpu.attention import Scores
from specjax.models import attention
from specjax.models.attend import attend as by_definition

SHAPES = [
    (1, 1, 2, 3, 100, 1, 64), (3, 6, 4, 3, 160, 6, 64), (2, 5, 3, 1, 203, 40, 128), (9, 7, 2, 1, 64, 7, 16),
    (2, 17, 1, 2, 16, 33, 48),
]  # fmt: skip
"""B, N, K, G, T, M and D."""


def make_input(B: int, N: int, K: int, G: int, T: int, M: int, D: int) -> tuple:
    """Queries, past, lengths, among them none and all of the positions, rows and a mask of any rows and the own."""
    random = np.random.default_rng(T)
    q, *others = (
        jnp.float32(random.normal(size=shape)) for shape in [(B, N, K, G, D), *[(B, K, T, D), (B, K, M, D)] * 2]
    )
    length = random.integers(0, T + 1, B)
    length[0], length[-1] = T // 2, T
    mask = jnp.asarray(random.random((B, N, M)) < 0.5).at[..., M - N :].max(np.eye(N, dtype=bool))
    return q, tuple(others[::2]), jnp.int32(length), tuple(others[1::2]), mask


attend = jax.jit(kernel.attend)


@pytest.mark.parametrize(
    "shape",
    [pytest.param(shape, marks=pytest.mark.slow if shape[-1] == 128 else (), id=str(shape)) for shape in SHAPES],
)
def test_attention_over_the_past_and_rows(shape):
    q, past, length, rows, mask = make_input(*shape)
    keys, values = (np.float64(np.concatenate(parts, 2)) for parts in zip(past, rows))
    valid = np.arange(shape[4]) < np.asarray(length)[:, None]
    seen = np.concatenate([np.broadcast_to(valid[:, None], (*mask.shape[:2], shape[4])), mask], -1)
    scores = np.einsum("bnkgd,bktd->bkgnt", np.float64(q), keys)
    shares = np.where(seen[:, None, None], np.exp(scores), 0)
    wanted = np.einsum("bkgnt,bktd->bnkgd", shares / shares.sum(-1, keepdims=True), values)
    np.testing.assert_allclose(attend(q, past, length, rows, mask), wanted.reshape(*q.shape[:2], -1), atol=1e-5)


def test_keys_and_values_of_bfloat16_are_widened():
    q, past, length, rows, mask = make_input(3, 6, 4, 3, 160, 6, 64)
    past, rows = jax.tree.map(lambda x: store(x, Halves()).bits, (past, rows))
    wide = jax.tree.map(lambda bits: HalfRows(bits).values, (past, rows))
    np.testing.assert_array_equal(attend(q, past, length, rows, mask), attend(q, wide[0], length, wide[1], mask))


def test_a_node_depends_neither_on_others_nor_on_the_capacity():
    q, past, length, rows, mask = make_input(2, 18, 4, 1, 96, 18, 64)
    length = jnp.minimum(length, 70)
    whole = attend(q, past, length, rows, mask)
    shorter = tuple(each[:, :, :83] for each in past)
    for few in (slice(0, 1), slice(5, 8), slice(2, 18)):
        np.testing.assert_array_equal(attend(q[:, few], shorter, length, rows, mask[:, few]), whole[:, few])


@pytest.mark.parametrize("length", [0, 3, 14, 16, 40])
def test_a_node_gets_the_same_bits_after_its_ancestors_are_committed(length):
    """In a tree of many others, in a chain, and alone behind the whole text."""
    T, depth, others = 64, 12, 30
    q, past, _, (keys, values), _ = make_input(1, 1, 2, 3, T, others + depth, 32)
    random = np.random.default_rng(length)
    path = np.sort(random.permutation(others + depth)[:depth])
    mask = jnp.zeros((1, 1, others + depth), bool).at[..., path].set(True)
    tree = attend(q, past, jnp.int32([length]), (keys, values), mask)
    on_path = keys[:, :, path], values[:, :, path]
    for committed in (0, 1, depth - 1):
        filled = tuple(
            each.at[:, :, length : length + committed].set(new[:, :, :committed]) for each, new in zip(past, on_path)
        )
        rest = tuple(each[:, :, committed:] for each in on_path)
        seen = jnp.ones((1, 1, depth - committed), bool)
        found = attend(q, filled, jnp.int32([length + committed]), rest, seen)
        np.testing.assert_array_equal(found, tree)


@pytest.mark.parametrize("threads", [1, 2, 30])
def test_threads_change_no_bits(threads, monkeypatch):
    given = make_input(2, 20, 3, 2, 200, 20, 64)
    wanted = attend(*given)
    monkeypatch.setattr(kernel, "threads", lambda: threads)
    monkeypatch.setattr(kernel, "_CHUNK", 1 << 12)
    np.testing.assert_array_equal(jax.jit(lambda *given: kernel.attend(*given))(*given), wanted)


def test_scores_far_apart_and_queries_of_nan():
    q, past, length, rows, mask = make_input(1, 2, 1, 1, 64, 2, 16)
    found = attend(1e4 * q, past, length, rows, mask & False)
    scores = np.einsum("bnkgd,bktd->bkgnt", np.float64(1e4 * q), np.float64(past[0]))[..., : int(length[0])]
    np.testing.assert_allclose(found[0], past[1][0, 0, scores[0, 0, 0].argmax(-1)], rtol=1e-5)
    found = attend(q.at[:, 0].set(jnp.nan), past, length, rows, mask)
    assert jnp.isnan(found[:, 0]).all() and not jnp.isnan(found[:, 1]).any()


def test_where_the_kernel_fits(monkeypatch):
    def fits(N=1, T=16, D=16, dtype="float32", queries="float32", **scores):
        return kernel.fits(jnp.zeros((1, N, 1, 1, D), queries), jnp.zeros((1, 1, T, D), dtype), Scores(**scores))

    assert fits() and fits(N=64, T=17, D=128)
    assert not (fits(N=65) or fits(T=15) or fits(D=8) or fits(window=4) or fits(chunk=4) or fits(softcap=9.0))
    assert not (fits(dtype="bfloat16") or fits(queries="bfloat16"))
    assert kernel.fits(jnp.zeros((1, 1, 1, 1, 16)), blank((1, 1, 16, 16), Halves()).bits, Scores())
    with parallel.use_mesh(parallel.make_mesh(data=2)):
        assert not fits()
    monkeypatch.setattr(kernel, "is_installed", lambda: False)
    assert not fits()


def test_attention_uses_the_kernel_if_it_is_installed(monkeypatch):
    given = *make_input(2, 3, 2, 2, 64, 3, 16)[:4], jnp.tri(3, dtype=bool)
    call = jax.jit(lambda *given: attention.attend(*given, jnp.zeros((2, 3), int), Scores()))
    with_kernel, text = call(*given), call.lower(*given).compile().as_text()
    assert "specjax_node_attention_16" in text
    wanted = by_definition(*given, None, Scores())
    np.testing.assert_allclose(with_kernel, wanted, atol=2e-6)
    jax.clear_caches()
    monkeypatch.setattr(kernel, "is_installed", lambda: False)
    assert product_kernel.is_installed()
    np.testing.assert_allclose(call(*given), wanted, atol=2e-6)
    assert "specjax_node_attention" not in call.lower(*given).compile().as_text()
