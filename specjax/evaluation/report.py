"""The results of ``compare`` as a table, on a terminal or in Markdown."""

from rich.table import Table
from rich.text import Text

_COLUMNS = (
    "method",
    "tokens/s (95 %)",
    "speed-up (95 %)",
    "mean acceptance length",
    "drafted a call",
    "drafting, % of a round",
    "accepted by position, %",
    "target calls",
    "equal to plain",
)


def table(report: dict) -> Table:
    """A rich table with the machine under it."""
    grid = Table(*_COLUMNS, caption=caption(report), caption_justify="left")
    for row in _rows(report):
        grid.add_row(*map(Text, row))
    return grid


def markdown(report: dict) -> str:
    """The same as Markdown."""
    lines = [_COLUMNS, ["---"] * len(_COLUMNS), *_rows(report)]
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines] + ["", caption(report), *notes(report)])


def notes(report: dict) -> list[str]:
    """What a reader has to be warned of."""
    left_out = [f"{method} is left out: {reason}" for method, reason in report.get("left_out", {}).items()]
    return [method["note"] for method in report["methods"] if method["note"]] + left_out


def caption(report: dict) -> str:
    """One line: what was run on which machine."""
    machine, settings = report["machine"], report["settings"]
    models = " with ".join(settings[key] for key in ("model", "draft") if key in settings)
    options = "".join(f"{name} {value}; " for name, value in settings["options"].items())
    return (
        f"{models}, {machine['dtype']}; {settings['prompts']} prompts, {settings['max_new_tokens']} new tokens each, batch 1, greedy; {options}"
        f"{machine['devices']} x {machine['device']}, {machine['cpu']}, {machine['cores']} cores; jax {machine['jax']}"
    )


def _rows(report: dict) -> list[list[str]]:
    return [_row(method) for method in report["methods"]]


def _row(method: dict) -> list[str]:
    return [
        method["method"],
        _with_interval(method["tokens_per_second"], method["tokens_per_second_interval"], ".1f"),
        _with_interval(method["speedup"], method["speedup_interval"], ".2f"),
        f"{method['mean_acceptance_length']:.2f}",
        f"{method['drafted_per_call']:.1f}",
        f"{100 * method['drafting_share'][1]:.1f}" if method["drafting_share"] else "-",
        " ".join(f"{100 * x:.0f}" for x in method["acceptance_rate_per_position"]) or "-",
        str(method["target_calls"]),
        _equality(method),
    ]


def _with_interval(value: float, bounds: list[float] | None, form: str) -> str:
    return f"{value:{form}}" + (f" ({bounds[0]:{form}} to {bounds[1]:{form}})" if bounds else "")


def _equality(method: dict) -> str:
    differences = method["differences"]
    if not differences:
        return "yes"
    worst = max(differences, key=lambda d: d["margin"])
    kind = "ties" if all(d["tie"] for d in differences) else "no ties"
    return f"no: {len(differences)} prompts, logit margin up to {worst['margin']:.2g} ({kind})"
