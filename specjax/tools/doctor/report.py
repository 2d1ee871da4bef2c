"""An examination for people: the answer and its reasons in sentences, and a table."""

from rich.table import Table

from ..evaluate.report import with_interval

_COLUMNS = (
    "batch", "temperature", "expected speed-up", "tokens a round", "pays from", "ms a round", "draft", "verify", "plain"
)  # fmt: skip


def answer(report: dict) -> list[str]:
    """The answer in sentences: where drafting helps, and the reasons where it does not."""
    settings = report["settings"]
    title = settings["method"] + (f" with {settings['draft']}" if settings["draft"] else "")
    groups = {"helps": [], "may help or hurt": [], "does not help": []}
    for cast in report["forecasts"]:
        speedup = with_interval(cast["speedup"], _bounds(cast), ".2f")
        setting = f"batch {cast['batch']}, temperature {cast['temperature']:g}"
        groups[_verdict(cast)].append(f"at {setting} {speedup}")
    where = f"planned for {settings['device']}" if settings["device"] else "measured here"
    lines = [f"{title} on {settings['model']}, {where}:"]
    lines += [f"drafting {verdict}: {', '.join(some)} times plain" for verdict, some in groups.items() if some]
    lines += [f"{reason['name']}: {reason['text']}" for reason in report["reasons"]]
    unexplained = not report["reasons"] and any(cast["speedup"] < 1 for cast in report["forecasts"])
    return lines + ["no test finds a reason beside the acceptance itself"] * unexplained


def table(report: dict) -> Table:
    """The figures of each batch and temperature."""
    grid = Table(*_COLUMNS)
    for cast in report["forecasts"]:
        times = [f"{cast[f'{part}_ms']:.2f}" if f"{part}_ms" in cast else "-" for part in ("round", "draft", "verify")]
        grid.add_row(
            str(cast["batch"]),
            f"{cast['temperature']:g}",
            with_interval(cast["speedup"], _bounds(cast), ".2f"),
            f"{cast['tokens_per_round']:.2f}",
            f"{cast['break_even_tokens']:.2f}",
            *times,
            f"{cast['plain_ms']:.2f}",
        )
    return grid


def _verdict(cast: dict) -> str:
    low, high = _bounds(cast) or (cast["speedup"],) * 2
    return "helps" if low > 1 else "does not help" if high < 1 else "may help or hurt"


def _bounds(cast: dict) -> list[float] | None:
    return cast["speedup_interval"]
