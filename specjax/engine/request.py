"""Requests of an engine, on the host: options are checked, and turned into arrays of fixed shapes."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from ..checks import whole
from ..errors import RequestError
from ..generate import Generator
from ..prefill import Requests
from ..requests.batch import Batch
from ..requests.limits import MOST_SAMPLES
from ..requests.options import Options
from ..requests.samples import key_of_sample
from ..requests.stop_strings import StopAutomaton
from ..state import RequestOptions

STOP_IDS = 32
"""The most tokens that may end a request: end-of-text tokens and ``stop_token_ids``."""

_REFUSED = {
    "n": "submit the prompt once for each sample, numbered by the argument sample",
    "regex": "call a Generator for constraints",
    "choices": "call a Generator for constraints",
    "json_schema": "call a Generator for constraints",
}
"""Options whose arrays have no fixed shape, and the mend."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
      prompt: the prompt's token ids.
      batch: its options, a batch of one row.
      arrays: prompt and options for the device, one row of the engine's capacity.
      stops: the automaton of its stop strings on the host, or None. The host searches them, because
        their tables have no fixed shape.
    """

    prompt: list[int]
    batch: Batch
    arrays: Requests
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
      logprobs: the largest value of the option ``logprobs``; None for an engine that records none.
      sample: the number of the sample of its prompt, see the option ``n``.

    Raises RequestError for an option that an engine cannot have, and for a request that needs more
    positions than a slot has.
    """
    asked = Options.of(options)
    for name, mend in _REFUSED.items():
        if getattr(asked, name) != getattr(Options(), name):
            raise RequestError(f"{name} is no option of an engine's request; {mend}")
    ids, batch = generator.read_options(prompt, messages=messages, **options)
    if len(ids) != 1:
        raise RequestError(f"a request has one prompt, not {len(ids)}; submit each prompt")
    if whole("sample", sample, 0, MOST_SAMPLES - 1):
        batch = dataclasses.replace(batch, keys=key_of_sample(batch.keys, sample))
    (wanted,) = batch.logprobs
    if wanted is not None and (logprobs is None or wanted > logprobs):
        raise RequestError(f"logprobs is {wanted} and the engine records {logprobs}; make it with logprobs={wanted}")
    need = int(batch.limit[0]) + generator.drafter.depth + 1
    if need > capacity:
        raise RequestError(
            f"the prompt has {len(ids[0])} tokens, and with max_new_tokens and one round it needs {need} positions; a "
            f"slot has {capacity}: shorten the prompt, lower max_new_tokens, or give the engine more capacity"
        )
    stop_ids = batch.stop_ids[batch.stop_ids >= 0]
    if len(stop_ids) > STOP_IDS:
        raise RequestError(f"stop_token_ids: {len(stop_ids)} tokens end the request, and the most is {STOP_IDS}")
    return Request(ids[0], batch, _arrays(ids[0], batch, stop_ids, capacity), jax.device_get(batch.stops))


def _arrays(prompt: list[int], batch: Batch, stop_ids: np.ndarray, capacity: int) -> Requests:
    tokens = np.zeros((1, capacity), np.int32)
    tokens[0, : len(prompt)] = prompt
    padded = np.full((1, STOP_IDS), -1, np.int32)
    padded[0, : len(stop_ids)] = stop_ids
    length = np.array([len(prompt)], np.int32)
    tokens, length, limit, padded = map(jax.device_put, (tokens, length, np.int32(batch.limit), padded))
    return Requests(tokens, length, RequestOptions(batch.sampling, batch.keys, limit, padded))


def read_blank(generator: Generator, capacity: int) -> Requests:
    """The request of an empty slot: a row at its limit, which has ended."""
    blank = read_request(generator, [0], None, dict(max_new_tokens=1), capacity=capacity).arrays
    return blank.replace(options=blank.options.replace(limit=blank.lengths))
