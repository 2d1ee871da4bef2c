"""Metrics of the server in Prometheus format, with vLLM's names, for its dashboards."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..engine import Engine, Handle
from ..engine.memory import used_bytes
from ..errors import CancelledError
from ..text.result import Result

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the histograms' buckets."""


class Metrics:
    """The figures of all requests of an engine since the server began.

    A round counts as one draft of each of its rows that has drafted tokens. The counters grow after
    each step of the engine, and not only when a request ends.

    Args:
      name: the label ``model_name`` of each figure.
      compiling: the number of programs that are still compiled.
    """

    def __init__(self, engine: Engine, name: str, compiling: Callable[[], int] = lambda: 0):
        self._registry = CollectorRegistry()
        self._label = name
        counter = partial(self._make, Counter)
        seconds = partial(self._make, Histogram, buckets=_SECONDS)
        self._drafts = counter("spec_decode_num_drafts", "Rounds of a request with drafted tokens")
        self._drafted = counter("spec_decode_num_draft_tokens", "Drafted tokens")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Accepted drafted tokens")
        by_position = "Accepted drafted tokens by their position in the draft, from 0"
        self._accepted_at = counter("spec_decode_num_accepted_tokens_per_pos", by_position, "position")
        self._prompt_tokens = counter("prompt_tokens", "Tokens of the prompts whose text has begun")
        self._looked_up = counter(
            "prefix_cache_queries", "Tokens of prompts that were looked up in the store of prefixes"
        )
        self._found = counter("prefix_cache_hits", "Tokens of prompts that the store of prefixes had")
        self._tokens = counter("generation_tokens", "New tokens")
        self._ended = counter("request_success", "Requests that ended, by the reason", "finished_reason")
        self._first = seconds("time_to_first_token_seconds", "Seconds from the request to its first token")
        self._between = seconds("inter_token_latency_seconds", "Seconds a token between two steps of a request")
        self._stages = {
            stage: seconds(f"request_{name}_time_seconds", f"Seconds of a request {about}")
            for stage, name, about in (
                ("queue", "queue", "before its prompt is read"),
                ("read", "prefill", "while its prompt is read"),
                ("rounds", "decode", "after its prompt is read"),
            )
        }
        self._whole = seconds("e2e_request_latency_seconds", "Seconds from the request to its last token")
        gauge = partial(self._make, Gauge)
        gauge("num_requests_running", "Requests that are read or decoded").set_function(lambda: engine.num_running)
        gauge("num_programs_compiling", "Programs that are compiled ahead and not ready").set_function(compiling)
        gauge("num_requests_waiting", "Requests that wait for a slot").set_function(lambda: engine.num_waiting)
        gauge("num_slots", "Requests that can be read or decoded together").set(engine.slots)
        usage = "Share of the slots' positions that hold tokens, or of the blocks that rows have"
        in_slots = lambda: self._positions() / engine.slots / engine.capacity
        in_blocks = lambda: engine.memory.usage
        gauge("kv_cache_usage_perc", usage).set_function(in_slots if engine.memory.usage is None else in_blocks)
        gauge("memory_used_bytes", "Bytes in use on the device; of the process on a CPU").set_function(used_bytes)
        self._live: set[Handle] = set()

    def _make(self, kind, name: str, about: str, *labels: str, **options) -> Any:
        """A figure with the model's label; with ``labels`` a function of their values."""
        metric = kind(f"vllm:{name}", about, ["model_name", *labels], registry=self._registry, **options)
        return partial(metric.labels, self._label) if labels else metric.labels(self._label)

    def follow(self, handle: Handle, began: float) -> None:
        """Counts a request to its end; ``began``: ``time.perf_counter()`` when it came."""
        self._live.add(handle)
        handle.watch(_Follower(self, handle, began))

    def forget(self, handle: Handle) -> None:
        """Counts the end of a request."""
        for stage, begin, end in handle.stages(time.perf_counter()):
            self._stages[stage].observe(end - begin)
        self._live.discard(handle)

    def _positions(self) -> int:
        """The number of tokens of the requests that are decoded."""
        decoded = [handle for handle in self._live.copy() if "rounds" in handle.begins]
        return sum(len(handle.prompt) + len(handle.token_ids) for handle in decoded)

    def page(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self._registry)


class _Follower:
    """Counts what is new of a request at each call. The engine calls it under its lock."""

    def __init__(self, metrics: Metrics, handle: Handle, began: float):
        self._metrics = metrics
        self._handle = handle
        self._began = began
        self._last = began
        self._told = 0
        self._accepted_at = [0] * len(handle.accepted_at)
        self._is_over = False

    def __call__(self) -> None:
        m = self._metrics
        handle = self._handle
        now = time.perf_counter()
        rounds = handle.rounds[self._told :]
        if rounds and not self._told:
            for counter in (m._prompt_tokens, m._looked_up):
                counter.inc(len(handle.prompt))
            m._found.inc(handle.cached_tokens)
            m._first.observe(now - self._began)
        elif rounds:
            emitted = sum(emitted for _, _, emitted in rounds)
            for _ in range(emitted):
                m._between.observe((now - self._last) / emitted)
        for drafted, accepted, emitted in rounds:
            m._drafts.inc(drafted > 0)
            m._drafted.inc(drafted)
            m._accepted.inc(accepted)
            m._tokens.inc(emitted)
        for position, count in enumerate(handle.accepted_at):
            m._accepted_at(position).inc(count - self._accepted_at[position])
        if rounds:
            self._told = len(handle.rounds)
            self._last = now
            self._accepted_at = list(handle.accepted_at)
        if handle.is_over and not self._is_over:
            self._is_over = True
            m._ended(_reason(handle)).inc()
            m._whole.observe(now - self._began)
            m.forget(handle)


def _reason(handle: Handle) -> str:
    """Why a request that is over has ended: that of its result, "abort" or "error"."""
    outcome = handle.outcome
    if isinstance(outcome, Result):
        return outcome.finish_reason
    return "abort" if isinstance(outcome, CancelledError) else "error"
