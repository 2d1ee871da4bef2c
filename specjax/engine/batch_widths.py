"""The number of rows that a round computes: all slots, or as many as run.

The host keeps the books, see ``engine.row_subset``.
"""

from collections.abc import Sequence

from ..core.checks import shorten, whole
from ..errors import RequestError


def usual_widths(slots: int, on_mesh: bool = False) -> tuple[int, ...]:
    """The widths of a server: the powers of four up to a quarter of ``slots``, and none on a mesh.

    A round of half the slots takes almost as long as one of all, and its rows must be copied.
    """
    return () if on_mesh else tuple(4**i for i in range(slots.bit_length()) if 4 * 4**i <= slots)


def check_widths(widths: Sequence[int], slots: int) -> tuple[int, ...]:
    """The widths in order, each once.

    Raises RequestError unless they are numbers of rows below ``slots``.
    """
    if not isinstance(widths, list | tuple):
        raise RequestError(f"widths must be a list of numbers of rows, not {shorten(widths)}")
    sizes = {whole("widths", width) for width in widths}
    if sizes and max(sizes) >= slots:
        raise RequestError(f"widths must be below the {slots} slots, not {max(sizes)}; leave it out")
    return tuple(sorted(sizes))


class Copies:
    """Which row of which narrow state has the keys and values of a slot.

    A copy is void after another program has changed the slot.
    """

    def __init__(self):
        self._at: dict[int, tuple[int, int]] = {}

    def choose(self, running: Sequence[int], width: int, slots: int) -> list[int]:
        """``width`` slots for the rows of a narrow state: those in ``running``, and then others.

        A slot whose copy is in that state keeps its row.
        """
        at = {self._at[slot]: slot for slot in running if slot in self._at}
        some = [at.get((width, row)) for row in range(width)]
        rest = iter(dict.fromkeys(slot for slot in [*running, *range(slots)] if slot not in some))
        return [next(rest) if slot is None else slot for slot in some]

    def are_known(self, some: Sequence[int]) -> list[bool]:
        """Whether each row of the narrow state of the slots ``some`` has its slot's copy."""
        return [self._at.get(slot) == (len(some), row) for row, slot in enumerate(some)]

    def add(self, some: Sequence[int]) -> None:
        """Takes note that the narrow state of the slots ``some`` has their copies."""
        self._at |= {slot: (len(some), row) for row, slot in enumerate(some)}

    def forget(self, slot: int) -> None:
        """Takes note that a slot has changed."""
        self._at.pop(slot, None)

    def forget_all(self) -> None:
        """Takes note that all slots have changed."""
        self._at.clear()
