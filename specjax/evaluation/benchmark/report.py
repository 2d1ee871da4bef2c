"""The report of an evaluation: an object for JSON, and a table of it."""

from rich.table import Table
from rich.text import Text

from ..report import with_interval

_COLUMNS = ("task", "method", "speed-up", "tokens/s", "tokens/call", "accepted %", "of -log p %", "differ", "score")

_LEGEND = (
    "speed-up over plain decoding of the same prompts with its 95 % interval; tokens per second of decoding; new "
    "tokens per target call (mean acceptance length); drafts that are accepted; the share of the text's information "
    "-log p that accepted drafts have; turns that differ from plain greedy decoding, and those of them that part at a "
    "tie; the suite's score"
)


def make_report(run, tasks: dict) -> dict:
    """The report of a ``run.Run`` with the figures by task, an object for JSON."""
    return {"settings": run.settings, "left_out": run.left_out, "tasks": tasks}


def table(report: dict) -> Table:
    """A rich table with a row for each task and method."""
    grid = Table(*_COLUMNS, caption=f"{_LEGEND}\n{caption(report)}", caption_justify="left")
    for task, methods in report["tasks"].items():
        for method, found in methods.items():
            last = method == list(methods)[-1]
            grid.add_row(task if method == "none" else "", *map(Text, _cells(method, found)), end_section=last)
    return grid


def caption(report: dict) -> str:
    """One line: suite, models, options and machine."""
    settings, machine = report["settings"], report["settings"]["machine"]
    models = " with ".join([settings["model"], *settings["drafts"]])
    return (
        f"{settings['suite']}: {settings['form']}; {settings['questions']} questions, at most "
        f"{settings['max_new_tokens']} new tokens, batch 1, temperature {settings['temperature']:g}; {models}, "
        f"{machine['dtype']}; {machine['devices']} x {machine['device']}, {machine['cpu']}, {machine['cores']} cores; "
        f"jax {machine['jax']}"
    )


def notes(report: dict) -> list[str]:
    """Warnings of the evaluation."""
    found, last = [], list(report["tasks"].values())[-1]
    if report["left_out"]:
        ids = ", ".join(map(str, report["left_out"][:5]))
        more = ", ..." * (len(report["left_out"]) > 5)
        found.append(f"{len(report['left_out'])} questions are left out, too long for the model's context: {ids}{more}")
    for method, figures in last.items():
        if method != "none" and figures["speedup"] < 1:
            found.append(f"{method} is slower than plain decoding here ({figures['speedup']:.2f}x)")
        if not all(difference["tie"] for difference in figures["differences"]):
            found.append(f"{method} differs from plain decoding by more than rounding; please report it")
    if report["settings"]["temperature"]:
        found.append("sampled texts are equal in law, not word for word; specjax verify tests it")
    return found


def _cells(method: str, found: dict) -> list[str]:
    ties = sum(difference["tie"] for difference in found["differences"])
    information = found["acceptance_by_information"]
    return [
        method,
        with_interval(found["speedup"], found["speedup_interval"], ".2f"),
        f"{found['tokens_per_second']:.1f}",
        f"{found['mean_acceptance_length']:.2f}",
        f"{100 * found['draft_acceptance_rate']:.0f}",
        "-" if information is None else f"{100 * information:.0f}",
        f"{len(found['differences'])} ({ties} ties)" if found["differences"] else "none",
        ", ".join(f"{name} {value:.2f}" for name, value in (found["score"] or {}).items()) or "-",
    ]
