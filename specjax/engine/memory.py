"""Whether the slots of an engine fit the memory of its device."""

import os
from pathlib import Path

import jax
from jax.sharding import Mesh

from ..errors import RequestError

_MEMINFO = Path("/proc/meminfo")
_STATM = Path("/proc/self/statm")


def free_bytes(device) -> int | None:
    """The bytes of a device that nothing uses; for a CPU those of the host.

    None where nobody says it.
    """
    if stats := device.memory_stats():
        return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None
    if device.platform != "cpu" or not _MEMINFO.exists():
        return None
    return _read_meminfo("MemAvailable")


def all_bytes(device) -> int | None:
    """The bytes of a device; for a CPU those of the host. None where nobody says it."""
    if stats := device.memory_stats():
        return stats.get("bytes_limit")
    return _read_meminfo("MemTotal") if device.platform == "cpu" and _MEMINFO.exists() else None


def _read_meminfo(name: str) -> int:
    (line,) = [line for line in _MEMINFO.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def used_bytes() -> int:
    """The bytes in use on the first device, and for a CPU those of the process.

    0 where nobody says it.
    """
    (device, *_) = jax.local_devices()
    if stats := device.memory_stats():
        return stats.get("bytes_in_use", 0)
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if _STATM.exists() else 0


def check_memory(row, slots: int, copies: int, beside: int, mesh: Mesh | None = None) -> None:
    """Raises RequestError where a device has no room for its part of an engine's slots.

    Args:
      row: the state of one row, on the devices.
      slots: the number of slots, which the axis ``data`` of the mesh splits. One more row is needed
        while a prompt is read.
      copies: the rows of narrow states, see ``engine.row_subset``.
      beside: bytes that the engine needs beside the rows.
    """
    data = 1 if mesh is None else mesh.shape["data"]
    rows = slots // data if slots % data == 0 else slots
    parts = [leaf.addressable_shards[0] for leaf in jax.tree.leaves(row)]
    need = (rows + copies + 1) * sum(part.data.nbytes for part in parts) + beside
    free = free_bytes(parts[0].device)
    if free is not None and need > free:
        raise RequestError(
            f"{slots} slots need {need:,} bytes and the device has {free:,} bytes free; give fewer slots or "
            "widths, less capacity or less prefix_bytes"
        )


def count_blocks(blocks: int | None, share: float | None, least: int, size: int, nbytes: int) -> int:
    """The number of blocks of ``nbytes`` bytes: ``blocks``, or as many as fit.

    Args:
      share: the share of the first device's memory that may be in use.
      least: the blocks of ``size`` positions that the longest request needs.

    Raises RequestError for fewer blocks than this, and where the device has no room for them.
    """
    (device, *_) = jax.local_devices()
    free, total = free_bytes(device), all_bytes(device)
    if blocks is None:
        if free is None or total is None or share is None:
            raise RequestError("the device does not say how much memory it has; give blocks in place of memory")
        blocks = max(0, int(share * total) - (total - free)) // nbytes
    if blocks < least:
        raise RequestError(
            f"a request of {least * size:,} positions needs {least:,} blocks of {nbytes:,} bytes and there are "
            f"{blocks:,}; give more blocks or memory, or less capacity"
        )
    if free is not None and blocks * nbytes > free:
        raise RequestError(
            f"{blocks:,} blocks need {blocks * nbytes:,} bytes and the device has {free:,} bytes free; give fewer"
        )
    return blocks
