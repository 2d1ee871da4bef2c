"""Batches of windows from a log of rounds, with windows of text beside them against forgetting."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from ..errors import RequestError
from . import data
from .feedback import Rounds

HORIZON = 1000
"""The number of rounds over which the mean length of acceptance runs."""


class LoggedWindows(NamedTuple):
    """Windows of S tokens from the texts of a log. Entry [w, i] is about the token after token i.

    Attributes:
      tokens: int32 [W, S].
      label: int32 [W, S], the token that follows by the target's verdict; -1 where no round was.
      rejected: bool [W, S], whether the target rejected a drafted token there. ``label`` is then the
        correction.
      top_ids, top: int32 and float32 [W, S, K], the target's likeliest tokens there and their
        log-probabilities.
      action: int32 [W, S], the drafted token that was accepted or rejected there; -1 where none was
        drawn at random.
      old: float32 [W, S], the log-probability with which the draft drew it.
      advantage: float32 [W, S], the accepted length of its round less the running mean.
      temperature: float32 [W, S], the temperature at which it was drawn.
    """

    tokens: np.ndarray | jax.Array
    label: np.ndarray | jax.Array
    rejected: np.ndarray | jax.Array
    top_ids: np.ndarray | jax.Array
    top: np.ndarray | jax.Array
    action: np.ndarray | jax.Array
    old: np.ndarray | jax.Array
    advantage: np.ndarray | jax.Array
    temperature: np.ndarray | jax.Array


class FeedbackBatch(NamedTuple):
    """The windows of a step.

    Attributes:
      logged: the windows of the log.
      replay: int32 [windows, S + 1], windows of other text; None for none.
    """

    logged: LoggedWindows
    replay: np.ndarray | jax.Array | None


def cut_logged(rounds: Rounds, length: int, rows: np.ndarray) -> LoggedWindows:
    """The windows of the texts ``rows``: pieces of ``length`` tokens, without those that no round visited.

    The rounds of one text come one after another, but only its newest file has the end of the text.
    A piece does not see the piece before it, so a window should be as long as most texts.
    """
    chosen = np.isin(rounds.row, rows)
    advantage = rounds.accepted - running_mean(rounds.accepted)
    first = {b: i for i, b in enumerate(rows.tolist())}
    pieces = [-(-rounds.texts[b].size // length) for b in rows.tolist()]
    base = np.concatenate([[0], np.cumsum(pieces)]).astype(np.int64)
    W, S, (n, D), K = int(base[-1]), length, rounds.drafted.shape, rounds.top.shape[2]
    flat = LoggedWindows(
        tokens=np.zeros(W * S, np.int32), label=np.full(W * S, -1, np.int32), rejected=np.zeros(W * S, bool),
        top_ids=np.zeros((W * S, K), np.int32), top=np.full((W * S, K), -np.inf, np.float32),
        action=np.full(W * S, -1, np.int32), old=np.zeros(W * S, np.float32),
        advantage=np.zeros(W * S, np.float32), temperature=np.ones(W * S, np.float32),
    )  # fmt: skip
    for i, b in enumerate(rows.tolist()):
        flat.tokens[base[i] * S : base[i] * S + rounds.texts[b].size] = rounds.texts[b]
    text_start = np.array([base[first[b]] * S if b in first else -1 for b in range(len(rounds.texts))])
    size = np.array([text.size for text in rounds.texts])[rounds.row]
    drafted = (rounds.drafted >= 0).sum(1)
    temperature = rounds.temperature[rounds.row]
    for i in range(D + 1):  # the i-th node of each path
        seen = chosen & (i <= rounds.accepted) & (rounds.place + i < size)
        at = (text_start[rounds.row] + rounds.place + i)[seen]
        token = rounds.drafted[seen, i] if i < D else np.full(seen.sum(), -1)
        is_last = i == rounds.accepted[seen]
        flat.label[at] = np.where(is_last, rounds.correction[seen], token)
        flat.rejected[at] = is_last & (i < drafted[seen])
        flat.top_ids[at], flat.top[at] = rounds.top_ids[seen, i], rounds.top[seen, i]
        if i < D:
            free = temperature[seen] > 0
            flat.action[at] = np.where(free, token, -1)
            flat.old[at] = rounds.draft[seen, i]
            flat.advantage[at] = advantage[seen]
            flat.temperature[at] = np.where(free, temperature[seen], 1)
    windows = LoggedWindows(*(x.reshape(W, S, *x.shape[1:]) for x in flat))
    visited = (windows.label >= 0).any(1)
    return LoggedWindows(*(x[visited] for x in windows))


def running_mean(lengths: np.ndarray) -> np.ndarray:
    """The mean float32 [n] of the lengths before each, over about the last ``HORIZON``; 0 before the first."""
    means, mean = np.zeros(lengths.size, np.float32), 0.0
    for i, length in enumerate(lengths.tolist()):
        means[i] = mean
        mean += (length - mean) / min(i + 1, HORIZON)
    return means


@dataclasses.dataclass(frozen=True)
class FeedbackBatches:
    """The batches of a recipe of kind "feedback"; see ``run.Batches``.

    Attributes:
      windows: all windows of the log.
      stream: the text from which replayed windows are cut.
      seed, batch, length: see ``Recipe``.
      replayed: the number of replayed windows in a batch.
    """

    windows: LoggedWindows
    stream: np.ndarray
    seed: int
    batch: int
    length: int
    replayed: int

    def read(self, step: int) -> tuple[FeedbackBatch, np.uint32]:
        """The windows of a step, and the step, from which the loss makes its key."""
        count = self.batch - self.replayed
        rows = data.choose_rows(np.arange(len(self.windows.tokens)), self.seed, step, count)
        replay = None
        if self.replayed:
            replay = data.cut_windows(self.stream, self.seed, step, self.replayed, self.length)
        return FeedbackBatch(LoggedWindows(*(x[rows] for x in self.windows)), replay), np.uint32(step)

    def renew(self, step: int, module) -> None:
        """Does nothing: a log does not change with the drafter."""

    def describe(self, step: int) -> str:
        """Describes the batch of a step, for error messages."""
        return ", in a batch of the log"


def split_texts(rounds: Rounds, prompts: int) -> tuple[np.ndarray, list[list[int]]]:
    """The texts to train on, and the held-out prompts: those of the last twentieth of the texts.

    ``prompts``: the largest number of them; 0 holds nothing out.
    """
    count, known = len(rounds.texts), np.arange(len(rounds.texts))
    held = min(prompts, count // 20)
    chosen = known[count - count // 20 :][:held] if held else known[:0]
    return known[: count - count // 20] if held else known, [
        rounds.texts[b][: rounds.prompts[b]].tolist() for b in chosen
    ]


def check_actions(windows: LoggedWindows) -> None:
    """Raises RequestError for a log without tokens that were drawn at random."""
    if not (windows.action >= 0).any():
        raise RequestError(
            "objective 'policy' learns from tokens that the draft draws at random, and the log has none; "
            "write a log at a temperature above 0 without other sampling options"
        )
