"""The rounds and the prompt tokens of an engine's step, by their measured times."""

_WEIGHT = 0.2
"""The weight of the newest time in a running average."""

_SECONDS = 0.02
"""The time of a step's rounds."""

_PAUSE = 0.1
"""The seconds for which running rows may wait for chunks in each step. A longer pause is seen."""


class StepSize:
    """Chooses the rounds of a step and the size of a chunk.

    The size is a power of two from ``least`` to ``most``. Several prompts may share it.

    A step has as many rounds as come nearest to ``_SECONDS``, from ``least_rounds`` to
    ``most_rounds``. So the fixed cost of a call of the device counts little, and nobody sees that
    tokens come together.

    While rows run, the chunks of a step take at most ``pause`` seconds or ``ratio`` times the time
    of its rounds, the larger of both, by running averages, or more where ``share`` says so. The
    size begins at ``least``. It is halved when its time is above this bound, and doubled when twice
    its time is not, because twice the tokens take at most twice the time. The bound moves with the
    rounds of a step, so the size is compared with it before each chunk. Without running rows it is
    ``most``. If ``least`` is ``most``, all chunks have this size, and a step has one.
    """

    def __init__(
        self,
        least: int,
        most: int,
        least_rounds: int = 1,
        most_rounds: int = 1,
        ratio: float = 0.9,
        pause: float = _PAUSE,
    ):
        self._least = least
        self._most = most
        self._ratio = self._share = ratio
        self._pause = pause
        self.least_rounds = least_rounds
        self._most_rounds = most_rounds
        self._size = least
        self._round = None
        self._chunk = None

    @property
    def rounds(self) -> int:
        """The rounds of the next step."""
        nearest = self.least_rounds if self._round is None else round(_SECONDS / self._round)
        return min(max(nearest, self.least_rounds), self._most_rounds)

    def share(self, unread: int, running: int) -> None:
        """Shares the time of a step among ``unread`` requests with slots and ``running`` rows.

        Where many requests come at once, few rows would else run in rounds of their own for long.
        """
        self._share = max(self._ratio, unread / max(running, 1))

    def size(self, running: bool) -> int:
        """The size of the next chunk. ``running``: whether rows wait for it."""
        if running and self._chunk is not None:
            if self._chunk > self._bound and self._size > self._least:
                self._size = self._size // 2
                self._chunk = None
            elif 2 * self._chunk <= self._bound and self._size < self._most:
                self._size = self._size * 2
                self._chunk = None
        return self._size if running else self._most

    def has_room(self, chunks: int, seconds: float, left: int | None = None) -> bool:
        """Whether a step may read one more chunk, such as a short prompt.

        It has read ``chunks`` chunks in ``seconds``. ``left``: tokens of the prompts that are read
        now; None for others.
        """
        if self._round is None or self._least == self._most:
            return False
        share = 1 if left is None else min(left / self._size, 1)
        return seconds + share * seconds / chunks <= self._bound

    def add_rounds(self, count: int, seconds: float) -> None:
        """Takes the time of the ``count`` rounds of a step."""
        self._round = _average(self._round, seconds / count)

    def add_chunk(self, size: int, seconds: float) -> None:
        """Takes the time of a chunk. Only chunks of the present size count."""
        if size != self._size or self._round is None:
            return
        self._chunk = _average(self._chunk, seconds)

    @property
    def _bound(self) -> float:
        """The most seconds of the chunks of a step."""
        return max(self._share * self.rounds * (self._round or 0), self._pause)


def _average(before: float | None, new: float) -> float:
    return new if before is None else before + _WEIGHT * (new - before)
