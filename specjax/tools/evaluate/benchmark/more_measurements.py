"""Measurements that compile more programs: parts of a round, batches, equality in law."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....core.read_files import read_json
from ....text.generator import Generator
from ..draft_share import drafting_share
from ..lossless import verify
from .answers import replace_text
from .run import Run

_FILE = "further.json"
"""The figures of an evaluation's directory, and the arguments with which they were measured."""

_REPEATS = 3
"""The runs of each batch, whose median counts."""

_LAW_PROMPTS = 4
"""The number of prompts after which the law is tested."""

_LAW_TOKENS = 3
"""The number of tokens of each draw."""


def read_or_measure(run: Run, directory: Path, **arguments) -> dict[str, dict]:
    """The figures of ``measure_further`` for these arguments.

    They are measured once for the evaluation in ``directory``, so a resumed run has the same
    report.
    """
    file = directory / _FILE
    arguments = json.loads(json.dumps(arguments))
    if file.exists() and (record := read_json(file, str(file)))["asked"] == arguments:
        return record["figures"]
    figures = measure_further(run, **arguments)
    replace_text(file, json.dumps({"asked": arguments, "figures": figures}) + "\n")
    return figures


def measure_further(
    run: Run, *, shares: bool = False, batches: Sequence[int] = (), samples: int = 0
) -> dict[str, dict]:
    """Further figures of each method, on the prompts of a run.

    Args:
      shares: True to measure "drafting_share", the share of a round that drafting takes: its
        first quartile, median and third quartile.
      batches: the sizes of batches for "batches", see ``measure_batches``.
      samples: the draws after each of the first prompts for "law_p_value", the p-value that the
        method has the law of plain decoding, see ``lossless.verify``; 0 for no test.

    Raises RequestError for samples at temperature 0.
    """
    further: dict[str, dict] = {method: {} for method in run.generators}
    if shares:
        for method, generator in run.generators.items():
            further[method]["drafting_share"] = drafting_share(generator, run.prompts[0])
    options: dict[str, Any] = {name: run.settings[name] for name in ("max_new_tokens", "temperature", "seed")}
    if batches:
        for method, points in measure_batches(run.generators, run.prompts, batches, options).items():
            further[method]["batches"] = points
    if samples:
        options |= dict(samples=samples, tokens=min(_LAW_TOKENS, options["max_new_tokens"]))
        for method, generator in list(run.generators.items())[1:]:  # all but plain decoding
            report = verify(run.generators["none"], generator, run.prompts[:_LAW_PROMPTS], **options)
            further[method]["law_p_value"] = report["sampled"]["p_value"]
    return further


def measure_batches(
    generators: Mapping[str, Generator], prompts: Sequence[list[int]], sizes: Sequence[int], options: Mapping
) -> dict[str, list[dict]]:
    """Throughput and latency of each method at several sizes of the batch.

    A batch has the first prompts, again from the first where they do not suffice, and continues
    past end-of-text tokens. The methods alternate.

    Returns for each method and size "batch", "tokens_per_second" of all rows together, and
    "token_seconds", the time that a row waits for a token.
    """
    points: dict[str, list[dict]] = {name: [] for name in generators}
    for size in sizes:
        batch = [prompts[i % len(prompts)] for i in range(size)]
        seconds: dict[str, list[float]] = {name: [] for name in generators}
        for _ in range(1 + _REPEATS):
            for name, generator in generators.items():
                results = generator(batch, ignore_eos=True, **options)
                seconds[name].append(results[0].stats.decode_seconds)
        tokens = sum(result.stats.generated for result in results)
        for name, (_, *timed) in seconds.items():  # The first run warms up.
            median = float(np.median(timed))
            points[name].append(
                {"batch": size, "tokens_per_second": tokens / median, "token_seconds": median * size / tokens}
            )
    return points
