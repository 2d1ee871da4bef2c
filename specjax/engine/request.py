"""Requests of an engine, on the host.

Options are checked, and turned into arrays of fixed shapes.
"""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from ..core.checks import whole
from ..core.state import Requests
from ..errors import RequestError
from ..loop.prefill import pad_prompts, positions_needed
from ..parallel import place
from ..requests.batch import Batch
from ..requests.constraint import Constraint
from ..requests.limits import MOST_SAMPLES
from ..requests.options import Options
from ..requests.samples import key_of_sample
from ..requests.stop_strings import StopAutomaton
from ..text.generator import Generator

STOP_IDS = 32
"""The most tokens that may end a request: end-of-text tokens and ``stop_token_ids``."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
      batch: its prompt and its options, a batch of one row.
      arrays: prompt and options for the device, one row of the engine's capacity. They have no
        constraint, because the engine has one table for all requests, see ``constraints``. They
        have no stop strings, because the tables of these have no fixed shape, so the host searches
        them.
      stops: the automaton of its stop strings on the host, or None.
    """

    batch: Batch
    arrays: Requests
    stops: StopAutomaton | None

    @property
    def prompt(self) -> list[int]:
        """The prompt's token ids."""
        return self.batch.prompts[0]

    @property
    def constraint(self) -> Constraint | None:
        """Its constraint on the host, or None."""
        return self.batch.constraints[0]

    @property
    def stop_start(self) -> int:
        """The state of ``stops`` before the first new token."""
        start = self.batch.requests.stop_start
        return 0 if start is None else int(start[0])

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
        return self.arrays.replace(sampling=self.arrays.sampling.replace(start=np.array([state], np.int32)))


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
      logprobs: the largest value of the option ``logprobs``; None for an engine that records none,
        and thus no ``policy_logprobs``.
      sample: the number of the sample of its prompt, see the option ``n``.

    Raises RequestError for an option that an engine cannot have, and for a request that needs more
    positions than a slot has.
    """
    if Options.of(options).n != 1:
        raise RequestError(
            "n is no option of an engine's request; submit the prompt once for each sample, numbered by the argument "
            "sample"
        )
    batch = generator.read_options(prompt, messages=messages, **options)
    if len(batch.prompts) != 1:
        raise RequestError(f"a request has one prompt, not {len(batch.prompts)}; submit each prompt")
    requests = batch.requests
    if whole("sample", sample, 0, MOST_SAMPLES - 1):
        requests = requests.replace(keys=key_of_sample(requests.keys, sample))
    _check_records(batch, logprobs)
    positions_needed(len(batch.prompts[0]), int(requests.limit[0]), generator.drafter, capacity)
    tokens, _ = pad_prompts(batch.prompts, capacity)
    arrays = requests.with_automata(None, None).replace(
        tokens=tokens, stop_ids=_pad_stop_ids(requests.stop_ids), stop_start=None
    )
    arrays = place(arrays, generator.session.mesh, rows=False)
    return Request(batch=batch, arrays=arrays, stops=jax.device_get(requests.stops))


def _check_records(batch: Batch, logprobs: int | None) -> None:
    """Raises RequestError for log-probabilities that the engine does not record."""
    (wanted,) = batch.logprobs
    if wanted is not None and (logprobs is None or wanted > logprobs):
        raise RequestError(f"logprobs is {wanted} and the engine records {logprobs}; make it with logprobs={wanted}")
    if batch.policy_logprobs[0] and logprobs is None:
        raise RequestError("policy_logprobs is asked for and the engine records none; make it with logprobs=0")


def _pad_stop_ids(stop_ids) -> np.ndarray:
    """Int32 [1, STOP_IDS]: the stop ids of one row, then -1.

    Raises RequestError if they are too many.
    """
    ids = stop_ids[stop_ids >= 0]
    if len(ids) > STOP_IDS:
        raise RequestError(f"stop_token_ids: {len(ids)} tokens end the request, and the most is {STOP_IDS}")
    padded = np.full((1, STOP_IDS), -1, np.int32)
    padded[0, : len(ids)] = ids
    return padded


def read_blank(generator: Generator, capacity: int) -> Requests:
    """The request of an empty slot: a row at its limit, which has ended."""
    blank = read_request(generator, [0], None, dict(max_new_tokens=1), capacity=capacity).arrays
    return blank.replace(limit=blank.lengths)
