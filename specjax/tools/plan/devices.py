"""Published figures of devices, and compilers that need no device.

Figures are those of the vendors: Cloud TPU documentation for TPUs; NVIDIA's data sheets and the
white papers of its architectures for GPUs, without sparsity and with sums in float32. A T4 has no
bfloat16, so its operations are those of float16. ``link`` is the bandwidth of all links of one
device in one direction; for GPUs without NVLink it is that of PCIe. ``host_link`` is half of what
the data sheets give for PCIe Gen3, Gen4 and Gen5, whose figures are those of both directions.
Google publishes no such figure for the TPUs here. "How to Scale Your Model" (Austin et al. 2025)
gives 16 GB/s for TPU v4 and assumes 15 for v6e, so all TPUs have 16. A device of v7x is a half of
a chip, as JAX counts them.
"""

import dataclasses
import math
import os
import re
from importlib import util
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

from ...core.checks import shorten
from ...errors import RequestError

GB = 1e9


@dataclasses.dataclass(frozen=True)
class Device:
    """The figures of one device.

    Attributes:
      platform: "tpu" or "cuda".
      memory: bytes.
      bandwidth: bytes a second between memory and cores.
      flops: bfloat16 operations a second.
      link: bytes a second to the other devices.
      host_link: bytes a second from the host's memory.
      hop: seconds that a collective takes beside its bytes.
      launch: seconds from one kernel to the next; 0 where the whole program is one launch.
      cores, capability, shared: for GPUs the number of multiprocessors, the compute capability, and
        the largest shared memory of a block in bytes.
    """

    platform: str
    memory: float
    bandwidth: float
    flops: float
    link: float
    host_link: float
    hop: float
    launch: float = 0.0
    cores: int = 0
    capability: tuple[int, int] = (0, 0)
    shared: int = 0


def _gpu(memory: float, bandwidth: float, flops: float, link: float, host_link: float, **chip) -> Device:
    return Device("cuda", memory * GB, bandwidth * GB, flops * 1e12, link * GB, host_link * GB, 8e-6, 2e-6, **chip)


def _tpu(memory: float, bandwidth: float, flops: float, link: float) -> Device:
    return Device("tpu", memory * GB, bandwidth * GB, flops * 1e12, link * GB, 16 * GB, 1e-6)


DEVICES = {
    "v4": _tpu(32, 1228, 275, 300),
    "v5e": _tpu(16, 819, 197, 200),
    "v5p": _tpu(95, 2765, 459, 600),
    "v6e": _tpu(32, 1640, 918, 448),
    "v7x": _tpu(96, 3690, 1153, 600),
    "t4": _gpu(16, 320, 65, 16, 16, cores=40, capability=(7, 5), shared=65536),
    "a10g": _gpu(24, 600, 70, 32, 32, cores=80, capability=(8, 6), shared=101376),
    "l4": _gpu(24, 300, 121, 32, 32, cores=58, capability=(8, 9), shared=101376),
    "l40s": _gpu(48, 864, 362, 32, 32, cores=142, capability=(8, 9), shared=101376),
    "rtx3090": _gpu(24, 936, 71, 32, 32, cores=82, capability=(8, 6), shared=101376),
    "rtx4090": _gpu(24, 1008, 165, 32, 32, cores=128, capability=(8, 9), shared=101376),
    "rtx5090": _gpu(32, 1792, 209.5, 64, 64, cores=170, capability=(12, 0), shared=101376),
    "a100-40": _gpu(40, 1555, 312, 300, 32, cores=108, capability=(8, 0), shared=166912),
    "a100": _gpu(80, 2039, 312, 300, 32, cores=108, capability=(8, 0), shared=166912),
    "h100": _gpu(80, 3350, 989, 450, 64, cores=132, capability=(9, 0), shared=232448),
    "h200": _gpu(141, 4800, 989, 450, 64, cores=132, capability=(9, 0), shared=232448),
    "b200": _gpu(180, 8000, 2250, 900, 64, cores=148, capability=(10, 0), shared=232448),
}
"""The devices that ``specjax plan`` knows.

A launch of 2 µs and a hop of 8 µs are usual figures on GPUs.
"""

_TPUS: dict[str, dict[str, Any]] = {
    "v4": dict(kind="v4", cores=2, smallest=(2, 2, 1), options={"chip_config_name": "megacore"}),
    "v5e": dict(kind="v5litepod", cores=1, smallest=(2, 2)),
    "v5p": dict(kind="v5p", cores=2, smallest=(2, 2, 1)),
    "v6e": dict(kind="v6e", cores=1, smallest=(2, 2)),
    "v7x": dict(kind="tpu7x", cores=2, smallest=(2, 2, 1), name="tpu7x"),
}
"""For each TPU how libtpu names it: its kind with a number of cores, and its smallest topology."""

_PER_HOST = 8
"""GPUs that share a host and its fast links."""

_CHIP = """
gpu_device_info {{
  threads_per_block_limit: 1024  threads_per_warp: 32  shared_memory_per_block: 49152
  shared_memory_per_core: {per_core}  threads_per_core_limit: 2048  core_count: {cores}  fpus_per_core: 128
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth:.0f}  l2_cache_size: 52428800  clock_rate_ghz: 1.98  device_memory_size: {memory:.0f}
  shared_memory_per_block_optin: {shared}  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 13 }}
device_description_str: "{name}"
"""


def parse_device(text: str) -> tuple[str, tuple[int, ...]]:
    """Name and topology of devices such as "v5e:2x4", "h100:8" or "h200".

    Raises RequestError for an unknown device or a topology of another form.
    """
    name, _, shape = text.partition(":")
    if name not in DEVICES:
        raise RequestError(
            f"device {shorten(name)} is unknown; use one of {', '.join(DEVICES)}, such as v5e:2x4 or h100:8"
        )
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape := shape or "1"):
        raise RequestError(
            f"topology {shorten(shape)} of {name} is no product of numbers; write {name}:{_example(name)}"
        )
    topology: tuple[int, ...] = tuple(map(int, shape.split("x")))
    if DEVICES[name].platform == "cuda" and (
        len(topology) > 1 or max(topology) > _PER_HOST and max(topology) % _PER_HOST
    ):
        raise RequestError(f"topology {shorten(shape)}: GPUs are counted, up to 8 or in multiples of 8; write {name}:8")
    return name, topology


def compile_only(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Devices [n] that exist only for the compiler of their platform.

    Raises RequestError where the compiler is not installed, or refuses the topology.
    """
    device = DEVICES[name]
    try:
        devices = _tpus(name, shape) if device.platform == "tpu" else _gpus(name, device, shape[0])
    except (ImportError, KeyError):
        raise RequestError(
            f"the compiler for {name} is not installed; install it with pip install 'specjax[{device.platform}]'"
        ) from None
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RequestError(f"{name}:{'x'.join(map(str, shape))} is no topology of {name} ({reason}); "
                           f"use another, such as {name}:{_example(name)}") from None  # fmt: skip
    return np.array(devices)


def _tpus(name: str, shape: tuple[int, ...]) -> list[Any]:
    import libtpu  # type: ignore[import-not-found]  # noqa: F401  # the compiler

    if math.prod(shape) == 1:  # the smallest topology has four chips; one of them compiles alone
        return _tpus(name, _TPUS[name]["smallest"])[:1]
    # Without these variables libtpu asks the network for its TPU.
    tpu = _TPUS[name]
    settings = {
        "TPU_ACCELERATOR_TYPE": f"{tpu['kind']}-{math.prod(shape) * tpu['cores']}",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    os.environ.update({key: value for key, value in settings.items() if key not in os.environ})
    topology = f"{tpu.get('name', name)}:{'x'.join(map(str, shape))}"
    description = topologies.get_topology_desc(platform="tpu", topology_name=topology, **tpu.get("options", {}))
    return list(description.devices)


def _gpus(name: str, device: Device, count: int) -> list[Any]:
    if not any(util.find_spec(f"jax_plugins.xla_cuda{version}") for version in (12, 13)):
        raise ImportError("jax_plugins.xla_cuda13")
    major, minor = device.capability
    chip = _CHIP.format(
        name=f"NVIDIA {name.upper()}", cores=device.cores, bandwidth=device.bandwidth, memory=device.memory,
        shared=device.shared, per_core=device.shared + 1024, major=major, minor=minor,
    )  # fmt: skip
    hosts = max(1, count // _PER_HOST)
    description = topologies.get_topology_desc("", "cuda", target_config=chip, topology=f"1x{hosts}x{count // hosts}")
    return list(description.devices)


def _example(name: str) -> str:
    if name not in _TPUS:
        return "8"
    return "2x4" if len(_TPUS[name]["smallest"]) == 2 else "2x2x2"
