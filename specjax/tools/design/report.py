"""Designed drafts for people and programs: an object for JSON, a table, a plot and recipes."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from .draft_latency import PARTS
from .search import Design, Times, best_length, needed_acceptance

FIRST = 5
"""The number of shapes that get a recipe, and a break-even acceptance with one another."""

_RECIPE = """# Shape {rank} of {designed}. Train it with: specjax train --recipe {file}
kind = "draft"
model = "{model}"

[head]
num_layers = {layers}
hidden_size = {width}
intermediate_size = {intermediate}
head_dim = {head_dim}
num_heads = {heads}
num_kv_heads = {kv_heads}

[loss]
forward_kl = 1.0
"""


def summary(designs: Sequence[Design], times: Times, *, acceptance: float, context: int) -> dict:
    """The designs as an object for JSON; the best shape comes first.

    ``break_even`` has a row and a column for each of the first ``FIRST`` shapes: the acceptance
    that the shape of the column needs to be as fast as the shape of the row.
    """
    first = designs[:FIRST]
    return {
        "acceptance": acceptance,
        "context": context,
        "batch": times.latency.batch,
        "plain_seconds_per_token": times.plain,
        "latency": {"seconds": dict(zip(PARTS, times.latency.seconds))}
        | {"median_error": times.latency.error, "worst_error": times.latency.worst},
        "shapes": [_describe(one) for one in designs],
        "break_even": [[needed_acceptance(other.seconds, times, one.speed) for other in first] for one in first],
    }


def table(report: dict) -> Table:
    """The shapes of a ``summary``, the best first."""
    grid = Table(title=f"drafts at acceptance {report['acceptance']}", box=None)
    heads = ("", "layers", "width", "MLP", "heads", "weights", "ms a token", "drafted", "tokens a round", "speed-up")
    for head in (*heads, "as fast as the first", "pays from"):
        grid.add_column(head, justify="right")
    for rank, shape in enumerate(report["shapes"], 1):
        equal = report["break_even"][0][rank - 1] if rank <= FIRST else None
        grid.add_row(
            str(rank), str(shape["num_layers"]), str(shape["hidden_size"]), str(shape["intermediate_size"]),
            f"{shape['num_heads']}/{shape['num_kv_heads']}", f"{shape['weights'] / 1e6:.2f} M",
            f"{shape['seconds_per_token'] * 1e3:.3f}", str(shape["draft_tokens"]), f"{shape['tokens_per_round']:.2f}",
            f"{shape['speedup']:.2f}", _show(equal) if rank <= FIRST else "", _show(shape["pays_from"]),
        )  # fmt: skip
    return grid


def notes(report: dict) -> list[str]:
    """The assumption behind the ranking, and the error of the latency."""
    return [
        f"all shapes are taken to be accepted alike ({report['acceptance']}); train the first ones and measure them",
        "as fast as the first: the acceptance at which a shape reaches the speed of the first shape",
        f"the time of a token is fitted; a sample left out is missed by {report['latency']['median_error']:.0%} in the "
        f"median and by {report['latency']['worst_error']:.0%} at most",
    ]


def recipe(report: dict, rank: int, model: str, file: Path) -> str:
    """A recipe of ``specjax train`` for a shape, counted from 1."""
    shape = report["shapes"][rank - 1]
    return _RECIPE.format(
        rank=rank, designed=len(report["shapes"]), file=file, model=model, layers=shape["num_layers"],
        width=shape["hidden_size"], intermediate=shape["intermediate_size"], head_dim=shape["head_dim"],
        heads=shape["num_heads"], kv_heads=shape["num_kv_heads"],
    )  # fmt: skip


def plot(report: dict, times: Times, file: Path) -> None:
    """Draws acceptance against the time of a draft token, with lines of equal speed-up."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    seconds = np.array([shape["seconds_per_token"] for shape in report["shapes"]])
    across = np.geomspace(seconds.min() / 2, seconds.max() * 2, 40)
    up = np.linspace(0.05, 0.95, 40)
    speedups = [[best_length(x, times, y)[1] * times.plain for x in across] for y in up]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="time of a draft token, ms", ylabel="acceptance", xscale="log")
    lines = axes.contour(across * 1e3, up, speedups, levels=_levels(np.max(speedups)), colors="0.6", linewidths=0.8)
    axes.clabel(lines, fmt="%g×")
    axes.scatter(seconds * 1e3, np.full(seconds.size, report["acceptance"]), color="C0", zorder=3)
    for rank, x in enumerate(seconds[:FIRST], 1):
        above = (x * 1e3, report["acceptance"])
        axes.annotate(str(rank), above, (0, 5 + 9 * (rank % 2)), textcoords="offset points", ha="center", fontsize=8)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(ScalarFormatter())
    axes.set_title("lines of equal speed-up over plain decoding", fontsize=10)
    figure.savefig(file)


def _describe(one: Design) -> dict:
    config = one.config
    sizes = ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")
    return {size: getattr(config, size) for size in sizes} | {
        "weights": config.num_weights,
        "seconds_per_token": one.seconds,
        "draft_tokens": one.drafted,
        "tokens_per_round": one.tokens_per_round,
        "tokens_per_second": one.speed,
        "speedup": one.speedup,
        "pays_from": one.pays_from,
    }


def _levels(most: float) -> list[float]:
    return [level for level in (0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if level < most] or [math.floor(most)]


def _show(acceptance: float | None) -> str:
    return "never" if acceptance is None else f"{acceptance:.2f}"
