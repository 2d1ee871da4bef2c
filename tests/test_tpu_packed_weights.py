"""Packed weights in the hands of the TPU's own compiler, without a chip (second tier)."""

import math
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from specjax.models.quantised_products import multiply
from specjax.models.quantised_weights import Quantised
from specjax.tools.plan import hlo, traffic
from specjax.tools.plan.devices import compile_only, parse_device
from specjax.tools.plan.instruction_bytes import FAST, result_of

pytestmark = pytest.mark.slow

WIDTH, UNITS, MATRICES = 4096, 14336, 4
"""Weights of Llama-3-8B. Four of them are more than a TPU's fast memory holds."""


def compile_rounds(chip: str, form: str, rows: int) -> tuple[str, int]:
    """The text of a loop that multiplies rows with all weights in each round, and the bytes of the weights."""
    pytest.importorskip("libtpu", reason="needs libtpu, the TPU compiler; scripts/test.sh --all installs it")
    device = jax.sharding.SingleDeviceSharding(compile_only(*parse_device(chip))[0])
    of = lambda dtype, *shape: jax.ShapeDtypeStruct(shape, dtype, sharding=device)

    def weight(outputs: int, inputs: int) -> Quantised:
        values = of(jnp.uint8, outputs, inputs // 2) if form == "int4" else of(jnp.int8, outputs, inputs)
        return Quantised(values, of(jnp.float32, outputs, inputs // 32), form, jnp.dtype("bfloat16"))

    weights = [weight(UNITS, WIDTH) if i % 2 == 0 else weight(WIDTH, UNITS) for i in range(MATRICES)]

    def run(weights, x, rounds):
        def one_round(state):
            i, x = state
            for weight in weights:
                y = multiply(x, weight)
                x = y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5)
            return i + 1, x

        return lax.while_loop(lambda state: state[0] < rounds, one_round, (jnp.int32(0), x))

    text = jax.jit(run).lower(weights, of(jnp.float32, rows, WIDTH), of(jnp.int32)).compile().as_text()
    return text, sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(weights))


def widened(text: str) -> list[str]:
    """The arrays in memory with as many numbers as a weight, of two bytes or more each, that a round writes."""
    shapes = [shape for i in hlo.in_loops(text) if i.opcode in ("fusion", "convert", "copy", "multiply")
              for shape in re.findall(r"(?:bf16|f32|s32)\[[\d,]+\]\{[^}]*\}", result_of(i))]  # fmt: skip
    elements = lambda shape: math.prod(map(int, re.findall(r"\d+", shape[shape.index("[") : shape.index("]")])))
    return [shape for shape in shapes if elements(shape) >= WIDTH * UNITS and FAST not in shape]


@pytest.mark.parametrize("rows", [1, 24])
@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e"])
def test_a_round_reads_weights_packed(chip: str, form: str, rows: int):
    """With the activations at most 1.2 times their bytes, and 1.6 times those of four bits and several rows."""
    text, packed = compile_rounds(f"{chip}:1", form, rows)
    assert widened(text) == []
    most = 1.6 if form == "int4" and rows > 1 else 1.2
    assert 0.9 * packed < traffic.Program(text).bytes_moved() < most * packed
