"""The processor of this host: its name, and its instructions for products."""

import functools
import platform
from pathlib import Path

_MATRIX_EXTENSIONS = (
    "amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx_vnni", "avx2", "bf16", "i8mm", "sve",
)  # fmt: skip
"""Names of instructions for products, as Linux gives them, for x86 and ARM."""


def processor() -> str:
    """The processor's name, or its architecture where the system gives no name."""
    return _entry("model name") or platform.processor() or "unknown"


@functools.cache
def matrix_extensions() -> tuple[str, ...]:
    """The instructions for products, which decide how fast a CPU decodes; empty where unknown."""
    flags = (_entry("flags") or _entry("Features")).split()  # "Features" on ARM
    return tuple(name for name in _MATRIX_EXTENSIONS if name in flags)


def _entry(name: str) -> str:
    """An entry of the first processor in /proc/cpuinfo; empty where it is missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == name), "")
