"""The report of an evaluation as one static page, with its plots inside."""

from collections.abc import Callable
from pathlib import Path

import jinja2

from ..report import with_interval
from .plots import draw_plots
from .report import caption, notes

_TEMPLATE = Path(__file__).with_name("report.html")


def page(report: dict) -> str:
    """The text of the page. It needs no network and no other file."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        settings=report["settings"],
        caption=caption(report),
        notes=notes(report),
        plots=draw_plots(report),
        columns=list(_COLUMNS),
        tasks={
            task: {method: [show(figures) for show in _COLUMNS.values()] for method, figures in methods.items()}
            for task, methods in report["tasks"].items()
        },
        costs=list(_COSTS),
        methods={method: [show(figures) for show in _COSTS.values()] for method, figures in report["methods"].items()},
        batches=_batches(report),
        differences=list(_differences(report)),
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _milliseconds(pair: list[float]) -> str:
    return " / ".join(f"{1e3 * seconds:.2f}" for seconds in pair)


def _equality(figures: dict) -> str:
    differences = figures["differences"]
    return f"{figures['turns'] - len(differences)} of {figures['turns']}"


def _with_interval(figures: dict, name: str, form: str) -> str:
    """A figure and its interval."""
    return with_interval(figures[name], figures[f"{name}_interval"], form)


def _ratio(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else f"{value:{form}}"


def _score(figures: dict) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in (figures["score"] or {}).items()) or "-"


def _share(figures: dict) -> str:
    if "drafting_share" not in figures:
        return "-"
    return f"{1e3 * figures['drafting_seconds']:.2f} / {1e3 * figures['verification_seconds']:.2f}"


def _batches(report: dict) -> dict[str, list[str]]:
    """The throughput and latency of each method at each measured size of the batch."""
    return {
        method: [
            f"{p['batch']}: {p['tokens_per_second']:.0f} / {1e3 * p['token_seconds']:.2f}" for p in figures["batches"]
        ]
        for method, figures in report["methods"].items()
        if "batches" in figures
    }


def _differences(report: dict):
    """The turns that differ from plain decoding: method, prompt, token, margin, and tie or not."""
    for method, figures in list(report["tasks"].values())[-1].items():
        for each in figures["differences"]:
            margin = "the text ended here" if each["margin"] is None else f"{each['margin']:.3g}"
            yield method, each["prompt"], each["token"], margin, "tie" if each["tie"] else "beyond rounding"


_COLUMNS: dict[str, Callable[[dict], str]] = {
    "speed-up": lambda f: _with_interval(f, "speedup", ".2f"),
    "tokens/s": lambda f: _with_interval(f, "tokens_per_second", ".1f"),
    "acceptance length": lambda f: _with_interval(f, "mean_acceptance_length", ".2f"),
    "TAR without the target's token": lambda f: _ratio(f["accepted_per_call"]),
    "accepted %": lambda f: _percent(f["draft_acceptance_rate"]),
    "accepted % by information": lambda f: _percent(f["acceptance_by_information"]),
    "accepted % by position": lambda f: " ".join(f"{100 * x:.0f}" for x in f["acceptance_rate_per_position"]) or "-",
    "first token ms": lambda f: _milliseconds(f["first_token"]),
    "token ms": lambda f: _milliseconds(f["token"]),
    "round ms": lambda f: _milliseconds(f["round"]),
    "J/token": lambda f: _ratio(f["joules_per_token"], ".3g"),
    "Spec-Bench tokens/s": lambda f: _ratio(f["spec_bench_tokens_per_second"], ".1f"),
    "Spec-Bench speed-up": lambda f: _ratio(f["spec_bench_speedup"]),
    "equal turns": _equality,
    "Rouge-1/2/L to plain": lambda f: " ".join(f"{x:.3f}" for x in f["rouge"]),
    "score": _score,
    "turns": lambda f: str(f["turns"]),
    "new tokens": lambda f: str(f["generated"]),
}  # fmt: skip
"""The columns of a task's table."""

_COSTS: dict[str, Callable[[dict], str]] = {
    "drafts": lambda f: ", ".join(f["drafts"]) or "-",
    "parameters of drafts": lambda f: f"{f['draft_parameters']:,}",
    "operations a round": lambda f: f"{f['operations_per_round']:.3g}",
    "operations a token": lambda f: f"{f['operations_per_token']:.3g}",
    "bytes a round": lambda f: f"{f['bytes_per_round']:.3g}",
    "bytes a token": lambda f: f"{f['bytes_per_token']:.3g}",
    "drafting / verification ms a round": _share,
    "p-value of equality in law": lambda f: _ratio(f.get("law_p_value"), ".3g"),
}
"""The columns of the table of methods."""
