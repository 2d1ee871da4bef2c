"""The tables of a comparison: on the terminal, and as a page of the documentation."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from specjax.evaluation.report import markdown_table

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


def save(report: dict, path: Path) -> None:
    """Writes the report as JSON, and its page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    path.with_suffix(".md").write_text(_page(report))
    print(f"written to {path}.json and .md", file=sys.stderr)


def _page(report: dict) -> str:
    on, of = report["machine"], report["settings"]
    lines = [
        "# specjax beside other programs",
        "",
        "Written by `scripts/compare_peers`.",
        "",
        f"{of['label']}, with {of['draft']}; {of['num_prompts']} held-out prompts, {of['max_new_tokens']} new tokens "
        "each, greedy, batch 1; runs alternate.",
        f"specjax in {on['dtype']}; {on['cpu']} ({', '.join(on['matrix_extensions'])}), {on['cores']} cores; "
        f"jax {on['jax']}.",
        "*same texts*: outputs that equal those of specjax's plain decoding. Programs round differently, so a near tie "
        "between two tokens may fall differently.",
        *(f"{peer} is left out: {why}." for peer, why in report["left_out"].items()),
    ]
    for head, rows in ((_RATIOS, ratios(report)), (_RATES, rates(report))):
        lines += ["", markdown_table(head, rows)]
    return "\n".join(lines) + "\n"


def _cell(found: dict, form: str) -> str:
    low, high = found["quartiles"]
    return f"{found['median']:{form}} ({low:{form}} to {high:{form}})"
