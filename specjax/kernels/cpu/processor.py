"""The processor of this host: its name, and its instructions for products."""

import functools
import os
import platform
import re
from pathlib import Path

_MATRIX_EXTENSIONS = (
    "amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx_vnni", "avx2",
    "asimddp", "bf16", "i8mm", "sve",
)  # fmt: skip
"""Names of instructions for products, as Linux gives them, for x86 and Arm."""

_LEVELS = {"SSE4_2": "x86-64-v2", "AVX": "x86-64-v2", "AVX2": "x86-64-v3"}
"""LLVM's name of the processors to which the flag ``xla_cpu_max_isa`` limits programs."""


def processor() -> str:
    """The processor's name, or its architecture where the system gives no name."""
    return _entry("model name") or platform.processor() or "unknown"


@functools.cache
def matrix_extensions() -> tuple[str, ...]:
    """The instructions for products, which decide how fast a CPU decodes; empty where unknown.

    XLA's flag ``xla_cpu_max_isa`` also limits the kernels.
    """
    flags = _flags()
    usable = {"x86-64-v2": (), "x86-64-v3": ("avx2",)}.get(level() or "", _MATRIX_EXTENSIONS)
    return tuple(name for name in usable if name in flags)


def level() -> str | None:
    """LLVM's name of the oldest processor that programs shall run on; None for this one.

    The flag has names of x86, which have no meaning on Arm.
    """
    if platform.machine() in ("aarch64", "arm64"):
        return None
    match = re.search(r"--xla_cpu_max_isa=(\w+)", os.environ.get("XLA_FLAGS", ""))
    return _LEVELS.get(match[1]) if match else None


def _flags() -> list[str]:
    """The processor's instructions. A Mac has no list; with Arm it has dot products."""
    if (platform.system(), platform.machine()) == ("Darwin", "arm64"):
        return ["asimddp"]
    return (_entry("flags") or _entry("Features")).split()  # "Features" on Arm


def _entry(name: str) -> str:
    """An entry of the first processor in /proc/cpuinfo; empty where it is missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == name), "")
