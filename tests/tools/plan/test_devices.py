"""Names of devices, and compilers that are not installed."""

import sys
from importlib import util

import jax
import jax.numpy as jnp
import pytest

from specjax import RequestError
from specjax.tools.plan.devices import DEVICES, compile_only, parse_device


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("v5e:2x4", ("v5e", (2, 4))),
        ("v5p:2x2x2", ("v5p", (2, 2, 2))),
        ("h100:8", ("h100", (8,))),
        ("h200", ("h200", (1,))),
    ],
)
def test_names_and_topologies(text, parsed):
    assert parse_device(text) == parsed


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("h300:8", "device 'h300' is unknown; use one of v4, v5e, "),
        ("", "device '' is unknown"),
        ("v5e:2x", "topology '2x' of v5e is no product of numbers; write v5e:2x4"),
        ("v5e:0x4", "no product of numbers"),
        ("h100:-1", "no product of numbers; write h100:8"),
        ("h100:2x2", "GPUs are counted"),
        ("h100:12", "up to 8 or in multiples of 8"),
    ],
)
def test_other_names_are_refused(text, named):
    with pytest.raises(RequestError, match=named):
        parse_device(text)


@pytest.mark.parametrize(("name", "extra"), [("v5e", "tpu"), ("h100", "cuda")])
def test_a_missing_compiler_names_its_extra(monkeypatch, name, extra):
    monkeypatch.setitem(sys.modules, "libtpu", None)
    monkeypatch.setattr(util, "find_spec", lambda module: None)
    with pytest.raises(RequestError, match=rf"compiler for {name} is not installed; .* 'specjax\[{extra}\]'"):
        compile_only(name, (1,))


def test_published_figures_are_in_si_units():
    """Two data sheets: TPU v5e and H100 SXM."""
    v5e, h100 = DEVICES["v5e"], DEVICES["h100"]
    assert (v5e.memory, v5e.bandwidth, v5e.flops, v5e.launch) == (16e9, 819e9, 197e12, 0)
    assert (h100.memory, h100.bandwidth, h100.flops, h100.link) == (80e9, 3.35e12, 989e12, 450e9)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEVICES)
def test_the_compiler_of_each_device_compiles_for_one_of_it(name):
    (device,) = compile_only(name, (1,))
    sharding = jax.sharding.SingleDeviceSharding(device)
    dtype, kind = (jnp.float16, "f16") if name == "t4" else (jnp.bfloat16, "bf16")
    abstract = jax.ShapeDtypeStruct((256, 256), dtype, sharding=sharding)
    text = jax.jit(lambda x: jnp.tanh(x @ x)).lower(abstract).compile().as_text()
    assert f"{kind}[256,256]" in text
