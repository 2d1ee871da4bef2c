"""Reads the processor's energy counters, where the system shows them."""

from pathlib import Path

COUNTERS = Path("/sys/class/powercap")
"""The directory in which Linux shows the counters, as a rule only to the administrator."""


def read_joules(counters: Path | None = None) -> float | None:
    """The joules on the counters of all processor packages; None where no counter can be read."""
    try:
        paths = (counters or COUNTERS).glob("intel-rapl:*")
        packages = [path for path in paths if path.name.count(":") == 1]  # a second colon names a part of a package
        if not packages:
            return None
        return sum(int((path / "energy_uj").read_text()) for path in packages) / 1e6
    except (OSError, ValueError):
        return None


def joules_since(before: float | None, counters: Path | None = None) -> float | None:
    """The joules used since the counters showed ``before``.

    None if no counter can be read, or if a counter has wrapped around, as it does after some 10^5
    joules.
    """
    after = read_joules(counters)
    if before is None or after is None or after < before:
        return None
    return after - before
