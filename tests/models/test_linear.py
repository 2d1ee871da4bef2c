"""Products of few rows: every form that a CPU may use gives the product, and the same gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import processor
from specjax.models import layers


@pytest.mark.parametrize("extensions", [(), ("amx_bf16",)], ids=["plain", "amx"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows, outputs", [(1, 12), (2, 15), (7, 11), (64, 12), (65, 12)])
def test_linear_is_the_product(monkeypatch, extensions, dtype, rows, outputs):
    """numpy's product in float64 of the same rounded operands; 11 outputs have no parts."""
    monkeypatch.setattr(layers, "matrix_extensions", lambda: extensions)
    random = np.random.default_rng(rows * outputs)
    x, weight, bias = (jnp.asarray(random.normal(size=s), dtype) for s in ((rows, 8), (outputs, 8), (outputs,)))
    exact = np.float64(x) @ np.float64(weight).T + np.float64(bias)
    found = jax.jit(layers.linear)(x.astype(jnp.float32), weight, bias)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("extensions", [(), ("amx_bf16",)], ids=["plain", "amx"])
def test_gradients_of_few_rows(monkeypatch, extensions):
    monkeypatch.setattr(layers, "matrix_extensions", lambda: extensions)
    x, weight = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(3, 8), (12, 8)]))
    along_rows, along_weight = jax.grad(lambda x, w: (layers.linear(x, w) ** 2).sum(), (0, 1))(x, weight)
    y = np.float64(x) @ np.float64(weight).T
    np.testing.assert_allclose(along_rows, 2 * y @ np.float64(weight), rtol=1e-4)
    np.testing.assert_allclose(along_weight, 2 * y.T @ np.float64(x), rtol=1e-4)


def test_extensions_are_read_from_the_processor(monkeypatch):
    text = "processor\t: 0\nmodel name\t: Some CPU: fast\nflags\t\t: fpu avx2 amx_bf16 amx_tile\n\nprocessor\t: 1\n"
    monkeypatch.setattr(processor.Path, "read_text", lambda self: text)
    processor.matrix_extensions.cache_clear()
    try:
        assert processor.processor() == "Some CPU: fast"
        assert processor.matrix_extensions() == ("amx_bf16", "avx2")
    finally:
        processor.matrix_extensions.cache_clear()


def test_a_system_without_that_file_has_no_known_extensions(monkeypatch):
    def missing(self):
        raise FileNotFoundError

    monkeypatch.setattr(processor.Path, "read_text", missing)
    processor.matrix_extensions.cache_clear()
    try:
        assert processor.matrix_extensions() == () and processor.processor()
    finally:
        processor.matrix_extensions.cache_clear()
