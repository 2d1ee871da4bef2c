"""Products with weights in tiles: every kind of instructions against numpy's reading of rows of numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from llvmlite import ir
from support.packed_weights import random_weight, rows_of

from specjax.kernels.cpu import processor, product, quads_llvm, tile_kernel_llvm, tiles
from specjax.models.quantised_products import multiply
from specjax.models.quantised_weights import Quantised

KINDS = [kind for kind in ("avx512_vnni", "avx_vnni", "avx2") if kind in processor.matrix_extensions()] + ["plain"]
KINDS += ["avx_vnni"] * (KINDS[0] == "avx512_vnni")  # AVX-512 has these instructions for half a register, too
KINDS += ["asimddp"]
SHAPES = (1, 576, 32), (20, 96, 16), (33, 40, 8), (100, 48, 24), (16, 128, 128), (7, 64, 64), (700, 32, 32)
"""Outputs, inputs and inputs of a group: outputs that fill no tile, one output, groups of each size."""


in_tiles = jax.jit(Quantised.in_tiles)


def rounded(x: np.ndarray, group: int, most: int = 127) -> np.ndarray:
    """Each group of a row as whole numbers times a scale, in float64."""
    groups = x.reshape(len(x), -1, min(group, 32))
    largest = np.abs(groups).max(-1, keepdims=True)
    q = np.rint(groups * (np.float32(most) / largest))
    return (np.float64(q) * np.float64(largest / np.float32(most))).reshape(x.shape)


@pytest.fixture(autouse=True)
def dot_products_of_arm(monkeypatch):
    """Other processors run Arm's code with the meaning of its instruction in place of it."""
    if "asimddp" not in processor.matrix_extensions():
        monkeypatch.setattr(quads_llvm, "signed_dot", signed_dot)


def signed_dot(kernel, sum_, a, b):
    """Lane i is added the products of bytes 4 i to 4 i + 3, with their signs."""
    build, wide = kernel.build, ir.VectorType(ir.IntType(32), 16)
    products = build.mul(build.sext(a, wide), build.sext(b, wide))
    for k in range(4):
        lanes = ir.VectorType(ir.IntType(32), 4)([4 * i + k for i in range(4)])
        sum_ = build.add(sum_, build.shuffle_vector(products, products, lanes))
    return sum_


@pytest.fixture(params=KINDS)
def kind(request, monkeypatch):
    monkeypatch.setattr(tiles, "instructions", lambda: request.param)


SCHEMES = ("int4", "int8", "int4:exact", "int8:exact")
# Every scheme meets four shapes and every shape two schemes, with and without offsets by turns; the second tier has all.
CASES = [
    pytest.param(
        scheme, offsets, shape, marks=pytest.mark.slow if (i + j + offsets) % 2 or (j + 2 * i) % len(SHAPES) > 3 else ()
    )
    for i, scheme in enumerate(SCHEMES)
    for offsets in (False, True)
    for j, shape in enumerate(SHAPES)
]


@pytest.mark.parametrize(("scheme", "offsets", "shape"), CASES)
def test_the_kernel_multiplies_rounded_rows(kind, scheme, offsets, shape):
    """numpy's product in float64. 65 rows are blocks of two sizes."""
    weight, exact = random_weight(*shape, scheme, offsets)
    for count in (1, 3, 65):
        x = rows_of(count, shape[1])
        found = jax.jit(multiply)(x, in_tiles(weight))
        wanted = rounded(x, shape[2], 32767 if scheme.endswith("exact") else 127) @ exact.T
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("scheme", ["int4:exact", "int8:exact"])
def test_the_exact_forms_are_finer_than_bfloat16(scheme, offsets):
    weight, exact = random_weight(100, 48, 24, scheme, offsets)
    x = rows_of(9, 48)
    wanted = np.float64(x) @ exact.T
    found = jax.jit(multiply)(x, weight.in_tiles())
    of_bfloat16 = np.float64(jnp.asarray(x, jnp.bfloat16)) @ exact.T
    assert np.abs(found - wanted).max() < 0.1 * np.abs(of_bfloat16 - wanted).max()


@pytest.mark.parametrize("scheme", ["int4", pytest.param("int8", marks=pytest.mark.slow), "int4:exact"])
def test_a_row_does_not_depend_on_other_rows(scheme):
    weight = random_weight(700, 96, 32, scheme, False)[0].in_tiles()
    x = rows_of(65, 96)
    whole = np.asarray(jax.jit(multiply)(x, weight))
    for count in (1, 2, 7, 8, 9, 64):
        np.testing.assert_array_equal(whole[:count], jax.jit(multiply)(x[:count], weight))


@pytest.mark.parametrize("scheme", ["int4", "int8", "int8:exact"])
def test_every_kind_of_instructions_gives_the_same_bits(scheme, monkeypatch):
    weight = random_weight(100, 96, 32, scheme, True)[0].in_tiles()
    found = []
    for kind in KINDS:
        monkeypatch.setattr(tiles, "instructions", lambda kind=kind: kind)
        found.append(np.asarray(jax.jit(lambda *given: multiply(*given))(rows_of(5, 96), weight)))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_share_a_product(monkeypatch, threads):
    """Many times, because helpers come late or not at all."""
    for module in (tiles, product):
        monkeypatch.setattr(module, "threads", lambda: threads)
    weight, exact = random_weight(2000, 576, 32, "int4", False)
    x, weight = rows_of(4, 576), weight.in_tiles()
    wanted = rounded(x, 32) @ exact.T
    multiply_ = jax.jit(lambda *given: multiply(*given))
    first = np.asarray(multiply_(x, weight))
    np.testing.assert_allclose(first, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())
    for _ in range(200):
        np.testing.assert_array_equal(first, multiply_(x, weight))


def test_rows_of_zeros_and_of_tiny_numbers_are_zeros():
    weight = random_weight(20, 64, 32, "int4", True)[0].in_tiles()
    x = jnp.zeros((2, 64)).at[1, 40].set(1e-38)
    np.testing.assert_allclose(jax.jit(multiply)(x, weight), np.zeros((2, 20)), atol=1e-35)


def test_one_of_several_weights_and_a_further_axis():
    """The matrix of an expert, by number; and rows [2, 3, in] by ``vmap``."""
    weights = [random_weight(20, 64, 32, "int8", False)[0], random_weight(20, 64, 32, "int8", False)[0]]
    weights[1] = weights[1].replace(scales=-2 * weights[1].scales)
    stack = jax.tree.map(lambda *each: jnp.stack(each), *[weight.in_tiles() for weight in weights])
    x = rows_of(6, 64)
    chosen = jax.jit(multiply)(x, stack, jnp.int32(1))
    np.testing.assert_array_equal(chosen, jax.jit(multiply)(x, weights[1].in_tiles()))
    mapped = jax.vmap(lambda rows: multiply(rows, weights[1].in_tiles()))(x.reshape(2, 3, -1))
    np.testing.assert_array_equal(mapped.reshape(6, -1), chosen)


@pytest.mark.parametrize(
    ("shape", "scheme"),
    [
        pytest.param(
            shape, scheme, marks=() if (i, scheme) in ((1, "int8"), (4, "int4"), (6, "int4")) else pytest.mark.slow
        )
        for i, shape in enumerate(SHAPES)
        for scheme in SCHEMES[:2]
    ],
)
def test_tiles_are_the_weight(scheme, shape):
    """Rows out of tiles have the same numbers, also of single tokens; shape and group do not change."""
    weight, exact = random_weight(*shape, scheme, True)
    tiled = in_tiles(weight)
    assert tiled.shape == weight.shape and tiled.group == min(weight.group, 32)
    np.testing.assert_array_equal(tiled.astype(jnp.float32), weight.astype(jnp.float32))
    np.testing.assert_allclose(weight.astype(jnp.float32), exact, rtol=1e-5, atol=1e-5)
    rows = np.arange(shape[0])[::-1].reshape(1, -1)
    np.testing.assert_array_equal(tiled[rows].astype(jnp.float32)[0], weight.astype(jnp.float32)[::-1])


def test_the_instructions_are_those_of_the_processor(monkeypatch):
    for extensions, kind in {(): "plain", ("avx2",): "avx2", ("avx_vnni", "avx2"): "avx_vnni",
                             ("avx512_vnni", "avx512f", "avx2"): "avx512_vnni",
                             ("asimddp", "bf16", "i8mm", "sve"): "asimddp"}.items():  # fmt: skip
        monkeypatch.setattr(tiles, "matrix_extensions", lambda extensions=extensions: extensions)
        assert tiles.instructions() == kind
    assert set(tile_kernel_llvm.LANES) == {"avx512_vnni", "avx_vnni", "avx2", "asimddp", "plain"}


@pytest.mark.slow
def test_a_broken_sum_is_noticed(monkeypatch):
    """The kernel without the excess of its numbers gives another product."""
    monkeypatch.setattr(tile_kernel_llvm.Form, "excess", property(lambda form: 1))
    monkeypatch.setattr(tiles, "instructions", lambda: "plain")
    weight, exact = random_weight(61, 32, 32, "int4", False)
    x = rows_of(61, 32)
    found = jax.jit(lambda *given: multiply(*given))(x, weight.in_tiles())
    assert np.abs(found - rounded(x, 32) @ exact.T).max() > 1
