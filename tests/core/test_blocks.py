"""Keys and values in blocks: writes against loops in numpy, and reads against the fixed cache, bit for bit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.blocks import Blocks
from specjax.core.cache import KVCache, _write_at_once, _write_row_by_row, commit
from specjax.core.stored_rows import EightBits, Halves, store
from specjax.kernels.gpu.attention import Scores
from specjax.models import attention
from specjax.models.attend import attend as attend_by_definition

B, K, T, D, S = 3, 2, 128, 16, 16
NUMBERS = np.random.default_rng(1).permutation(np.arange(1, 3 * T // S + 4))[: B * T // S].reshape(B, -1)
"""The blocks of each row, in no order."""


def in_blocks(array: jax.Array, numbers=NUMBERS) -> Blocks:
    """The array [B, K, T, D] in blocks, between blocks of other rows, which are full of ones."""
    pool = np.ones((3 * T // S + 4, K, S, array.shape[3]), array.dtype)
    for b, row in enumerate(numbers):
        for i, number in enumerate(row):
            pool[number] = array[b, :, i * S : (i + 1) * S]
    return Blocks(jnp.asarray(pool), jnp.int32(numbers))


def as_array(blocks: Blocks) -> np.ndarray:
    pool, table = np.asarray(blocks.pool), np.asarray(blocks.table)
    return np.stack([np.concatenate([pool[number] for number in row], 1) for row in table])


def normal(*shape: int) -> jax.Array:
    return jnp.float32(np.random.default_rng(sum(shape)).normal(size=shape))


@pytest.mark.parametrize("write", [_write_row_by_row, _write_at_once])
@pytest.mark.parametrize("count", [1, 5, 16, 40])
def test_a_path_is_written_through_the_table(write, count):
    """From places before, at and behind the border of a block."""
    for start in ([0, 13, 16], [15, 31, 40], [T - count, 2, 87]):
        before, rows = normal(B, K, T, D), normal(B, K, count, D)
        wanted = np.array(before)
        for b, first in enumerate(start):
            wanted[b, :, first : first + count] = rows[b]
        written = jax.jit(write)((in_blocks(before),), (rows,), jnp.int32(start))[0]
        np.testing.assert_array_equal(as_array(written), wanted)
        others = np.setdiff1d(np.arange(len(written.pool)), [0, *NUMBERS.flat])
        assert (np.asarray(written.pool)[others] == 1).all()


@pytest.mark.parametrize("count", [1, 6])
def test_void_rows_and_numbers_that_are_not_finite_leave_no_trace(count):
    """A row that has failed, a place without a block, and NaN among the rows."""
    numbers = NUMBERS.copy()
    numbers[1, 2:] = 0
    before, rows = normal(B, K, T, D), normal(B, K, count, D).at[2, 0, 0, 0].set(jnp.nan)
    cache = KVCache(((in_blocks(before, numbers),),), jnp.int32([20, 40, 3]))
    valid = jnp.bool([False, True, True])
    after = jax.jit(partial(commit, path=None))(cache, ((rows,),), length=cache.length + count, valid=valid)
    (written,) = after.layers[0]
    np.testing.assert_array_equal(written.table, numbers)
    wanted = np.array(in_blocks(before, numbers).pool)
    for i in range(count):
        wanted[NUMBERS[2, 0], :, 3 + i] = np.nan_to_num(np.asarray(rows)[2, :, i])
    np.testing.assert_array_equal(np.asarray(written.pool)[1:], wanted[1:])
    assert np.isfinite(np.asarray(written.pool)).all()


@pytest.mark.parametrize("write", [_write_row_by_row, _write_at_once])
def test_bits_of_bfloat16_that_are_not_finite_are_written_as_zeros(write):
    before = store(normal(B, K, T, D), Halves())
    rows = store(normal(B, K, 3, D).at[2, 0, 1, :2].set(jnp.array([jnp.nan, -jnp.inf])), Halves())
    written = jax.jit(write)((jax.tree.map(in_blocks, before),), (rows,), jnp.int32([20, 40, 3]))[0]
    bits = as_array(written.bits)
    assert bits.dtype == np.uint16
    np.testing.assert_array_equal(bits[2, :, 3:6], np.asarray(rows.bits.at[2, 0, 1, :2].set(0))[2])
    np.testing.assert_array_equal(bits[0, :, 20:23], rows.bits[0])


FULL, EIGHT = jnp.dtype(jnp.float32), EightBits(jnp.dtype(jnp.int8), jnp.dtype(jnp.float32))


@pytest.mark.parametrize("scores", [Scores(), Scores(window=40), Scores(softcap=2.0)], ids=str)
@pytest.mark.parametrize("dtype", [FULL, EIGHT, Halves()], ids=["float32", "int8", "halves"])
def test_attention_over_blocks_has_the_bits_of_the_fixed_cache(scores, dtype):
    """By the kernel for CPUs, which takes the first case, and by XLA."""
    N, G = 4, 3
    past, rows = ([store(normal(B, K, count + i, D), dtype) for i in range(2)] for count in (T, N))
    past, rows = jax.tree.map(lambda x: x[:, :, :T], past), jax.tree.map(lambda x: x[:, :, :N], rows)
    length = jnp.int32([0, 77, T - N])
    positions = length[:, None] + jnp.arange(N)
    attend = jax.jit(partial(attention.attend, scores=scores))
    rest = length, tuple(rows), jnp.tril(jnp.ones((N, N), bool)), positions
    fixed = attend(normal(B, N, K, G, D), tuple(past), *rest)
    np.testing.assert_array_equal(attend(normal(B, N, K, G, D), tuple(jax.tree.map(in_blocks, past)), *rest), fixed)


@pytest.mark.parametrize("scores", [Scores(), Scores(window=40), Scores(softcap=2.0)], ids=str)
def test_attention_block_by_block_against_the_definition(scores, monkeypatch):
    """As on a TPU."""
    choose = lambda *operands, default, tpu=None, **_: (tpu or default)(*operands)
    monkeypatch.setattr(jax.lax, "platform_dependent", choose)
    N, G = 4, 3
    past, rows = ((normal(B, K, count, D), normal(B, K, count, D)[::-1]) for count in (T, N))
    length = jnp.int32([0, 77, T - N])
    rest = length, rows, jnp.tril(jnp.ones((N, N), bool)), length[:, None] + jnp.arange(N)
    queries = normal(B, N, K, G, D)
    found = jax.jit(partial(attention.attend, scores=scores))(queries, tuple(map(in_blocks, past)), *rest)
    np.testing.assert_allclose(found, attend_by_definition(queries, past, *rest, scores), atol=2e-5)
