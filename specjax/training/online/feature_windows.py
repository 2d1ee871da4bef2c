"""The features that a generator's calls record, cut into windows for training."""

import dataclasses
from collections import deque
from typing import Any, NamedTuple

import jax
import numpy as np

from ...core.feature_record import FeatureRecording, Features
from ...core.state import DecodeState
from ...errors import RequestError
from ...parallel import fetch


class RecordedWindow(NamedTuple):
    """Windows of S tokens with their features, see ``core.feature_record.Features``.

    Attributes:
      tokens: int32 [W, S].
      taps: float32 [W, S, n, E].
      hidden: float32 [W, S, E].
    """

    tokens: Any
    taps: Any
    hidden: Any


@dataclasses.dataclass
class RecordedFeatures:
    """The newest windows that a session has recorded; a ``text.session.Log``.

    The session drains the features of each row from the device when the record is full, or when all
    rows have ended. A window has the tokens of one row and one drain. It begins without the tokens
    before it, like the windows of other trainings.

    Attributes:
      length: the number of tokens in a window, S. A shorter answer fills the rest with void tokens.
      recording: the size of the record on the device.
      most: the number of newest windows that stay in memory.
      windows: pairs of a window and the number of its tokens, oldest first.
    """

    length: int
    recording: FeatureRecording = FeatureRecording()
    most: int = 1024

    def __post_init__(self):
        self.windows: deque[tuple[RecordedWindow, int]] = deque(maxlen=self.most)

    def of_target(self, target) -> "RecordedFeatures":
        """The same object. Windows of the old target are dropped: the head learns the new one."""
        self.windows.clear()
        return self

    def of_draft(self, draft) -> "RecordedFeatures":
        """The same object: the features do not depend on the draft."""
        return self

    def room(self, state: DecodeState) -> int:
        """The number of rounds that fit into the record of a batch."""
        assert isinstance(state.rounds, Features)  # a session with this log records features
        longest = state.counters.accepted_at.shape[-1] + 1
        return (self.recording.tokens - int(fetch(state.rounds.count).max())) // longest

    def drain(self, state: DecodeState) -> DecodeState:
        """Cuts the record into windows and empties it, if it has no room or all rows have ended."""
        if self.room(state) > 0 and not fetch(state.done).all():
            return state
        assert isinstance(state.rounds, Features)
        record: Any = fetch(state.rounds)
        tokens, lengths = fetch((state.tokens, state.length))
        for b in range(len(tokens)):
            n = int((record.place[b, : record.count[b]] < lengths[b]).sum())  # the row's end may have cut a path
            for start in range(0, n, self.length):
                piece = slice(start, min(start + self.length, n))
                self._add(tokens[b, record.place[b, piece]], record.taps[b, piece], record.hidden[b, piece])
        count = jax.device_put(np.zeros_like(record.count), state.rounds.count.sharding)
        return state.replace(rounds=state.rounds.replace(count=count))

    def _add(self, *arrays: np.ndarray) -> None:
        n = len(arrays[0])
        padded = (np.concatenate([x, np.zeros((self.length - n, *x.shape[1:]), x.dtype)]) for x in arrays)
        self.windows.append((RecordedWindow(*padded), n))

    def take(self, rows: np.ndarray) -> tuple[RecordedWindow, np.ndarray]:
        """The windows of the numbers ``rows``, and bool [W, S + 2] of the learnt tokens.

        The distribution after the last token of a window is learnt too.

        Raises RequestError where nothing is recorded.
        """
        if not self.windows:
            raise RequestError("no features are recorded; call the generator before the head learns")
        pairs = [self.windows[row] for row in rows.tolist()]
        sizes = np.array([n for _, n in pairs])
        learnt = np.arange(self.length + 1) <= sizes[:, None]
        return RecordedWindow(*map(np.stack, zip(*(window for window, _ in pairs)))), learnt
