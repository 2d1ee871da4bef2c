"""Sessions: the compiled programs of one method, and the batches that they decode."""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from ..checkpoints.load import LanguageModel
from ..core.checks import LARGEST
from ..core.feature_record import FeatureRecording
from ..core.round_record import Recording
from ..core.settings import own_settings
from ..core.state import DecodeState, Requests
from ..errors import RequestError
from ..heads.base import Head
from ..loop import decode
from ..loop.chooser import Run
from ..loop.drafter import Drafter
from ..loop.prefill import pad_prompts, positions_needed, prefill
from ..parallel import fetch, mesh_of, place, several_hosts, use_mesh
from ..requests.batch import Batch
from .cache_dtype import cache_dtype
from .sample_rows import first_samples, place_requests, repeat_state

_LEAST_CAPACITY = 256
_LEAST_CHUNK = 16
_LARGEST_CHUNK = 512


class Log(Protocol):
    """The log of a session's rounds, see ``text.feedback_log.FeedbackLog``.

    Attributes:
      recording: the size of the record on the device.
    """

    @property
    def recording(self) -> Recording | FeatureRecording: ...
    def of_target(self, target: LanguageModel) -> "Log":
        """The log with another target."""
        ...

    def of_draft(self, draft: LanguageModel | Head) -> "Log":
        """The log with another draft."""
        ...

    def room(self, state: DecodeState) -> int:
        """The number of rounds until the record of a batch is full."""
        ...

    def drain(self, state: DecodeState) -> DecodeState:
        """The state with an empty record, after its content was kept."""
        ...


@dataclasses.dataclass
class Decoding:
    """A batch during decoding, and the seconds that it has cost.

    Attributes:
      state: the state on the device; ``Session.advance`` donates it and stores the new one.
      batch: the prompts and the options of the rows.
      draft: the draft's half of the batch, if the draft is on devices of its own, see
        ``text.draft_devices``.
    """

    state: DecodeState
    batch: Batch
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    compile_seconds: float = 0.0
    draft: Any = None

    @property
    def is_done(self) -> bool:
        """Whether every row has ended. Waits for the device."""
        return bool(fetch(self.state.done).all())


class Session:
    """The compiled programs of one method.

    A session compiles a program at the first use of each batch size, capacity and prompt bucket.
    Capacities and buckets are powers of two.

    Args:
      parameters: the result of ``Drafter.parameters``.
      rule: the acceptance rule, a function, see ``rules.acceptance.resolve``.
      capacity: positions of the cache; by default the smallest power of two that a batch needs.
      log: where rounds are recorded; by default they are not.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafter: Drafter,
        parameters: Any,
        rule: Callable,
        capacity: int | None = None,
        log: Log | None = None,
    ):
        self.target = target
        self.drafter = drafter
        self.parameters = parameters
        self.rule = rule
        self.capacity = capacity
        self.log = log
        self.mesh = mesh_of(target.model)
        self._compiled: dict = {}

    def start(self, batch: Batch) -> Decoding:
        """Reads each prompt once. The batch then has a row for each sample of each prompt.

        Raises RequestError if the capacity is too small.
        """
        requests, static = self._prepare(batch)
        function = partial(prefill, drafter=self.drafter, **static)
        state, seconds, compile_seconds = self._run(("prefill", *static.values()), function, (requests,))
        began = time.perf_counter()
        state = jax.block_until_ready(self._repeat(state, batch, self.mesh))
        seconds += time.perf_counter() - began
        return Decoding(state, batch, prefill_seconds=seconds, compile_seconds=compile_seconds)

    def advance(self, decoding: Decoding, rounds: int | None = None) -> None:
        """Runs ``rounds`` more rounds, or as many as it takes until every row has ended.

        With a log the rounds run in chunks that fit into the buffer.
        """
        if self.log is None:
            return self._advance(decoding, rounds)
        left = LARGEST if rounds is None else rounds
        while left > 0 and not decoding.is_done:
            chunk = min(left, self.log.room(decoding.state))
            self._advance(decoding, chunk)
            decoding.state = self.log.drain(decoding.state)
            left -= chunk

    def _advance(self, decoding: Decoding, rounds: int | None) -> None:
        round_before = int(fetch(decoding.state.round))
        until = LARGEST if rounds is None else round_before + rounds
        args = (decoding.state, place(np.int32(until), self.mesh, rows=False))
        function = partial(decode.run, drafter=self.drafter, rule=self.rule)
        donated = dict(donate_argnums=2) | ({} if self.mesh is None else dict(out_shardings=shardings(decoding.state)))
        chooses = self.drafter.chooser is not None
        before = fetch(decoding.state.counters.chosen) if chooses else None
        decoding.state, seconds, compile_seconds = self._run(("run",), function, args, **donated)
        if chooses:
            state = decoding.state
            temperature = state.request.sampling.temperature
            chosen, length, temperature, round_ = fetch((state.counters.chosen, state.length, temperature, state.round))
            all_rounds = int(round_) - round_before
            self.learn(chosen - before, all_rounds, int(length.max()), seconds, bool((temperature > 0).any()))
        decoding.decode_seconds += seconds
        decoding.compile_seconds += compile_seconds

    def learn(self, rounds: np.ndarray, all_rounds: int, context: int, seconds: float, sampled: bool) -> None:
        """Tells a method that chooses how long its rounds took.

        Every round counts in the row that ends last. Hosts do not learn: their clocks differ, and
        all of them must choose alike.

        Args:
          rounds: the rounds of each of ``Chooser.choices`` in each row, int32 [B, A].
          all_rounds: the rounds of the batch; others than chosen ones jumped forward.
          context, seconds, sampled: see ``Run``.
        """
        if not several_hosts():
            last = rounds[rounds.sum(1).argmax()]
            share = last.sum() / max(all_rounds, 1)
            run = Run(last, len(rounds), context, seconds * share, sampled)
            self.parameters = self.drafter.chooser.learn(self.parameters, run)

    def update(self, target: LanguageModel) -> None:
        """Replaces the target's weights by others of the same structure. Nothing is compiled anew.

        Raises RequestError if structure, shapes or dtypes differ.
        """
        _check_same(self.target.model, target.model)
        self.target = target

    def update_draft(self, parameters: Any) -> None:
        """Replaces ``parameters`` by others of the same structure. Nothing is compiled anew.

        Raises RequestError if structure, shapes or dtypes differ.
        """
        _check_same(self.parameters, parameters)
        self.parameters = parameters

    def _prepare(self, batch: Batch) -> tuple[Requests, dict]:
        """The first sample of each prompt on the devices, and the static arguments."""
        capacity, chunk = self._sizes(int(batch.requests.lengths.max()), int(batch.requests.limit.max()))
        tokens, _ = pad_prompts(batch.prompts[:: batch.samples], capacity)
        requests = first_samples(batch.requests, batch.samples).replace(tokens=tokens)
        static = dict(
            chunk=chunk,
            logprobs=batch.recorded_logprobs,
            dtype=cache_dtype(self.target),
            recording=self.log and self.log.recording,
        )
        return place_requests(requests, self.mesh), static

    def _repeat(self, state: DecodeState, batch: Batch, mesh: Mesh | None) -> DecodeState:
        """The state after the prefill, on ``mesh``, with a row for each sample of each prompt."""
        if batch.samples == 1:
            return state
        with use_mesh(mesh):
            return repeat_state(state, place_requests(batch.requests, mesh), batch.samples)

    def _run(self, key: tuple, function: Callable, args: tuple, **options) -> tuple[DecodeState, float, float]:
        """Runs the executable for ``key`` and the shapes of ``args``.

        It also runs under ``jax.disable_jit``. Returns the state, the seconds of the run, and the
        seconds of the compilation, 0 if there was none.
        """
        with jax.disable_jit(False):
            modules = self.target.model, self.parameters
            compiled, compile_seconds = self.compile(key, function, modules, args, self.mesh, lambda: options)
            began = time.perf_counter()
            state = jax.block_until_ready(compiled(*modules, *args))
        return state, time.perf_counter() - began, compile_seconds

    def compile(
        self, key: tuple, function: Callable, modules: tuple, args: tuple, mesh: Mesh | None, options: Callable
    ) -> tuple[Callable, float]:
        """The executable for ``key`` and the shapes of ``args``, and its compilation's seconds.

        The seconds are 0 if it had been compiled before. The executable takes
        ``(*modules, *args)``. ``options()`` gives the options of ``jax.jit``.
        """
        began = time.perf_counter()
        leaves, structure = jax.tree.flatten(args)
        key = (*key, structure, tuple(leaf.shape for leaf in leaves))
        new = key not in self._compiled
        if new:
            with use_mesh(mesh), own_settings():
                self._compiled[key] = jax.jit(function, **options()).lower(*modules, *args).compile()
        return self._compiled[key], time.perf_counter() - began if new else 0.0

    def _sizes(self, prompt: int, limit: int) -> tuple[int, int]:
        """Capacity and prefill chunk, powers of two, so that similar prompts share a program."""
        need = positions_needed(prompt, limit, self.drafter, self.capacity)
        capacity = _power_of_two(max(self.capacity or need, _LEAST_CAPACITY))
        return capacity, min(_power_of_two(max(prompt - 1, _LEAST_CHUNK)), _LARGEST_CHUNK, capacity)


def shardings(state: DecodeState):
    """The sharding of each array of the state, with which the rounds return it too."""
    return jax.tree.map(lambda x: x.sharding, state)


def _check_same(old, new) -> None:
    """Raises RequestError if structure, shapes or dtypes of two models differ."""
    if jax.tree.structure(old) != jax.tree.structure(new):
        raise RequestError(
            "the new parameters have another structure than the model; make a new Generator for another model"
        )
    for (path, old_leaf), new_leaf in zip(jax.tree_util.tree_leaves_with_path(old), jax.tree.leaves(new)):
        if old_leaf.shape != new_leaf.shape or old_leaf.dtype != new_leaf.dtype:
            raise RequestError(
                f"parameter {jax.tree_util.keystr(path)} is {new_leaf.dtype}{list(new_leaf.shape)}, not "
                f"{old_leaf.dtype}{list(old_leaf.shape)}; make a new Generator for another model"
            )


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
