"""Reads the processor's energy counters, where the system shows them."""

from pathlib import Path

COUNTERS = Path("/sys/class/powercap")
"""The directory in which Linux shows the counters, as a rule only to the administrator."""


def read_joules(counters: Path | None = None) -> float | None:
    """The joules on the counters of all processor packages; None where no counter can be read."""
    try:
        packages = [path for path in (counters or COUNTERS).glob("intel-rapl:*") if path.name.count(":") == 1]
        return sum(int((path / "energy_uj").read_text()) for path in packages) / 1e6 if packages else None
    except (OSError, ValueError):
        return None


def joules_since(before: float | None, counters: Path | None = None) -> float | None:
    """The joules used since the counters showed ``before``.

    None without a counter, and where a counter has begun at 0 again, as it does after some 10^5
    joules.
    """
    after = read_joules(counters)
    return None if before is None or after is None or after < before else after - before
