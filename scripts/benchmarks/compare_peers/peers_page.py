"""The tables of a comparison: on the terminal, and as a page of the documentation."""

from page import Result, section
from rich.console import Console
from rich.table import Table

from specjax.tools.evaluate.report import markdown_table

TITLE = "specjax beside other programs"
QUESTION = """How fast is specjax beside other programs with the same weights on the same processor?

*same texts*: outputs that equal those of specjax's plain decoding. Programs round differently, so a near tie between two
tokens may fall differently."""
FOLLOWS = """
- A ratio above 1 says that specjax is faster. Measure on your own processor: the kernels of the programs differ by its
  instructions.
"""

_RATES = ("decoding", "tokens/s: median (quartiles)", "same texts")
_RATIOS = ("peer", "compared", "specjax", "peer's", "ratio: median (quartiles)")


def rates(report: dict) -> list[tuple[str, ...]]:
    """The rows of the table of speeds."""
    of = int(report["settings"]["num_prompts"])
    return [(r["decoding"], _cell(r, ".0f"), f"{r['same_texts']} of {of}") for r in report["tokens_per_second"]]


def ratios(report: dict) -> list[tuple[str, ...]]:
    """The rows of the table of ratios."""
    return [(r["peer"], r["kind"], r["of"], r["to"], _cell(r, ".2f")) for r in report["ratios"]]


def show(report: dict) -> None:
    """Prints both tables."""
    for head, rows in ((_RATES, rates(report)), (_RATIOS, ratios(report))):
        table = Table(*head)
        for row in rows:
            table.add_row(*row)
        Console().print(table)


def save(report: dict, result: Result) -> None:
    """Writes the report, and the page of all reports."""
    result.save(report)
    reports = result.read_all() if result.part else [report]
    sections = [section(one["conditions"], _text(one), one["settings"]["label"]) for one in reports]
    result.write(TITLE, QUESTION, sections, FOLLOWS)


def _text(report: dict) -> str:
    of = report["settings"]
    lines = [
        f"{of['num_prompts']} held-out prompts, {of['max_new_tokens']} new tokens each, greedy, batch 1; runs alternate.",
        *(f"{peer} is left out: {why}." for peer, why in report["left_out"].items()),
    ]
    tables = [markdown_table(head, rows) for head, rows in ((_RATIOS, ratios(report)), (_RATES, rates(report)))]
    return "\n\n".join(["\n".join(lines), *tables])


def _cell(found: dict, form: str) -> str:
    low, high = found["quartiles"]
    return f"{found['median']:{form}} ({low:{form}} to {high:{form}})"
