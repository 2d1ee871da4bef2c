"""The end of a request: the result of its row, or the error."""

import dataclasses
import time
from typing import Any

import numpy as np

from ..core.cache import KVCache
from ..errors import NumericsError
from ..parallel import fetch
from ..text.generator import Generator
from ..text.result import Result, results_of
from ..text.session import Decoding
from .programs import Programs
from .prompt_reader import Row


def take_result(row: Row, programs: Programs, generator: Generator, stopped: bool) -> Result | NumericsError:
    """The end of a request after its last round.

    Its slot is then empty. ``stopped``: a stop string ended it.
    """
    batch = row.handle.batch
    text = fetch(programs.release(row.slot))
    if stopped:  # what the rounds emitted after the stop string is no part of the text
        drafted, accepted, emitted = np.array(row.rounds).T
        end: Any = np.array([len(batch.prompts[0]) + emitted.sum() - 1])
        reached: Any = (accepted[:, None] > np.arange(text.counters.accepted_at.shape[1])).sum(0)[None]
        calls = np.array([len(row.rounds)])
        drafts = np.array([drafted.sum()])
        counters = text.counters.replace(calls=calls, drafted=drafts, accepted_at=reached)
        text = text.replace(cache=KVCache((), end), failed=np.array([False]), counters=counters)
    compiling = programs.compile_seconds - row.compiled
    try:
        decoded = Decoding(
            text,
            batch,
            prefill_seconds=row.prefill_seconds,
            decode_seconds=time.perf_counter() - row.began,
            compile_seconds=compiling,
        )
        (result,) = results_of(decoded, generator.target, generator.rule_name, generator.session, programs.count)
    except NumericsError as error:
        return error
    generator.remember([result])
    stats = dataclasses.replace(result.stats, cached_tokens=row.handle.cached_tokens)
    return dataclasses.replace(result, stats=stats)
