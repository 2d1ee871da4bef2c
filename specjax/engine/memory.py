"""Whether the slots of an engine fit the memory of its device."""

from pathlib import Path

import jax

from ..errors import RequestError

_MEMINFO = Path("/proc/meminfo")


def free_bytes(device) -> int | None:
    """The bytes of a device that nothing uses; for a CPU those of the host. None where nobody says it."""
    if stats := device.memory_stats():
        return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None
    if device.platform != "cpu" or not _MEMINFO.exists():
        return None
    (line,) = [line for line in _MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:")]
    return int(line.split()[1]) * 1024


def check_memory(row, slots: int) -> None:
    """Raises RequestError where the device has no room for the slots of an engine.

    Args:
      row: the state of one row, on the device.
      slots: the number of slots. One more row is needed while a prompt is read.
    """
    leaves = jax.tree.leaves(row)
    (device,) = leaves[0].devices()
    need, free = (slots + 1) * sum(leaf.nbytes for leaf in leaves), free_bytes(device)
    if free is not None and need > free:
        raise RequestError(
            f"{slots} slots need {need:,} bytes and the device has {free:,} bytes free; give fewer slots or less capacity"
        )
