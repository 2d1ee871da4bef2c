"""The kernel of attention against its definition, and the kernel that writes the cache against the code for all platforms.

On a GPU the kernels run themselves, and elsewhere an interpreter runs them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.cache import KVCache, commit
from specjax.core.tree import Tree, ancestors
from specjax.kernels.gpu import attention as attention_kernel
from specjax.kernels.gpu import cache_write
from specjax.kernels.gpu.attention import Scores
from specjax.models.attend import attend
from specjax.models.attention import join, rotate_and_attend
from specjax.models.rope import rotate

INTERPRET = jax.default_backend() != "gpu"

CASES = {
    "plain, ragged, an empty past, two shares": dict(
        nodes=1, groups=4, head_dim=64, capacity=192, lengths=(0, 130, 192)
    ),
    "a tree of 6": dict(nodes=6, groups=2, head_dim=128, capacity=100, lengths=(77,), heads=2),
    "two tiles, earlier rows, a window": dict(
        nodes=24, groups=3, head_dim=64, capacity=200, lengths=(0, 150), earlier=5, window=40
    ),
    "a tree that enters a new chunk": dict(nodes=6, groups=2, head_dim=64, capacity=200, lengths=(5, 97), chunk=98),
}


def random_arguments(
    nodes, groups, head_dim, capacity, lengths, heads=1, earlier=0, window=None, chunk=None, dtype=jnp.float32
):
    """The arguments of ``rotate_and_attend`` for random numbers and a random tree in each row, and the scores."""
    rng = np.random.default_rng(nodes)
    B, draw = len(lengths), lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    parents = jnp.asarray([[-1] + [rng.integers(0, i) for i in range(1, nodes)] for _ in lengths], jnp.int32)
    mask = jax.vmap(ancestors)(Tree(jnp.zeros_like(parents), parents, parents > -2, None))
    mask = jnp.concatenate([jnp.asarray(rng.random((B, nodes, earlier)) < 0.5), mask], -1)
    length = jnp.asarray(lengths, jnp.int32)
    angles = draw(B, nodes, head_dim // 2)
    pair = lambda count: tuple(draw(B, heads, count, head_dim).astype(dtype) for _ in range(2))
    qkv = draw(B, nodes, heads, groups + 2, head_dim)
    positions = length[:, None] + mask.sum(-1) - 1
    rows = pair(earlier) if earlier else None
    return (qkv, (jnp.cos(angles), jnp.sin(angles)), pair(capacity), length, rows, mask, positions), Scores(
        window, chunk=chunk
    )


FURTHER = ("a tree of 6", "a tree that enters a new chunk")  # a tree runs in bfloat16 below


@pytest.mark.skipif(not INTERPRET, reason="the products of a GPU round float32 numbers")
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case in FURTHER else ()) for case in CASES]
)
def test_kernel_and_products_against_the_definition(case: str):
    arguments, scores = random_arguments(**CASES[case])

    @jax.jit
    def define(qkv, angles, past, length, earlier, mask, positions):
        new = tuple(x.swapaxes(1, 2) for x in (rotate(qkv[..., -2, :], *angles), qkv[..., -1, :]))
        seen = new if earlier is None else join(earlier, new)
        return attend(rotate(qkv[..., :-2, :], *angles), past, length, seen, mask, positions, scores), new

    expected, new = define(*arguments)
    by_kernel = jax.jit(lambda *given: attention_kernel.attend(*given, scores=scores, interpret=INTERPRET))
    by_products = jax.jit(lambda *given: rotate_and_attend(*given, scores, jnp.float32))
    for attended, rows in (by_kernel(*arguments), by_products(*arguments)):
        np.testing.assert_allclose(attended, expected, atol=2e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), rows, new)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case == "a tree of 6" else pytest.mark.slow) for case in CASES]
)
def test_kernel_in_bfloat16(case: str):
    """Keys and values are rounded once, as elsewhere; sums are float32."""
    arguments, scores = random_arguments(**CASES[case], dtype=jnp.bfloat16)
    by_kernel = jax.jit(lambda *given: attention_kernel.attend(*given, scores=scores, interpret=INTERPRET))
    found, rows = by_kernel(*arguments)
    expected, expected_rows = rotate_and_attend(*arguments, scores, jnp.bfloat16)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=0.02)
    jax.tree.map(np.testing.assert_array_equal, rows, expected_rows)


def test_kernels_read_and_write_through_a_table():
    """The bits of the kernels for positions that lie together; the tables have the blocks in another order."""
    (qkv, angles, past, length, rows, mask, positions), scores = random_arguments(
        6, 2, 64, 128, (5, 100), heads=2, window=40, dtype=jnp.bfloat16
    )
    table = jnp.int32([[7, 2], [4, 5]])
    number = lambda x: jnp.zeros((9, 2, 64, 64), x.dtype).at[table].set(x.reshape(2, 2, 2, 64, 64).swapaxes(1, 2))
    pools = tuple(map(number, past))
    options = dict(scores=scores, interpret=INTERPRET)
    fixed, new = attention_kernel.attend(qkv, angles, past, length, rows, mask, positions, **options)
    found, _ = attention_kernel.attend(qkv, angles, pools, length, rows, mask, positions, table, **options)
    np.testing.assert_array_equal(found, fixed)
    start = jnp.int32([61, 100])  # the first path goes over the border of a block
    bad = new[0].at[1, 0, 2, 3].set(jnp.nan), new[1]
    clean = jnp.nan_to_num(bad[0]), new[1]
    wanted = cache_write.write_path((past,), (clean,), None, start, interpret=INTERPRET)[0]
    written = cache_write.write_path((pools,), (bad,), None, start, table, interpret=INTERPRET)[0]
    jax.tree.map(np.testing.assert_array_equal, written, tuple(map(number, wanted)))


@pytest.mark.parametrize("path", [None, [[0, 2, 3, 3], [0, 1, 1, 1]]], ids=["a chain", "a path"])
def test_kernel_writes_as_commit_does(path):
    """The second row is nearly full, so its write moves back."""
    rng = np.random.default_rng(0)
    pairs = lambda count: [
        tuple(jnp.asarray(rng.normal(size=(2, 2, count, 48)), jnp.bfloat16) for _ in "kv") for _ in "ab"
    ]
    cache, rows = KVCache(tuple(pairs(16)), jnp.array([3, 14])), tuple(pairs(4))
    chosen = None if path is None else jnp.array(path)
    found = cache_write.write_path(cache.layers, rows, chosen, cache.length, interpret=INTERPRET)
    expected = commit(cache, rows, chosen, cache.length + 1, valid=jnp.ones(2, bool))
    jax.tree.map(np.testing.assert_array_equal, found, expected.layers)


@pytest.mark.parametrize(("platform", "asked", "usable"), [
    ("gpu", None, True), ("gpu", "1", True), ("gpu", "0", False),
    ("cpu", None, False), ("cpu", "1", True), ("cpu", "0", False), ("tpu", None, False),
])  # fmt: skip
def test_kernels_are_for_gpus_and_for_those_that_ask(monkeypatch, platform: str, asked: str | None, usable: bool):
    monkeypatch.setattr(cache_write, "_are_installed", lambda: True)
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    if asked is None:
        monkeypatch.delenv("SPECJAX_KERNELS", raising=False)
    else:
        monkeypatch.setenv("SPECJAX_KERNELS", asked)
    assert cache_write.are_usable() == usable


def test_kernels_are_for_one_device(monkeypatch):
    monkeypatch.setattr(cache_write, "_are_installed", lambda: True)
    monkeypatch.setenv("SPECJAX_KERNELS", "1")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2,), ("data",))):
        assert not cache_write.are_usable()


@pytest.mark.skipif(not INTERPRET, reason="a GPU runs them")
def test_other_platforms_never_run_a_kernel(monkeypatch):
    """A program that may contain kernels gives the CPU the bits that it had without them, rounded to the cache's dtype."""
    arguments, _ = random_arguments(1, 2, 64, 128, (100,), dtype=jnp.bfloat16)
    attend = jax.jit(lambda *arguments: rotate_and_attend(*arguments, Scores(), jnp.bfloat16))
    expected, rows = attend(*arguments)
    monkeypatch.setattr(cache_write, "are_usable", lambda: True)
    attend.clear_cache()
    found, found_rows = attend(*arguments)
    np.testing.assert_array_equal(found, expected.astype(jnp.bfloat16))
    jax.tree.map(np.testing.assert_array_equal, found_rows, rows)
