"""The loop in the hands of the GPU's own compiler, ahead of time and without a device (second tier)."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import topologies
from support.loops import compile_loop
from support.models import TINY
from support.program import Program

from specjax.drafters import DraftModel, DynamicTree, Plain
from specjax.kernels.gpu import attention as attention_kernel
from specjax.kernels.gpu import cache_write
from specjax.tools.plan import hlo, launches
from specjax.tools.plan.devices import DEVICES

pytestmark = pytest.mark.slow

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


def describe(name: str) -> str:
    """The description of a GPU that ``specjax plan`` knows."""
    device = DEVICES[name]
    major, minor = device.capability
    text = H200.replace("major: 9 minor: 0", f"major: {major} minor: {minor}").replace("H200", name.upper())
    return text.replace("232448", str(device.shared)).replace("233472", str(device.shared + 1024))


LLAMA = TINY.replace(
    vocab_size=8192,
    hidden_size=4096,
    intermediate_size=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position_embeddings=8192,
)
"""The widths of Llama-3-8B, with a small vocabulary."""
SMALL = LLAMA.replace(hidden_size=2048, intermediate_size=8192, head_dim=64, num_layers=1)


def make_gpu(description: str) -> jax.sharding.Sharding:
    """One GPU that exists only for the compiler."""
    pytest.importorskip("jax_plugins.xla_cuda13", reason="needs the CUDA plug-in; scripts/test.sh --all installs it")
    described = topologies.get_topology_desc("", "cuda", target_config=description, topology="1x1x1")
    return jax.sharding.SingleDeviceSharding(described.devices[0])


@pytest.fixture(scope="module")
def gpu() -> jax.sharding.Sharding:
    return make_gpu(H200)


def check(program: Program) -> None:
    """A round copies no cache, writes its caches in place and never calls the host."""
    assert len(hlo.in_loops(program.text)) > 300
    assert hlo.moved(program.text, program.caches) == []
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in program.cache_leaves)
    assert program.compiled.memory_analysis().alias_size_in_bytes >= size
    assert hlo.host_calls(program.text) == []


DRAFTERS = {"none": Plain(), "draft_model": DraftModel(5), "dynamic_tree": DynamicTree(23, 8, 4)}
"""Drafters whose trees have 1, 6 and 24 nodes."""


def check_launches(device, method: str, batch: int, most: float) -> None:
    """A layer of the target launches at most ``most`` kernels and has no loop, and the round keeps the rules of ``check``."""
    of_depth = {}
    for layers in (3, 4):
        models = LLAMA.replace(num_layers=layers), SMALL
        program = compile_loop(DRAFTERS[method], batch, dtype=jnp.bfloat16, models=models, capacity=1024, device=device)
        check(program)
        of_depth[layers] = program.text
    loops = {sum(i.opcode == "while" for i in hlo.in_loops(text)) for text in of_depth.values()}
    assert len(loops) == 1
    assert launches.a_layer(of_depth[3], of_depth[4], 1) <= most


@pytest.mark.parametrize(("method", "batch"), [("none", 1), ("dynamic_tree", 8)])
def test_launches_with_kernels(gpu, method: str, batch: int, monkeypatch):
    monkeypatch.setenv("SPECJAX_KERNELS", "1")
    assert cache_write.are_usable()
    check_launches(gpu, method, batch, 12 if method == "none" else 13)


def test_launches_without_kernels(gpu, monkeypatch):
    monkeypatch.setenv("SPECJAX_KERNELS", "0")
    assert not cache_write.are_usable()
    check_launches(gpu, "draft_model", 1, 24)


@pytest.mark.parametrize("name", ["a100", "rtx3090", "l4", "h100", "b200", "rtx5090"])
@pytest.mark.parametrize("nodes, head_dim, earlier, window", [(1, 128, 0, None), (24, 64, 5, 512), (64, 256, 0, None)])
def test_attention_kernel_compiles(name: str, nodes: int, head_dim: int, earlier: int, window: int | None):
    text = compile_attention(name, nodes, head_dim, earlier, window)
    assert "decode_attention" in text
    assert launches.in_program(text) <= 3  # the mask's conversion, the kernel, and the merge where a past is shared


def test_a_gpu_without_triton_gets_no_kernels(monkeypatch):
    """A T4 is older than Ampere: the compiler refuses the kernel, so no program for a T4 has it."""
    with pytest.raises(jax.errors.JaxRuntimeError, match="compute capability 7.5"):
        compile_attention("t4", 1, 128, 0, None)
    t4 = SimpleNamespace(compute_capability="7.5")
    monkeypatch.setattr(jax, "devices", lambda: [t4])
    monkeypatch.setenv("SPECJAX_KERNELS", "1")
    cache_write._are_installed.cache_clear()
    assert not cache_write.are_usable()
    monkeypatch.undo()
    cache_write._are_installed.cache_clear()


def compile_attention(name: str, nodes: int, head_dim: int, earlier: int, window: int | None) -> str:
    """The text of the kernel's program for a GPU."""
    B, K, G, T = 2, 8, 4, 1000
    device = make_gpu(describe(name))
    of = lambda dtype, *shape: jax.ShapeDtypeStruct(shape, dtype, sharding=device)
    pair = lambda count: (of(jnp.bfloat16, B, K, count, head_dim),) * 2
    arguments = (
        of(jnp.float32, B, nodes, K, G + 2, head_dim),
        (of(jnp.float32, B, nodes, head_dim // 2),) * 2,
        pair(T),
        of(jnp.int32, B),
        pair(earlier) if earlier else None,
        of(jnp.bool_, B, nodes, earlier + nodes),
        of(jnp.int32, B, nodes),
    )
    return attention_kernel.attend.lower(*arguments, scores=attention_kernel.Scores(window)).compile().as_text()
