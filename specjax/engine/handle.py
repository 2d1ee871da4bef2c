"""What a user holds of a submitted request: its text piece by piece, and its result."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Protocol

import numpy as np

from ..checkpoints.load import LanguageModel
from ..core.logprobs import Logprobs
from ..errors import CancelledError, RequestError
from ..requests.batch import Batch
from ..requests.constraint import Constraint
from ..requests.grammar_masks import RowGrammar
from ..requests.vocabulary import decode_continuation
from ..text.result import Result, settled_text
from .fair_queue import Standing
from .prompt_scores import Scores


class Driver(Protocol):
    """What a handle asks of its engine; see ``Engine``."""

    changed: threading.Condition
    listeners: list[Callable[["Handle"], object]]

    @property
    def target(self) -> LanguageModel: ...
    @property
    def is_started(self) -> bool: ...
    def wait(self, until: Callable[[], bool]) -> None: ...


class Handle:
    """A request of an ``Engine``.

    Iteration yields the new text piece by piece. A piece is final: an incomplete character and the
    possible beginning of a stop string are held back. After the last piece, iteration raises the
    request's error, if it has one; it just ends if the request was cancelled. ``async for`` and
    ``await`` need a started engine, see ``Engine.start``.

    Attributes:
      batch: the prompt and its options, see ``request.read_request``.
      standing: its place among requests that wait.
      cost: the most positions that prompt and text may have.
      begins: the begin of each of its stages so far, "queue", "read" and "rounds", as readings of
        ``time.perf_counter``.
      token_ids: the new tokens so far.
      drafted: the drafted tokens so far that the target scored.
      rounds: drafted, accepted and emitted tokens of each round so far. It grows after
        ``token_ids``.
      accepted_at: for each depth, how often a drafted token at this depth was emitted so far.
      cached_tokens: the tokens of the prompt that an earlier request had read, see
        ``engine.prefix_cache``; 0 until the prompt's reading begins.
      prompt_top: the number of likeliest tokens to record at each place of the prompt; None to
        record nothing of the prompt.
      prompt_logprobs, prompt_top_logprobs: those of the prompt's tokens from the second on, as far
        as the prompt is read.
      logprobs, top_logprobs, policy_logprobs: those of ``token_ids`` so far, see ``Result``; empty
        if not asked for.
    """

    def __init__(
        self, engine: Driver, batch: Batch, depth: int, prompt_top: int | None = None, standing: Standing | None = None
    ):
        self._engine = engine
        self.batch = batch
        self.standing = standing or Standing()
        self.cost = int(np.asarray(batch.requests.limit)[0])
        self.begins = {"queue": time.perf_counter()}
        self.token_ids: list[int] = []
        self.drafted = 0
        self.rounds = list[tuple[int, int, int]]()
        self.accepted_at = [0] * depth
        self.cached_tokens = 0
        self.prompt_top = prompt_top
        self.prompt_logprobs: list[float] = []
        self.prompt_top_logprobs: list[dict[int, float]] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[dict[int, float]] = []
        self.policy_logprobs: list[float] = []
        self._outcome: Result | Exception | None = None
        self._watchers: list[Callable[[], object]] = []

    @property
    def prompt(self) -> list[int]:
        """The prompt's token ids."""
        return self.batch.prompts[0]

    @property
    def constraint(self) -> Constraint | RowGrammar | None:
        """The constraint of the text, on the host; or None."""
        return self.batch.constraints[0]

    @property
    def is_over(self) -> bool:
        """Whether the request has ended, has failed or was cancelled."""
        return self._outcome is not None

    @property
    def outcome(self) -> Result | Exception | None:
        """The result of a request that has ended, or its error; None before."""
        return self._outcome

    def stages(self, end: float) -> list[tuple[str, float, float]]:
        """The name, the begin and the end of each stage so far; the newest ends at ``end``."""
        begins = [*self.begins.items()]  # the engine may add one
        ends = [begin for _, begin in begins[1:]] + [end]
        return [(name, begin, after) for (name, begin), after in zip(begins, ends)]

    def result(self) -> Result:
        """The result, after the request has ended; without a started engine this call drives it.

        Raises NumericsError if the model made NaN, CancelledError if the request was cancelled.
        """
        self._engine.wait(lambda: self.is_over)
        if isinstance(self._outcome, Result):
            return self._outcome
        assert self._outcome is not None
        raise self._outcome

    def cancel(self, reason: CancelledError | None = None) -> None:
        """Ends the request with ``reason``. The next step of the engine frees its slot."""
        self.end(reason or CancelledError("the request was cancelled; submit it again for its result"))

    def __iter__(self) -> Iterator[str]:
        text = ""
        is_over = False
        while not is_over:
            # These two are read before the text, so that no piece is lost.
            is_over = self.is_over
            seen = len(self.token_ids)
            grown = self._grow(text)
            if len(grown) > len(text):
                yield grown[len(text) :]
            text = grown
            self._engine.wait(lambda: self.is_over or len(self.token_ids) > seen)
        self._raise_failure()

    async def __aiter__(self) -> AsyncIterator[str]:
        text = ""
        async for _ in self._changes():
            grown = self._grow(text)
            if len(grown) > len(text):
                yield grown[len(text) :]
            text = grown
        self._raise_failure()

    def __await__(self) -> Generator[None, None, Result]:
        return self._wait().__await__()

    async def _wait(self) -> Result:
        async for _ in self._changes():
            pass
        return self.result()

    def watch(self, callback: Callable[[], object]) -> None:
        """Calls ``callback`` now, and after every change of the request until its end.

        The engine's thread calls it and waits for it.
        """
        with self._engine.changed:
            self._watchers.append(callback)
            callback()

    async def _changes(self) -> AsyncIterator[None]:
        """Yields at the begin and after every change. The last time is when the request is over."""
        if not self._engine.is_started:
            raise RequestError("nothing drives the engine; use it in a with block, or call its start()")
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        watch = lambda: loop.call_soon_threadsafe(changed.set)
        self._watchers.append(watch)
        try:
            is_over = False
            while not is_over:
                is_over = self.is_over  # before the caller looks, so that it sees the end
                yield
                if not is_over:
                    await changed.wait()
                    changed.clear()
        finally:
            self._watchers.remove(watch)

    def _grow(self, text: str) -> str:
        """The text that is final now.

        It begins with ``text``, the final text of an earlier time.
        """
        with self._engine.changed:
            outcome = self._outcome
            ids = self.token_ids.copy()
        if isinstance(outcome, Result):
            return outcome.text
        target = self._engine.target
        grown = decode_continuation(target.tokenizer, target.config.vocab_size, self.prompt, ids)
        grown = settled_text(grown, ids, target, self.batch.stop_strings[0])
        return grown if grown.startswith(text) else text

    def _raise_failure(self) -> None:
        if isinstance(self._outcome, Exception) and not isinstance(self._outcome, CancelledError):
            raise self._outcome

    def add(
        self,
        tokens: list[int],
        rounds: list[tuple[int, int, int]],
        logprobs: Logprobs | None,
        outcome: Result | Exception | None,
    ) -> None:
        """Appends the new tokens of a step, unless the request is over. The engine calls this.

        Args:
          rounds: all rounds so far.
          logprobs: the records of the step's tokens, without an axis of rows; None if there are
            none.
          outcome: the result or the error of the request after its last step, else None. Readers
            see it together with the tokens, because the end may cut their text.
        """
        with self._engine.changed:
            if self.is_over:
                return
            if tokens:
                self._append(tokens, rounds, logprobs)
            self._outcome = outcome
        self._notify()

    def _append(self, tokens: list[int], rounds: list[tuple[int, int, int]], logprobs: Logprobs | None) -> None:
        self.token_ids.extend(tokens)
        (wanted,) = self.batch.logprobs
        if logprobs is not None and wanted is not None:
            self.logprobs += logprobs.chosen[: len(tokens)].tolist()
            self.top_logprobs += _likeliest(logprobs, len(tokens), wanted)
        if logprobs is not None and self.batch.policy_logprobs[0]:
            self.policy_logprobs += logprobs.policy[: len(tokens)].tolist()
        for drafted, accepted, _ in (new := rounds[len(self.rounds) :]):
            self.drafted += drafted
            for depth in range(accepted):
                self.accepted_at[depth] += 1
        self.rounds += new

    def add_scores(self, scores: Scores, count: int) -> None:
        """Appends the first ``count`` scores of a chunk of the prompt. The engine calls this."""
        assert self.prompt_top is not None  # else nothing is scored
        self.prompt_logprobs += scores.chosen[:count].tolist()
        self.prompt_top_logprobs += _likeliest(scores, count, self.prompt_top)

    def drop_scores(self) -> None:
        """Forgets all scores of a prompt that is read anew. The engine calls this."""
        if not self.token_ids:
            self.prompt_logprobs, self.prompt_top_logprobs = [], []

    def end(self, outcome: Exception) -> None:
        """Ends the request before its last step, unless it is over. The engine calls this."""
        with self._engine.changed:
            if self.is_over:
                return
            self._outcome = outcome
        self._notify()

    def _notify(self) -> None:
        with self._engine.changed:
            self._engine.changed.notify_all()
            for watch in self._watchers:
                watch()
            for listen in self._engine.listeners if self.is_over else ():
                listen(self)


def _likeliest(records: Logprobs | Scores, count: int, wanted: int) -> list[dict[int, float]]:
    """The ``wanted`` likeliest tokens at ``count`` places, and their log-probabilities."""
    pairs = zip(records.top_ids[:count, :wanted].tolist(), records.top[:count, :wanted].tolist())
    return [dict(zip(ids, values)) for ids, values in pairs]
