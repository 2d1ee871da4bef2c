"""How many tokens of a prompt are read between two rounds, so that running rows hardly wait."""

_WEIGHT = 0.2
"""The weight of the newest time in a running average."""


class Pace:
    """Chooses the size of a chunk, a power of two from ``least`` to ``most``.

    While rows run, a chunk takes at most ``ratio`` times the time of their rounds, by running
    averages. So the time between two of their tokens grows by at most ``1 + ratio``. The size begins
    at ``least``. It is halved when its time is above this bound, and doubled when twice its time is
    not, because twice the tokens take at most twice the time. Without running rows it is ``most``.
    """

    def __init__(self, least: int, most: int, ratio: float = 2.0):
        self._least, self._most, self._ratio = least, most, ratio
        self._size, self._round, self._chunk = least, None, None

    def size(self, running: bool) -> int:
        """The size of the next chunk. ``running``: whether rows wait for it."""
        return self._size if running else self._most

    def add_round(self, seconds: float) -> None:
        """Takes the time of the rounds between two chunks."""
        self._round = _average(self._round, seconds)

    def add_chunk(self, size: int, seconds: float) -> None:
        """Takes the time of a chunk. Only chunks of the present size count."""
        if size != self._size or self._round is None:
            return
        self._chunk = _average(self._chunk, seconds)
        bound = self._ratio * self._round
        if self._chunk > bound and self._size > self._least:
            self._size, self._chunk = self._size // 2, None
        elif 2 * self._chunk <= bound and self._size < self._most:
            self._size, self._chunk = self._size * 2, None


def _average(before: float | None, new: float) -> float:
    return new if before is None else before + _WEIGHT * (new - before)
