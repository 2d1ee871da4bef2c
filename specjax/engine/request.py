"""Requests of an engine: batches of one row, whose arrays have the shapes of a slot."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from ..core.checks import whole
from ..core.state import Requests
from ..errors import RequestError
from ..loop.prefill import pad_prompts, positions_needed
from ..parallel import place
from ..requests.batch import Batch
from ..requests.limits import MOST_SAMPLES
from ..requests.options import Options
from ..requests.other_libraries import rename_options
from ..requests.samples import key_of_sample
from ..text.generator import Generator

STOP_IDS = 32
"""The most tokens that may end a request: end-of-text tokens and ``stop_token_ids``."""


def read_request(
    generator: Generator,
    prompt,
    messages,
    options: Mapping,
    *,
    capacity: int,
    logprobs: int | None = None,
    sample: int = 0,
    prompt_logprobs: int | None = None,
) -> Batch:
    """One prompt or one conversation, as a batch of one row.

    Its ``requests`` are for the device and have the engine's capacity, except the automata. The
    constraint's is left out, because the engine has one table for all requests, see
    ``constraints``. That of the stop strings is on the host, where the engine follows it, because
    its tables have no fixed shape.

    Args:
      capacity: positions of a slot.
      logprobs: the largest value of the option ``logprobs``; None for an engine that records none,
        and thus no ``policy_logprobs``.
      sample: the number of the sample of its prompt, see the option ``n``.
      prompt_logprobs: the number of likeliest tokens to record at each place of the prompt. With a
        number ``max_new_tokens`` may be 0, and the request ends when its prompt is read.

    Raises RequestError for an option that an engine cannot have, and for a request that needs more
    positions than a slot has.
    """
    if Options.of(options).n != 1:
        raise RequestError(
            "n is no option of an engine's request; submit the prompt once for each sample, numbered by the argument "
            "sample"
        )
    options = rename_options(options)
    only_reads = prompt_logprobs is not None and options.get("max_new_tokens") == 0
    if only_reads:
        options["max_new_tokens"] = 1
    batch = generator.read_options(prompt, messages=messages, **options)
    if len(batch.prompts) != 1:
        raise RequestError(f"a request has one prompt, not {len(batch.prompts)}; submit each prompt")
    requests = batch.requests
    if whole("sample", sample, 0, MOST_SAMPLES - 1):
        requests = requests.replace(keys=key_of_sample(requests.keys, sample))
    if only_reads:
        requests = requests.replace(limit=requests.lengths)
    _check_records("logprobs", batch.logprobs[0], logprobs)
    _check_records("prompt_logprobs", prompt_logprobs, logprobs)
    if batch.policy_logprobs[0] and logprobs is None:
        raise RequestError("policy_logprobs is asked for and the engine records none; make it with logprobs=0")
    positions_needed(len(batch.prompts[0]), int(requests.limit[0]), generator.drafter, capacity)
    tokens, _ = pad_prompts(batch.prompts, capacity)
    arrays = requests.with_automata(None, None).replace(
        tokens=tokens, stop_ids=_pad_stop_ids(requests.stop_ids), stop_start=None
    )
    arrays = place(arrays, generator.session.mesh, rows=False)
    followed = dict(stops=jax.device_get(requests.stops), stop_start=requests.stop_start)
    return dataclasses.replace(batch, requests=arrays.replace(**followed))


def slot_arrays(requests: Requests, state: int) -> Requests:
    """What the device holds of a request: ``requests`` of ``read_request`` without stop strings.

    Args:
      state: the state of the engine's table in which the row's constraint starts, on the host.
    """
    sampling = requests.sampling.replace(start=np.array([state], np.int32))
    return requests.replace(sampling=sampling, stops=None, stop_start=None)


def with_text(arrays: Requests, text: Sequence[int]) -> Requests:
    """The arrays of a row with another text as its prompt."""
    tokens, lengths = pad_prompts([text], arrays.tokens.shape[1])
    return arrays.replace(tokens=tokens, lengths=lengths)


def _check_records(name: str, wanted: int | None, logprobs: int | None) -> None:
    """Raises RequestError for more log-probabilities than the engine records."""
    if wanted is not None and whole(name, wanted, 0) > (-1 if logprobs is None else logprobs):
        raise RequestError(f"{name} is {wanted} and the engine records {logprobs}; make it with logprobs={wanted}")


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
    batch = read_request(generator, [0], None, dict(max_new_tokens=1), capacity=capacity)
    blank = batch.requests.replace(stops=None, stop_start=None)
    return blank.replace(limit=blank.lengths)
