"""The engine: one batch of fixed width, which requests join and leave between rounds."""

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..apart import ApartSession
from ..cache import KVCache
from ..checkpoints.load import LanguageModel
from ..checks import whole
from ..errors import NumericsError, RequestError
from ..generate import Generator, Prompt
from ..prefill import Filled
from ..requests.options import MOST_LOGPROBS
from ..result import results_of
from ..session import Decoding
from .handle import Handle
from .programs import LEAST_CHUNK, Programs
from .request import read_blank, read_request

_LARGEST_CHUNK = 512


@dataclasses.dataclass
class _Row:
    """A request that is being read or decoded.

    Attributes:
      slot: its row of the batch.
      compiled: the engine's seconds of compilation when reading began.
      stop_state: the state of its stop strings after the newest token.
      filled: the prompt as far as it is read; None before the first chunk and after the last.
      start: the number of tokens that are read.
      prefill_seconds: seconds of its chunks.
      began: the time at which decoding began.
    """

    handle: Handle
    slot: int
    compiled: float
    stop_state: int
    filled: Filled | None = None
    start: int = 0
    prefill_seconds: float = 0.0
    began: float = 0.0


class Engine:
    """Decodes requests that come at any time, in a batch of ``slots`` rows.

    A request waits for a free slot. Its prompt is read in chunks of its own, one chunk between two
    rounds of the running rows. Its text does not depend on the requests that share the batch: it
    is that of a ``Generator`` for the same options and seed. Nothing is compiled after the first
    use of each program, see ``programs``.

    ``step`` drives the device. Handles call it, unless ``start`` has started a thread that does. A
    ``with`` block starts the thread, and waits at its end for all requests.

    Args:
      target, method, draft, rule, processors, drafting: as in ``Generator``. All models must be on
        one device.
      slots: rows of the batch.
      capacity: positions of a slot, for prompt, new tokens and one draft. It becomes the next power
        of two, but no more than the model's context needs.
      chunk: the most tokens of a prompt that are read between two rounds, a power of two.
      rounds: rounds of one step.
      logprobs: the largest value of a request's option ``logprobs``; None records none.

    Raises RequestError for a method whose rows share a state, for models on several devices, for an
    encoder-decoder, and for slots that do not fit the memory.
    """

    def __init__(
        self,
        target: LanguageModel | str,
        method: str | Sequence[str] | None = None,
        draft=None,
        *,
        slots: int = 16,
        capacity: int = 4096,
        chunk: int = 128,
        rounds: int = 1,
        logprobs: int | None = None,
        rule: str = "auto",
        processors: Sequence[Callable] = (),
        **drafting,
    ):
        whole("slots", slots)
        whole("rounds", rounds)
        if whole("chunk", chunk, LEAST_CHUNK, _LARGEST_CHUNK) & (chunk - 1):
            raise RequestError(f"chunk must be a power of two, not {chunk}")
        if logprobs is not None:
            whole("logprobs", logprobs, 0, MOST_LOGPROBS)
        self.generator = Generator(target, method, draft, rule=rule, processors=processors, **drafting)
        self.target.config.refuse_encoder("an engine")
        session = self.generator.session
        if session.mesh is not None or isinstance(session, ApartSession):
            raise RequestError("an engine runs on one device; load its models without a mesh, or call a Generator")
        most = self.target.config.context + self.generator.drafter.depth + 1
        self.capacity = max(1 << (min(whole("capacity", capacity), most) - 1).bit_length(), chunk)
        self.logprobs = logprobs
        blank = read_blank(self.generator, self.capacity)
        self.programs = Programs(session, blank, count=slots, chunk=chunk, rounds=rounds, logprobs=logprobs)
        self.slots = slots
        self._slots: list[_Row | None] = [None] * slots
        self._reading: _Row | None = None
        self._waiting: deque[Handle] = deque()
        self._thread: threading.Thread | None = None
        self._stopping, self._stepping = False, threading.Lock()
        self.changed = threading.Condition(threading.RLock())

    def submit(self, prompt: Prompt | None = None, *, messages=None, sample: int = 0, **options) -> Handle:
        """Adds a request to the queue. Any thread may call this.

        Arguments are those of a ``Generator``'s call, for one prompt or one conversation. The text is
        that of the prompt's sample number ``sample`` in a call with the option ``n``.

        Raises RequestError for bad input, for the options ``n``, ``regex``, ``choices`` and
        ``json_schema``, and for a request that needs more positions than a slot has.
        """
        request = read_request(
            self.generator, prompt, messages, options, capacity=self.capacity, logprobs=self.logprobs, sample=sample
        )
        handle = Handle(self, request)
        with self.changed:
            self._waiting.append(handle)
            self.changed.notify_all()
        return handle

    def step(self) -> bool:
        """Reads at most one chunk of a prompt, and runs the next rounds. Returns whether work is left.

        If the device fails, all requests end with its error.
        """
        with self._stepping:
            try:
                self._free_cancelled()
                self._read_chunk()
                self._run_rounds()
            except Exception as error:
                self._fail(error)
                raise
        return self.has_work

    @property
    def target(self) -> LanguageModel:
        """The model whose output is wanted."""
        return self.generator.target

    @property
    def has_work(self) -> bool:
        """Whether a request waits, is being read or is being decoded."""
        return bool(self._waiting or self._reading or any(self._slots))

    @property
    def num_running(self) -> int:
        """The number of requests that are read or decoded."""
        return len([row for row in [self._reading, *self._slots] if row is not None])

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for a slot."""
        return len([handle for handle in list(self._waiting) if not handle.is_over])

    def start(self) -> "Engine":
        """Starts a thread that drives the device until ``stop``."""
        if not self.is_started:
            self._stopping = False
            self._thread = threading.Thread(target=self._drive, name="specjax engine", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Waits for all requests, and ends the thread."""
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> "Engine":
        return self.start()

    def __exit__(self, *_) -> None:
        self.stop()

    @property
    def is_started(self) -> bool:
        """Whether a thread drives the device."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, until: Callable[[], bool]) -> None:
        """Waits for the thread until ``until()`` is true, or drives the device if there is no thread."""
        while not until():
            if self.is_started:
                with self.changed:
                    self.changed.wait_for(lambda: until() or not self.is_started, 1.0)
            else:
                self.step()

    def _drive(self) -> None:
        while self.has_work or not self._stopping:
            with self.changed:
                self.changed.wait_for(lambda: self.has_work or self._stopping)
            try:
                self.step()
            except Exception:  # the handles raise it
                continue

    def _free_cancelled(self) -> None:
        for row in filter(None, self._slots):
            if row.handle.is_over:
                self._free(row)
        if self._reading is not None and self._reading.handle.is_over:
            self._reading = None

    def _free(self, row: _Row) -> None:
        self.programs.free(row.slot)
        self._slots[row.slot] = None

    def _read_chunk(self) -> None:
        """Reads a chunk of the next prompt, if a slot is free. After the last one the row is decoded."""
        with self.changed:
            while self._reading is None and self._waiting and None in self._slots:
                handle = self._waiting.popleft()
                if not handle.is_over:
                    slot, begin = self._slots.index(None), int(handle.request.batch.stopping[0])
                    self._reading = _Row(handle, slot, self.programs.compile_seconds, begin)
        row = self._reading
        if row is None:
            return
        began, compiled = time.perf_counter(), self.programs.compile_seconds
        arrays, length = row.handle.request.arrays, len(row.handle.request.prompt)
        filled = self.programs.begin_reading() if row.filled is None else row.filled
        if row.start < length - 1:
            filled, row.start = self.programs.read(arrays, length, filled, row.start)
        row.filled = filled
        if row.start >= length - 1:
            self.programs.admit(arrays, length, filled, row.slot)
            row.filled, self._reading, self._slots[row.slot] = None, None, row
        row.began = time.perf_counter()
        row.prefill_seconds += row.began - began - (self.programs.compile_seconds - compiled)

    def _run_rounds(self) -> None:
        """Runs the next rounds of the running rows, and hands out their tokens."""
        rows = [row for row in self._slots if row is not None]
        if not rows:
            return
        news = self.programs.advance()
        for row in rows:
            tokens = news.tokens[row.slot, : news.count[row.slot]].tolist()
            row.stop_state, stop = row.handle.request.find_stop(row.stop_state, tokens)
            counters, logprobs = jax.tree.map(lambda x: x[row.slot], (news.counters, news.logprobs))
            row.handle.add(tokens[:stop], int(counters.drafted), counters.accepted_at.tolist(), logprobs)
            if stop is not None or news.done[row.slot]:
                self._finish(row, stop is not None)

    def _finish(self, row: _Row, stopped: bool) -> None:
        """Ends a request with its result, and frees its slot. ``stopped``: a stop string ended it."""
        request, text = row.handle.request, self.programs.take_text(row.slot)
        if stopped:  # what the rounds emitted after the stop string is no part of the text
            end: Any = np.array([len(request.prompt) + len(row.handle.token_ids) - 1])
            text = text.replace(cache=KVCache((), end), failed=np.array([False]))
        compiling = self.programs.compile_seconds - row.compiled
        times = row.prefill_seconds, time.perf_counter() - row.began, compiling
        try:
            decoded = Decoding(text, [request.prompt], request.batch, *times)
            (result,) = results_of(decoded, self.target, self.generator.rule_name)
            self.generator.remember([result])
            row.handle.end(result)
        except NumericsError as error:
            row.handle.end(error)
        self._free(row)

    def _fail(self, error: Exception) -> None:
        """Ends all requests with ``error``, and empties the slots."""
        with self.changed:
            rows = [row.handle for row in [self._reading, *self._slots] if row is not None]
            handles = [*rows, *self._waiting]
            self._waiting.clear()
        self._reading, self._slots = None, [None] * len(self._slots)
        for handle in handles:
            handle.end(error)
        self.programs.empty()
