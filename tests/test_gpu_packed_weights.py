"""Packed weights in the hands of the GPU's own compiler, without a device (second tier)."""

import re
from functools import cache

import jax
import jax.numpy as jnp
import pytest
from test_gpu_compiler import LLAMA

from specjax import make_mesh
from specjax.drafters import Ngram, Plain
from specjax.kernels.gpu import cache_write, packed_product
from specjax.models import quantised_products
from specjax.models.quantised_weights import Quantised
from specjax.tools.plan import launches
from specjax.tools.plan.abstract_arguments import abstract
from specjax.tools.plan.devices import compile_only, parse_device
from specjax.tools.plan.program import compile_loop
from specjax.tools.plan.program_figures import Figures, figures_of

pytestmark = pytest.mark.slow

OUTPUTS, INPUTS = 4096, 4096
CHIPS = "a100", "rtx3090", "l4", "h100", "b200", "rtx5090"
"""GPUs of compute capability 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0."""


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    pytest.importorskip("jax_plugins.xla_cuda13", reason="needs the CUDA plug-in; scripts/test.sh --all installs it")
    monkeypatch.setenv("SPECJAX_KERNELS", "1")


def compile_product(chip: str, form: str, rows: int, group: int = 32, offsets: bool = False, options=None):
    """The compiled product of float32 rows and a weight [OUTPUTS, INPUTS], and the bytes of the weight."""
    device = jax.sharding.SingleDeviceSharding(compile_only(*parse_device(chip))[0])
    of = lambda dtype, *shape: jax.ShapeDtypeStruct(shape, dtype, sharding=device)
    values = of(jnp.uint8, OUTPUTS, INPUTS // 2) if form == "int4" else of(jnp.int8, OUTPUTS, INPUTS)
    scales = of(jnp.float32, OUTPUTS, INPUTS // group)
    weight = Quantised(values, scales, form, jnp.dtype("bfloat16"), scales if offsets else None)
    multiply = jax.jit(lambda *given: quantised_products.multiply(*given))
    compiled = multiply.lower(of(jnp.float32, rows, INPUTS), weight).compile(compiler_options=options)
    return compiled, sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(weight))


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("form, rows, group, offsets", [
    ("int8", 1, 32, False), ("int4", 1, 32, False), ("int4", 24, 16, True), ("int8", 64, 128, True),
])  # fmt: skip
def test_no_widened_weight_is_in_memory(chip: str, form: str, rows: int, group: int, offsets: bool):
    """One kernel; beside it the rows in the weight's dtype, and the sum of the shares."""
    compiled, packed = compile_product(chip, form, rows, group, offsets)
    assert "packed_product" in compiled.as_text() and launches.in_program(compiled.as_text()) <= 3
    shares = packed_product._PROGRAMS * packed_product._TILE // OUTPUTS
    assert compiled.memory_analysis().temp_size_in_bytes <= 4 * rows * (shares * OUTPUTS + INPUTS)
    assert compiled.memory_analysis().temp_size_in_bytes < packed


def test_xla_would_write_the_widened_weight(monkeypatch):
    """The reason for the kernel: two bytes for each number of four bits."""
    monkeypatch.setenv("SPECJAX_KERNELS", "0")
    compiled, packed = compile_product("h200", "int4", 2)
    assert compiled.memory_analysis().temp_size_in_bytes > 2 * OUTPUTS * INPUTS > 3 * packed


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("chip", ["a100", "h200", "b200"])
def test_all_numbers_of_rows_have_one_kind_of_instructions(chip: str, form: str, tmp_path):
    """So a row's sums do not depend on other rows: the same products of 16 inputs, in the same order."""
    kinds = set()
    for rows in (1, 16, 17, 64):
        folder = tmp_path / str(rows)
        compile_product(chip, form, rows, options={"xla_dump_to": str(folder)})
        text = "".join(path.read_text() for path in folder.glob("*.ptx"))
        kinds.add(frozenset(re.findall(r"\b(?:wgmma|mma|tcgen05)\.[\w.]+", text)))
    assert kinds == {frozenset({"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"})}


def test_a_gpu_too_old_gets_xla_products(monkeypatch):
    """A T4 is older than Ampere: the compiler refuses the kernel, so no program for a T4 has it."""
    with pytest.raises(jax.errors.JaxRuntimeError, match="compute capability 7.5"):
        compile_product("t4", "int8", 1)
    monkeypatch.setattr(cache_write, "_are_installed", lambda: False)
    compiled, _ = compile_product("t4", "int8", 1)
    assert "packed_product" not in compiled.as_text()
    assert compiled.memory_analysis().temp_size_in_bytes < OUTPUTS * INPUTS  # a single row widens nothing


@cache
def loop_of(form: str | None, drafter, layers: int) -> tuple[str, Figures]:
    """The text and the figures of a loop for an H200 with the widths of Llama-3-8B."""
    mesh = make_mesh(devices=list(compile_only(*parse_device("h200"))))
    sizes = 1, 1024, jnp.dtype("bfloat16")
    program = abstract(LLAMA.replace(num_layers=layers), drafter, (), mesh, *sizes, quantize=form)
    loop, work = compile_loop(program)
    return loop.as_text(), figures_of(program, loop, work)


@pytest.mark.parametrize("drafter", [Plain(), Ngram(5)], ids=["plain", "a chain of 6"])
@pytest.mark.parametrize("form", ["int8", "int4"])
def test_a_round_reads_packed_weights_once(form: str, drafter):
    """A layer launches as many kernels as with bfloat16, and moves no more beside its weights."""
    of_form = {name: [loop_of(name, drafter, layers) for layers in (2, 3)] for name in (None, form)}
    beside = {
        name: (deep.moved - deep.weights) - (shallow.moved - shallow.weights)
        for name, ((_, shallow), (_, deep)) in of_form.items()
    }
    assert 0 < beside[form] <= 1.1 * beside[None]
    counts = {name: launches.a_layer(shallow, deep, 1) for name, ((shallow, _), (deep, _)) in of_form.items()}
    assert counts[form] <= counts[None] <= 12
