"""Products of few rows: every form that a CPU may use gives the product, and the same gradients."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import parallel
from specjax.kernels.cpu import llvm, processor, product_llvm
from specjax.kernels.cpu import product as product_kernel
from specjax.models import layers


@pytest.mark.parametrize("extensions", [(), ("amx_bf16",)], ids=["plain", "amx"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows, outputs", [(1, 12), (2, 15), (7, 11), (64, 12), (65, 12)])
def test_linear_is_the_product(monkeypatch, extensions, dtype, rows, outputs):
    """numpy's product in float64 of the same rounded operands; 11 outputs have no parts."""
    monkeypatch.setattr(layers, "matrix_extensions", lambda: extensions)
    monkeypatch.setattr(product_kernel, "is_installed", lambda: False)
    random = np.random.default_rng(rows * outputs)
    x, weight, bias = (jnp.asarray(random.normal(size=s), dtype) for s in ((rows, 8), (outputs, 8), (outputs,)))
    exact = np.float64(x) @ np.float64(weight).T + np.float64(bias)
    found = jax.jit(layers.linear)(x.astype(jnp.float32), weight, bias)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("outputs", [11, 12, 15])
def test_parts_are_the_product(outputs):
    """11 outputs have no parts."""
    x, weight = operands(3, outputs, 8)
    found = layers.multiply_in_parts(x, weight)
    np.testing.assert_allclose(found, np.float64(x) @ np.float64(weight).T, rtol=1e-5)


@pytest.mark.parametrize("extensions", [(), ("amx_bf16",)], ids=["plain", "amx"])
def test_gradients_of_few_rows(monkeypatch, extensions):
    monkeypatch.setattr(layers, "matrix_extensions", lambda: extensions)
    monkeypatch.setattr(product_kernel, "is_installed", lambda: False)
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


@pytest.mark.parametrize("most, found", [("AVX2", ("avx2",)), ("SSE4_2", ()), ("AMX", ("amx_bf16", "avx2"))])
def test_the_flag_of_xla_limits_the_extensions(monkeypatch, most, found):
    monkeypatch.setattr(processor.Path, "read_text", lambda self: "flags\t\t: avx2 amx_bf16\n")
    monkeypatch.setenv("XLA_FLAGS", f"--xla_foo=1 --xla_cpu_max_isa={most}")
    assert processor.matrix_extensions.__wrapped__() == found


def test_a_system_without_that_file_has_no_known_extensions(monkeypatch):
    def missing(self):
        raise FileNotFoundError

    monkeypatch.setattr(processor.Path, "read_text", missing)
    processor.matrix_extensions.cache_clear()
    try:
        assert processor.matrix_extensions() == () and processor.processor()
    finally:
        processor.matrix_extensions.cache_clear()


@pytest.fixture(params=[("avx512_bf16",), ()], ids=["dot", "widened"])
def kernel(request, monkeypatch):
    """The kernel with and without the processor's dot products, as far as this processor has them."""
    if set(request.param) <= set(processor.matrix_extensions()):
        monkeypatch.setattr(product_kernel, "matrix_extensions", lambda: request.param)
    return product_kernel


def operands(rows: int, outputs: int = 804, inputs: int = 1056):
    random = np.random.default_rng(rows)
    return [jax.device_put(random.normal(size=(n, inputs)).astype(jnp.bfloat16)) for n in (rows, outputs)]


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 13, 64])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_kernel_is_the_product(monkeypatch, kernel, rows, threads):
    """numpy's product in float64. 804 outputs are 201 blocks, which chunks share unevenly."""
    monkeypatch.setattr(product_kernel, "threads", lambda: threads)
    x, weight = operands(rows)
    compiled = jax.jit(lambda x, weight: kernel.product(x, weight)).lower(x, weight).compile()
    found = compiled(x, weight)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, np.float64(x) @ np.float64(weight).T, atol=3e-5)
    assert compiled.as_text().count("custom_call_target=") == 1


def test_a_row_of_the_kernel_does_not_depend_on_other_rows(kernel):
    x, weight = operands(64)
    multiply = jax.jit(lambda *given: kernel.product(*given))
    whole = np.asarray(multiply(x, weight))
    for rows in (1, 2, 6, 7):
        np.testing.assert_array_equal(whole[:rows], multiply(np.asarray(x)[:rows], weight))


def test_the_kernel_maps_over_a_further_axis(kernel):
    x, weight = operands(6)
    found = jax.jit(jax.vmap(lambda *given: kernel.product(*given), (0, None)))(np.reshape(x, (2, 3, -1)), weight)
    multiply = jax.jit(lambda *given: kernel.product(*given))
    np.testing.assert_array_equal(np.reshape(found, (6, -1)), multiply(x, weight))


def test_where_the_kernel_fits(monkeypatch):
    fits = lambda rows, outputs, inputs, dtype="bfloat16": product_kernel.fits(
        jnp.zeros((rows, inputs), dtype), jnp.zeros((outputs, inputs), dtype)
    )
    monkeypatch.setattr(product_kernel, "matrix_extensions", lambda: ("avx512_bf16",))
    assert fits(1, 4, 32) and fits(64, 4, 32) and not fits(65, 4, 32)
    assert not fits(1, 6, 32) and not fits(1, 4, 48) and not fits(1, 4, 32, "float32")
    for others in [(), ("amx_bf16", "avx512_bf16")]:
        monkeypatch.setattr(product_kernel, "matrix_extensions", lambda others=others: others)
        assert fits(8, 4, 32) and not fits(9, 4, 32)
    with parallel.use_mesh(parallel.make_mesh(data=2)):
        assert not fits(1, 4, 32)
    monkeypatch.setattr(product_kernel, "is_installed", lambda: False)
    assert not fits(1, 4, 32)


def test_linear_uses_the_kernel_if_it_is_installed(monkeypatch):
    def text(rows):
        return jax.jit(layers.linear).lower(*operands(rows)).compile().as_text()

    assert "specjax_product_3" in text(3)
    monkeypatch.setattr(product_kernel, "is_installed", lambda: False)
    assert "specjax_product" not in text(4)


def test_two_threads_register_a_kernel_once():
    """XLA refuses a second kernel of the same name, once it has a device."""
    jax.devices()
    register = lambda _: llvm.register(product_llvm.product, 61, 1, False, False)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(register, range(4))) == {"specjax_product_61_1_False_False"}


@pytest.mark.parametrize("version, usable", [("0.50.0", True), ("0.51.0rc1", True), ("1.0", True), ("0.43.0", False)])
def test_an_old_llvmlite_is_not_used(monkeypatch, version, usable):
    monkeypatch.setattr(product_kernel.metadata, "version", lambda name: version)
    assert product_kernel.is_installed.__wrapped__() == usable


def test_without_llvmlite_there_is_no_kernel(monkeypatch):
    def missing(name):
        raise product_kernel.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(product_kernel.metadata, "version", missing)
    assert not product_kernel.is_installed.__wrapped__()
