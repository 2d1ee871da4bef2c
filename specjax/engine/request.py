"""Requests of an engine, on the host: options are checked, and turned into arrays of fixed shapes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..checks import whole
from ..errors import RequestError
from ..generate import Generator
from ..parallel import place
from ..prefill import Requests
from ..requests.batch import Batch
from ..requests.constraint import Constraint
from ..requests.limits import MOST_SAMPLES
from ..requests.options import Options
from ..requests.samples import key_of_sample
from ..requests.stop_strings import StopAutomaton
from ..state import RequestOptions

STOP_IDS = 32
"""The most tokens that may end a request: end-of-text tokens and ``stop_token_ids``."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
      prompt: the prompt's token ids.
      batch: its options, a batch of one row.
      arrays: prompt and options for the device, one row of the engine's capacity.
      constraint: its constraint on the host, or None. The engine has one table for all requests, see
        ``constraints``.
      stops: the automaton of its stop strings on the host, or None. The host searches them, because
        their tables have no fixed shape.
    """

    prompt: list[int]
    batch: Batch
    arrays: Requests
    constraint: Constraint | None
    stops: StopAutomaton | None

    def find_stop(self, state: int, tokens: list[int]) -> tuple[int, int | None]:
        """Follows the stop strings along ``tokens`` from a state of their automaton.

        Returns the state after the tokens, and the number of tokens up to the end of the first stop
        string; None if no stop string ends there.
        """
        if self.stops is None:
            return state, None
        for i, token in enumerate(tokens):
            state = int(self.stops.next[state, self.stops.classes[token]])
            if self.stops.accept[state]:
                return state, i + 1
        return state, None

    def arrays_from(self, state: int) -> Requests:
        """``arrays`` of a row whose constraint starts in this state of the engine's table.

        The number of the state is on the host.
        """
        options = self.arrays.options
        sampling = options.sampling.replace(start=np.array([state], np.int32))
        return self.arrays.replace(options=options.replace(sampling=sampling))


def read_request(
    generator: Generator,
    prompt,
    messages,
    options: Mapping,
    *,
    capacity: int,
    logprobs: int | None = None,
    sample: int = 0,
) -> Request:
    """The request of one prompt, or of one conversation.

    Args:
      capacity: positions of a slot.
      logprobs: the largest value of the option ``logprobs``; None for an engine that records none, and
        thus no ``policy_logprobs``.
      sample: the number of the sample of its prompt, see the option ``n``.

    Raises RequestError for an option that an engine cannot have, and for a request that needs more
    positions than a slot has.
    """
    if Options.of(options).n != 1:
        raise RequestError(
            "n is no option of an engine's request; submit the prompt once for each sample, numbered by the argument "
            "sample"
        )
    ids, batch = generator.read_options(prompt, messages=messages, **options)
    if len(ids) != 1:
        raise RequestError(f"a request has one prompt, not {len(ids)}; submit each prompt")
    if whole("sample", sample, 0, MOST_SAMPLES - 1):
        batch = dataclasses.replace(batch, keys=key_of_sample(batch.keys, sample))
    (wanted,) = batch.logprobs
    if wanted is not None and (logprobs is None or wanted > logprobs):
        raise RequestError(f"logprobs is {wanted} and the engine records {logprobs}; make it with logprobs={wanted}")
    if batch.policy_logprobs[0] and logprobs is None:
        raise RequestError("policy_logprobs is asked for and the engine records none; make it with logprobs=0")
    need = int(batch.limit[0]) + generator.drafter.depth + 1
    if need > capacity:
        raise RequestError(
            f"the prompt has {len(ids[0])} tokens, and with max_new_tokens and one round it needs {need} positions; a "
            f"slot has {capacity}: shorten the prompt, lower max_new_tokens, or give the engine more capacity"
        )
    stop_ids = batch.stop_ids[batch.stop_ids >= 0]
    if len(stop_ids) > STOP_IDS:
        raise RequestError(f"stop_token_ids: {len(stop_ids)} tokens end the request, and the most is {STOP_IDS}")
    arrays = place(_arrays(ids[0], batch, stop_ids, capacity), generator.session.mesh, rows=False)
    return Request(ids[0], batch, arrays, batch.constraints[0], jax.device_get(batch.stops))


def _arrays(prompt: list[int], batch: Batch, stop_ids: np.ndarray, capacity: int) -> Requests:
    tokens = np.zeros((1, capacity), np.int32)
    tokens[0, : len(prompt)] = prompt
    padded = np.full((1, STOP_IDS), -1, np.int32)
    padded[0, : len(stop_ids)] = stop_ids
    arrays: Any = jax.device_put((tokens, np.array([len(prompt)], np.int32), batch.limit, padded, batch.seeded))
    tokens, length, limit, padded, seeded = arrays
    sampling = batch.sampling.replace(constraint=None)  # the engine's table stands for it
    options = RequestOptions(sampling, batch.keys, limit, padded, seeded=seeded)
    return Requests(tokens, length, options)


def read_blank(generator: Generator, capacity: int) -> Requests:
    """The request of an empty slot: a row at its limit, which has ended."""
    blank = read_request(generator, [0], None, dict(max_new_tokens=1), capacity=capacity).arrays
    return blank.replace(options=blank.options.replace(limit=blank.lengths))
