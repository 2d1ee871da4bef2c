"""A target larger than the device's memory, in the hands of the compilers of TPU and GPU (second tier).

The models have few layers, each very wide, so that they compile in seconds. No weight is allocated.
"""

import jax.numpy as jnp
import pytest
from support.models import TINY

from specjax import make_mesh
from specjax.core.tree import from_paths
from specjax.drafters import DraftTree
from specjax.tools.plan import hlo
from specjax.tools.plan.abstract_arguments import abstract
from specjax.tools.plan.devices import DEVICES, compile_only, parse_device
from specjax.tools.plan.program import compile_loop
from specjax.tools.plan.program_figures import figures_of

TREE = from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])
"""Eight nodes with the root."""
SMALL = TINY.replace(vocab_size=8192, hidden_size=1024, intermediate_size=2816, head_dim=128, num_layers=1)
WIDE = SMALL.replace(num_kv_heads=8, num_layers=4)
TARGETS = {
    "v5e:1": WIDE.replace(hidden_size=12288, intermediate_size=51200, num_heads=96),
    "h100:1": WIDE.replace(hidden_size=32768, intermediate_size=122880, num_heads=256, num_layers=3),
}
"""Layers of 4.4 and 28.6 GB in bfloat16, 17.7 and 85.7 GB together."""
COMPILERS = {"v5e:1": ("libtpu", 3.1), "h100:1": ("jax_plugins.xla_cuda13", 2.1)}
"""The compiler's package, and the most layers that are on the device at a time. On TPUs a layer comes in halves."""


@pytest.mark.slow
@pytest.mark.parametrize("device", TARGETS)
def test_a_round_of_a_target_that_is_too_large(device):
    """It needs the memory of a few layers, and copies every weight of the layers from the host exactly once."""
    package, layers = COMPILERS[device]
    pytest.importorskip(package, reason="needs the compiler; scripts/test.sh --all installs it")
    name, shape = parse_device(device)
    mesh, target = make_mesh(devices=list(compile_only(name, shape))), TARGETS[device]
    program = abstract(target, DraftTree(TREE), (SMALL,), mesh, 1, 1024, jnp.dtype("bfloat16"), offload=True)
    loop, work = compile_loop(program)
    figures, size = figures_of(program, loop, work), 2.0 * target.layer_weights
    needed = figures.weights + figures.draft + figures.cache + figures.temporaries
    assert figures.host > DEVICES[name].memory > needed
    assert figures.host == pytest.approx(target.num_layers * size, rel=1e-4)  # and the norms
    assert figures.streamed == figures.host
    assert size < figures.temporaries < layers * size
    memory = loop.memory_analysis()
    assert memory.host_argument_size_in_bytes >= figures.host and memory.host_temp_size_in_bytes == 0
    assert figures.least > figures.host  # the products read every layer, and the draft
    assert figures.copies == 0 and hlo.host_calls(loop.as_text()) == []
