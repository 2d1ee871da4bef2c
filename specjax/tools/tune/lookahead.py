"""Finds the fastest sizes W, N and G of lookahead decoding on texts and this device."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from rich.table import Table

from ...checkpoints.load import LanguageModel
from ...core.checks import per_row, whole
from ...text.generator import Generator, Prompt
from ...text.machine import machine
from ..evaluate.comparison import alternate_runs, encode_prompts, interval, rate, seconds_of
from ..evaluate.report import with_interval

Sizes = tuple[int, int, int]
"""W columns, n-grams of N tokens, and G guesses, see ``drafters.Lookahead``."""

NAMES = ("window", "ngram_size", "guesses")
"""The options of these numbers."""

START: Sizes = (5, 3, 5)
"""The sizes at which the search begins. A round scores (W + G)(N - 1) = 20 nodes."""

BUDGET = 12
"""The number of sizes to try."""


def tune_lookahead(
    target: LanguageModel,
    prompts: Sequence[Prompt],
    *,
    temperature: float = 0.0,
    max_new_tokens: int = 128,
    repeats: int = 1,
    budget: int = BUDGET,
    start: Sizes = START,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict:
    """Climbs from ``start`` to neighbouring sizes while they are faster.

    A step measures the neighbours of the best sizes so far: one of W, N and G is larger or smaller.
    Plain decoding and all sizes of a step run on every prompt, in an order that rotates. A speed-up
    is the time of plain decoding in the same step over the time of the sizes.

    Args:
      target: the model to decode with.
      prompts: strings or token ids.
      temperature: the temperature of the requests.
      max_new_tokens: the number of new tokens after each prompt.
      repeats: the number of runs of each prompt.
      budget: the number of sizes to try.
      start: the first sizes.
      progress: called with the number of tried sizes and ``budget``.

    Returns an object for JSON: "machine", "settings"; "tried", a record for each size, best first;
    "best", the first of them; "flags", the options of the best sizes, None where none beats plain
    decoding; and "note".

    Raises RequestError for bad input.
    """
    target.config.refuse_encoder("tune")
    per_row("temperature", temperature, 1, np.float32)
    whole("max_new_tokens", max_new_tokens)
    whole("budget", budget)
    # 1. The prompts and the first sizes.
    ids = encode_prompts(target, prompts)
    options = dict(temperature=temperature)
    tried: dict[Sizes, dict] = {}
    candidates = [start]
    # 2. The climb: all candidates of a step run, and the neighbours of the best are the next
    # candidates.
    while candidates:
        sizes = candidates[: budget - len(tried)]
        generators: dict[Sizes | None, Generator] = {None: Generator(target, "none")}
        generators |= {size: Generator(target, "lookahead", **dict(zip(NAMES, size))) for size in sizes}
        runs = alternate_runs(generators, ids, max_new_tokens, repeats, lambda done, of: None, **options)
        tried |= {size: _record(size, runs[size], runs[None]) for size in sizes}
        progress(len(tried), budget)
        best = max(tried, key=lambda size: tried[size]["speedup"])
        candidates = [size for size in _neighbours(best) if size not in tried] if len(tried) < budget else []
    progress(budget, budget)  # the search ends early where no neighbour is faster
    return _report(target, tried, dict(prompts=len(ids), max_new_tokens=max_new_tokens) | options)


def table(report: dict, rows: int = 8) -> Table:
    """The fastest sizes."""
    grid = Table("W", "N", "G", "nodes scored", "tokens a call", "ms a round", "speed-up")
    for record in report["tried"][:rows]:
        figures = (f"{record['tokens']:.2f}", f"{1e3 * record['seconds']:.2f}")
        speedup = with_interval(record["speedup"], record["speedup_interval"], ".2f")
        grid.add_row(*(str(record[name]) for name in (*NAMES, "nodes")), *figures, speedup)
    return grid


def toml(report: dict) -> str:
    """The best sizes as a TOML file: the method, its options, and the measurement as comments."""
    settings = report["settings"]
    best = report["best"]
    about = [report["note"], f"{settings['model']}, temperature {settings['temperature']}", report["flags"]]
    lines = ['method = "lookahead"', *(f"{name} = {best[name]}" for name in NAMES)]
    return "".join(f"# {line}\n" for line in about if line) + "\n".join(lines) + "\n"


def _neighbours(size: Sizes) -> Iterator[Sizes]:
    """Sizes that differ in one number, or in both widths, by a factor of about two."""
    W, N, G = size
    less_W = max(W // 2, 1)
    less_G = max(G // 2, 1)
    larger = ((2 * W, N, 2 * G), (W, N + 1, G), (W, N, 2 * G), (2 * W, N, G))
    smaller = ((less_W, N, less_G), (W, max(N - 1, 2), G), (W, N, less_G), (less_W, N, G))
    return (size for pair in zip(larger, smaller) for size in pair)


def _record(size: Sizes, runs: list, plain: list) -> dict:
    """The figures of one size."""
    window, ngram_size, guesses = size
    stats = [results[0].stats for results in runs]
    calls = sum(s.target_calls for s in stats)
    seconds = seconds_of(runs)
    plain_seconds = seconds_of(plain)
    return {
        **dict(zip(NAMES, size)),
        "nodes": (window + guesses) * (ngram_size - 1),
        "tokens": sum(s.generated for s in stats) / calls,
        "seconds": float(seconds.sum() / calls),
        "speedup": float(rate(plain_seconds, seconds)),
        "speedup_interval": interval(rate, plain_seconds, seconds),
    }


def _report(target: LanguageModel, tried: dict[Sizes, dict], settings: dict) -> dict:
    """The object that ``tune_lookahead`` returns."""
    records = sorted(tried.values(), key=lambda record: -record["speedup"])
    best = records[0]
    flags = " ".join(["--method lookahead", *(f"--{name.replace('_', '-')} {best[name]}" for name in NAMES)])
    wins = best["speedup"] > 1
    note = f"lookahead is {best['speedup']:.2f} times as fast as plain decoding"
    if not wins:
        note = f"no size of lookahead beats plain decoding here; the best reaches {best['speedup']:.2f} times its speed"
    return {
        "machine": machine(target),
        "settings": {"model": target.name} | settings,
        "tried": records,
        "best": best,
        "flags": flags if wins else None,
        "note": note,
    }
