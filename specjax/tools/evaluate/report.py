"""Shows the results of ``compare`` as a table, on a terminal or in Markdown."""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

_COLUMNS = ("method", "speed-up", "tokens/s", "tokens/call", "drafted", "drafting %", "accepted %", "differ")

_LEGEND = (
    "speed-up over plain decoding with its 95 % interval; tokens per second; "
    "new tokens per target call (mean acceptance length); tokens drafted per call; "
    "share of a round that drafting takes; drafts accepted at the first positions; "
    "texts that differ from plain decoding, and those of them that part at a tie"
)

_POSITIONS = 4
"""The number of positions whose acceptance rates the table shows. The JSON has all."""


def table(report: dict) -> Table:
    """A rich table. Its legend and the machine stand below it."""
    grid = Table(*_COLUMNS, caption=f"{_LEGEND}\n{caption(report)}", caption_justify="left")
    for row in _rows(report):
        grid.add_row(*map(Text, row))
    return grid


def markdown(report: dict) -> str:
    """The same table in Markdown."""
    grid = markdown_table(_COLUMNS, _rows(report))
    return "\n".join([grid, "", f"Columns: {_LEGEND}.", "", caption(report), *notes(report)])


def markdown_table(head: Sequence, rows: Iterable[Sequence]) -> str:
    """Any table in Markdown, without a line end after its last row."""
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows))


def notes(report: dict) -> list[str]:
    """Warnings of the measurement, and the methods that were left out."""
    left_out = [f"{method} is left out: {reason}" for method, reason in report.get("left_out", {}).items()]
    return [method["note"] for method in report["methods"] if method["note"]] + left_out


def caption(report: dict) -> str:
    """One line: models, prompts, options and machine."""
    machine = report["machine"]
    settings = report["settings"]
    models = " with ".join(settings[key] for key in ("model", "draft") if key in settings)
    options = "".join(f"{name} {value}; " for name, value in settings["options"].items())
    options += f"rule {settings['rule']}; " if settings.get("rule", "auto") != "auto" else ""
    weights = f"{machine['quantize']} weights, " if machine.get("quantize") else ""
    prompts = "turns of conversations" if settings.get("chat") else "prompts"
    return (
        f"{models}, {weights}{machine['dtype']}; {settings['prompts']} {prompts}, "
        f"{settings['max_new_tokens']} new tokens each, batch 1, greedy; {options}"
        f"{machine['devices']} x {machine['device']}, {machine['cpu']}, {machine['cores']} cores; jax {machine['jax']}"
    )


def _rows(report: dict) -> list[list[str]]:
    return [_row(method) for method in report["methods"]]


def _row(method: dict) -> list[str]:
    return [
        method["method"],
        with_interval(method["speedup"], method["speedup_interval"], ".2f"),
        f"{method['tokens_per_second']:.1f}",
        f"{method['mean_acceptance_length']:.2f}",
        f"{method['drafted_per_call']:.1f}",
        f"{100 * method['drafting_share'][1]:.0f}" if method["drafting_share"] else "-",
        " ".join(f"{100 * x:.0f}" for x in method["acceptance_rate_per_position"][:_POSITIONS]) or "-",
        _equality(method),
    ]


def with_interval(value: float, bounds: list[float] | None, form: str) -> str:
    """A figure with its interval in parentheses."""
    return f"{value:{form}}" + (f" ({bounds[0]:{form}} to {bounds[1]:{form}})" if bounds else "")


def _equality(method: dict) -> str:
    differences = method["differences"]
    if not differences:
        return "none"
    ties = sum(d["tie"] for d in differences)
    return f"{len(differences)} ({ties} ties)"
