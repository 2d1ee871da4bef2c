"""The kernel of products with packed weights against numpy's reading of their numbers.

On a GPU the kernel runs itself, and elsewhere an interpreter runs it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.packed_weights import random_weight, rows_of

from specjax.kernels.gpu import cache_write, packed_product
from specjax.models import quantised_products

INTERPRET = jax.default_backend() != "gpu"
CASES = [
    (1, "int8", False, (1, 576, 32)),
    (17, "int8", True, (70, 96, 16)),
    (3, "int4", False, (33, 288, 32)),
    (64, "int4", True, (20, 160, 16)),
    (2, "int4", True, (20, 64, 8)),
    (5, "int8", True, (9, 80, 8)),
    (1, "int4", False, (7, 256, 128)),
    (9, "int8", False, (40, 1536, 768)),
    (4, "int4", True, (16, 128, 64)),
    (33, "int4", False, (130, 512, 32)),
]
"""Rows, the form, whether the weight has offsets, and outputs, inputs and inputs of a group.

Outputs and inputs fill no tile, and groups are smaller and larger than the bytes of one read.
"""


def relative_error(found, wanted: np.ndarray) -> float:
    return np.abs(np.float64(found) - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if i > 3 else ()) for i, case in enumerate(CASES)]
)
def test_the_kernel_multiplies_the_numbers(case):
    """numpy's product in float64."""
    count, scheme, offsets, shape = case
    weight, exact = random_weight(*shape, scheme, offsets, "float32")
    x = rows_of(count, shape[1])
    assert packed_product.fits(x, weight)
    found = packed_product.product(jnp.asarray(x), weight, interpret=INTERPRET)
    assert found.dtype == jnp.float32
    assert relative_error(found, np.float64(x) @ exact.T) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_shapes(seed: int):
    rng = np.random.default_rng(seed)
    group = int(rng.choice([16, 32, 64, 128]))
    shape = int(rng.integers(1, 200)), group * int(rng.integers(1, 12)), group
    count, scheme, offsets = int(rng.integers(1, 65)), str(rng.choice(["int4", "int8:exact"])), bool(rng.integers(2))
    weight, exact = random_weight(*shape, scheme, offsets, "float32")
    x = rows_of(count, shape[1])
    found = packed_product.product(jnp.asarray(x), weight, interpret=INTERPRET)
    assert relative_error(found, np.float64(x) @ exact.T) < 1e-6


@pytest.mark.parametrize("scheme", ["int4", pytest.param("int8", marks=pytest.mark.slow)])
def test_rows_are_rounded_to_the_dtype_of_the_weight_alone(scheme: str):
    """Bfloat16 activations: numbers of the weight and sums stay exact."""
    weight, exact = random_weight(40, 96, 32, scheme, True)
    x = rows_of(2, 96)
    found = packed_product.product(jnp.asarray(x), weight, interpret=INTERPRET)
    assert relative_error(found, np.float64(jnp.asarray(x, jnp.bfloat16)) @ exact.T) < 1e-6


def test_the_matrix_of_an_expert():
    pairs = [random_weight(20, 64, 32, "int4", False, "float32") for _ in range(2)]
    stack = jax.tree.map(lambda first, second: jnp.stack([first, -3 * second]), *[weight for weight, _ in pairs])
    stack = stack.replace(values=jnp.stack([weight.values for weight, _ in pairs]))
    x = rows_of(3, 64)
    found = packed_product.product(jnp.asarray(x), stack, jnp.int32(1), interpret=INTERPRET)
    assert relative_error(found, -3 * np.float64(x) @ pairs[1][1].T) < 1e-6


@pytest.mark.parametrize(
    ("rows", "inputs", "group", "scheme", "fits"),
    [(64, 96, 32, "int4", True), (65, 96, 32, "int4", False), (1, 48, 24, "int8", False), (1, 48, 16, "int4", True)],
)
def test_what_the_kernel_takes(monkeypatch, rows: int, inputs: int, group: int, scheme: str, fits: bool):
    """XLA multiplies more rows and other groups, and all rows where kernels may not be used."""
    weight, _ = random_weight(8, inputs, group, scheme, False)
    for usable in (True, False):
        monkeypatch.setattr(cache_write, "are_usable", lambda usable=usable: usable)
        assert bool(quantised_products._kernels(rows_of(rows, inputs), weight)) == (fits and usable)


@pytest.mark.skipif(not INTERPRET, reason="a GPU runs it")
def test_other_platforms_never_run_the_kernel(monkeypatch):
    """A program that may contain the kernel gives the CPU the bits that it had without it."""
    weight, _ = random_weight(40, 96, 32, "int4", True)
    multiply = jax.jit(quantised_products.multiply)
    expected = multiply(rows_of(3, 96), weight)
    monkeypatch.setattr(cache_write, "are_usable", lambda: True)
    multiply.clear_cache()
    np.testing.assert_array_equal(multiply(rows_of(3, 96), weight), expected)
