"""The loop in the hands of the TPU's and the GPU's own compilers, ahead of time and without a device (second tier)."""

import jax
import jax.numpy as jnp
import pytest
from support.loops import ONE_LAYER, compile_loop, make_drafters
from support.models import TINY
from support.program import Program

from specjax import Drafter
from specjax.drafters import DraftModel
from specjax.planning import hlo

pytestmark = pytest.mark.slow

WIDE = TINY.replace(
    vocab_size=32000, hidden_size=512, intermediate_size=1408, num_heads=4, num_kv_heads=2, head_dim=128
)
"""Realistic widths, which TPU and GPU lay out as they lay out large models."""
DRAFTERS = make_drafters(WIDE.replace(**ONE_LAYER))

H200 = """
gpu_device_info {
  threads_per_block_limit: 1024  threads_per_warp: 32  shared_memory_per_block: 49152  shared_memory_per_core: 233472
  threads_per_core_limit: 2048  core_count: 132  fpus_per_core: 128
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000  l2_cache_size: 52428800  clock_rate_ghz: 1.98  device_memory_size: 150000000000
  shared_memory_per_block_optin: 232448  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 13 }
device_description_str: "NVIDIA H200"
"""
"""The description from which the CUDA plug-in makes a device that exists only for its compiler."""


@pytest.fixture(scope="module")
def tpu() -> jax.sharding.Sharding:
    """One chip of a TPU v5e that exists only for the compiler."""
    pytest.importorskip("libtpu", reason="needs libtpu, the TPU compiler; scripts/test.sh --all installs it")
    from jax.experimental import topologies

    with pytest.MonkeyPatch.context() as patch:  # without these variables libtpu asks the network for its TPU
        patch.setenv("TPU_ACCELERATOR_TYPE", "v5litepod-8")
        patch.setenv("TPU_SKIP_MDS_QUERY", "1")
        patch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
        patch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
        yield jax.sharding.SingleDeviceSharding(topology.devices[0])


@pytest.fixture(scope="module")
def gpu() -> jax.sharding.Sharding:
    """One H200 that exists only for the compiler."""
    pytest.importorskip("jax_plugins.xla_cuda13", reason="needs the CUDA plug-in; scripts/test.sh --all installs it")
    from jax._src import xla_bridge

    topology = xla_bridge.make_pjrt_topology("cuda", "", target_config=H200, topology="1x1x1")
    return jax.sharding.SingleDeviceSharding(topology._make_compile_only_devices()[0])


def compile_wide(device: jax.sharding.Sharding, drafter: Drafter, batch: int) -> Program:
    """The loop with models of realistic widths and a cache of 1,024 positions in bfloat16."""
    models = WIDE, WIDE.replace(**ONE_LAYER)
    return compile_loop(drafter, batch, dtype=jnp.bfloat16, models=models, capacity=1024, device=device)


def check(program: Program) -> None:
    """A round copies no cache, writes its caches in place and never calls the host."""
    assert len(hlo.in_loops(program.text)) > 300
    assert hlo.moved(program.text, program.caches) == []
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in program.cache_leaves)
    assert program.compiled.memory_analysis().alias_size_in_bytes >= size
    assert hlo.host_calls(program.text) == []


@pytest.mark.parametrize("method", ["draft_model", "tree", "eagle3", "block"])
def test_tpu_loop_copies_no_cache(tpu, method: str):
    """Batch 2: the row loop that writes the cache made libtpu 0.0.42.1 fail from two rows on.

    These methods have every writer of a cache: the target's alone, a draft model's, a head's and a block's context. Other
    methods write by the same functions; a compilation takes a minute.
    """
    check(compile_wide(tpu, DRAFTERS[method], 2))


@pytest.mark.parametrize("batch", [1, 4])
def test_tpu_loop_of_other_batches_copies_no_cache(tpu, batch: int):
    check(compile_wide(tpu, DraftModel(5), batch))


@pytest.mark.parametrize("batch", [1, 4])
def test_gpu_loop_copies_no_cache(gpu, batch: int):
    check(compile_wide(gpu, DraftModel(5), batch))
