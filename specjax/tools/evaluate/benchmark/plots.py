"""The plots of an evaluation, as SVG text. They need the extra ``plot``."""

import io
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_SIZE = (8.0, 4.0)


def draw_plots(report: dict) -> dict[str, str]:
    """The plots by their titles; empty where matplotlib is not installed."""
    return draw(_plots_of(report), report)


def draw(plots: Mapping[str, Callable], report: dict) -> dict[str, str]:
    """The plots as SVG text by their titles; empty where matplotlib is not installed.

    ``plots`` has functions of matplotlib's axes and the report.
    """
    try:
        import matplotlib
    except ImportError:
        return {}
    settings: Any = {
        "svg.hashsalt": "specjax",
        "svg.fonttype": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        return {title: _draw(function, report) for title, function in plots.items()}


def _plots_of(report: dict) -> dict[str, Callable]:
    """The functions that draw, by title. The frontier needs measured batches."""
    has_batches = any("batches" in figures for figures in report["methods"].values())
    return _PLOTS | ({"Throughput against latency, by batch": _draw_frontier} if has_batches else {})


def _draw(function: Callable, report: dict) -> str:
    from matplotlib.figure import Figure

    figure = Figure(_SIZE, layout="constrained")
    text = io.StringIO()
    function(figure.subplots(), report)
    figure.savefig(text, format="svg", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", text.getvalue(), flags=re.S)


def _draw_speedups(axes, report: dict) -> None:
    """Groups of bars, one group a task, one bar a method, with 95 % intervals."""
    tasks = report["tasks"]
    methods = [name for name in report["methods"] if name != "none"]
    width = 0.8 / max(len(methods), 1)
    places = np.arange(len(tasks))
    for i, method in enumerate(methods):
        place = places + (i - (len(methods) - 1) / 2) * width
        figures = [by_method[method] for by_method in tasks.values()]
        middles = [each["speedup"] for each in figures]
        bounds = [each["speedup_interval"] or [each["speedup"]] * 2 for each in figures]
        errors = [[max(m - low, 0), max(high - m, 0)] for m, (low, high) in zip(middles, bounds)]
        axes.bar(place, middles, width, yerr=np.transpose(errors), label=method, color=_colour(report, method))
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(places, list(tasks), rotation=20 if len(tasks) > 4 else 0)
    axes.set_ylabel("speed-up over plain decoding")
    _add_legend(axes)


def _draw_positions(axes, report: dict) -> None:
    """A line a method: the share of rounds that accept a draft at each depth."""
    for method, figures in _whole(report).items():
        if rates := figures["acceptance_rate_per_position"]:
            places = [str(place) for place in range(1, len(rates) + 1)]
            axes.plot(places, rates, marker="o", label=method, color=_colour(report, method))
    axes.set_xlabel("position of the drafted token")
    axes.set_ylabel("accepted, share of rounds")
    axes.set_ylim(0, 1)
    _add_legend(axes)


def _draw_throughput(axes, report: dict) -> None:
    """A point a method; its area grows with the parameters of the draft."""
    for method, figures in _whole(report).items():
        size = report["methods"][method]["draft_parameters"]
        place = (figures["mean_acceptance_length"], figures["tokens_per_second"])
        axes.scatter(*place, s=30 + 30 * np.log10(1 + size / 1e5), color=_colour(report, method))
        axes.annotate(f"{method}, {size / 1e6:.1f} M" if size else method, place, (6, 6), textcoords="offset points")
    axes.margins(0.2)
    axes.set_xlabel("TAR: new tokens per target call")
    axes.set_ylabel("tokens per second")


def _draw_frontier(axes, report: dict) -> None:
    """A line a method, with a point for each size of the batch."""
    for method, figures in report["methods"].items():
        points = figures.get("batches", [])
        places = [(1e3 * point["token_seconds"], point["tokens_per_second"]) for point in points]
        axes.plot(*np.transpose(places), marker="o", label=method, color=_colour(report, method))
        for point, place in zip(points, places):
            axes.annotate(str(point["batch"]), place, (4, 4), textcoords="offset points")
    axes.set_xlabel("ms that a row waits for a token")
    axes.set_ylabel("tokens per second of all rows")
    _add_legend(axes)


def _colour(report: dict, method: str) -> str:
    """The colour of a method, the same in all plots."""
    return f"C{list(report['methods']).index(method) % 10}"


def _add_legend(axes) -> None:
    if axes.get_legend_handles_labels()[1]:  # plain decoding alone has no entry
        axes.legend()


def _whole(report: dict) -> dict:
    """The figures of all questions, by method."""
    return list(report["tasks"].values())[-1]


_PLOTS = {
    "Speed-up by method and task": _draw_speedups,
    "Acceptance by position": _draw_positions,
    "Throughput against TAR and size of the draft": _draw_throughput,
}
