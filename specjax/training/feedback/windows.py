"""Windows of text from a log of rounds, with the verdicts on their tokens."""

from typing import Any, NamedTuple

import numpy as np

from .rounds import Rounds

HORIZON = 1000
"""The number of rounds over which the mean length of acceptance runs."""


class LoggedWindows(NamedTuple):
    """Windows of S tokens from the texts of a log. Entry [w, i] is about the token after token i.

    Attributes:
      tokens: int32 [W, S].
      label: int32 [W, S], the token that follows by the target's verdict; -1 where no round was.
      rejected: bool [W, S], True where the target rejected a drafted token. ``label`` is then the
        correction.
      top_ids, top: int32 and float32 [W, S, K], the target's likeliest tokens there and their
        log-probabilities.
      action: int32 [W, S], the drafted token that was accepted or rejected there; -1 where none was
        drawn at random.
      old: float32 [W, S], the log-probability with which the draft drew it.
      advantage: float32 [W, S], the accepted length of its round, less the running mean of the
        rounds that reached this place of the chain. Without this condition, a rejected token at a
        late place would count as better than the mean.
      temperature: float32 [W, S], the temperature at which it was drawn.
    """

    tokens: Any
    label: Any
    rejected: Any
    top_ids: Any
    top: Any
    action: Any
    old: Any
    advantage: Any
    temperature: Any


class FeedbackBatch(NamedTuple):
    """The windows of a step.

    Attributes:
      logged: the windows of the log.
      replay: windows of other text and their learnt tokens, see ``data.Mixture.cut``; None for
        none.
    """

    logged: LoggedWindows
    replay: Any


def cut_logged(rounds: Rounds, length: int, texts: np.ndarray) -> LoggedWindows:
    """The windows of these ``texts``: their pieces of ``length`` tokens that a round visited.

    A piece does not see the piece before it, so windows should be as long as most texts.
    """
    # 1. All windows in one row, with the tokens of the texts.
    sizes = np.array([text.size for text in rounds.texts])
    pieces = np.zeros_like(sizes)
    pieces[texts] = -(-sizes[texts] // length)
    start = (np.cumsum(pieces) - pieces) * length  # the place of each text in the row of all windows
    flat = _empty(int(pieces.sum()) * length, rounds.top.shape[2])
    for b in texts.tolist():
        flat.tokens[start[b] : start[b] + sizes[b]] = rounds.texts[b]
    # 2. The verdicts of the rounds, node by node.
    count = (rounds.drafted >= 0).sum(1)
    temperature = rounds.temperature[rounds.row]
    in_texts = np.isin(rounds.row, texts)
    for i in range(rounds.drafted.shape[1] + 1):  # node i of each path, the root first
        # The row's end may have cut the path.
        seen = np.flatnonzero(in_texts & (i <= rounds.accepted) & (rounds.place + i < sizes[rounds.row]))
        at = start[rounds.row[seen]] + rounds.place[seen] + i
        is_last = i == rounds.accepted[seen]
        flat.top_ids[at] = rounds.top_ids[seen, i]
        flat.top[at] = rounds.top[seen, i]
        has_token = i < count[seen]
        token = np.where(has_token, rounds.drafted[seen, min(i, rounds.drafted.shape[1] - 1)], -1)
        flat.label[at] = np.where(is_last, rounds.correction[seen], token)
        flat.rejected[at] = is_last & has_token
        acts = has_token & (temperature[seen] > 0)
        at = at[acts]
        seen = seen[acts]
        if seen.size:
            lengths = rounds.accepted[seen]
            flat.action[at] = token[acts]
            flat.old[at] = rounds.draft[seen, i]
            flat.advantage[at] = lengths - running_mean(lengths)
            flat.temperature[at] = temperature[seen]
    # 3. The windows that a round visited.
    windows = LoggedWindows(*(x.reshape(-1, length, *x.shape[1:]) for x in flat))
    visited = (windows.label >= 0).any(1)
    return LoggedWindows(*(x[visited] for x in windows))


def _empty(n: int, K: int) -> LoggedWindows:
    """One long window of ``n`` tokens that no round visited."""
    return LoggedWindows(
        tokens=np.zeros(n, np.int32),
        label=np.full(n, -1, np.int32),
        rejected=np.zeros(n, bool),
        top_ids=np.zeros((n, K), np.int32),
        top=np.full((n, K), -np.inf, np.float32),
        action=np.full(n, -1, np.int32),
        old=np.zeros(n, np.float32),
        advantage=np.zeros(n, np.float32),
        temperature=np.ones(n, np.float32),
    )


def running_mean(lengths: np.ndarray) -> np.ndarray:
    """The mean float32 [n] of about ``HORIZON`` lengths before each one; 0 before the first."""
    means = np.zeros(lengths.size, np.float32)
    mean = 0.0
    for i, length in enumerate(lengths.tolist()):
        means[i] = mean
        mean += (length - mean) / min(i + 1, HORIZON)
    return means
