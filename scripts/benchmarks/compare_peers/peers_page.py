"""The tables of a comparison: on the terminal, and as a page of the documentation."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from contender import Answer, Contender
from page import Result, section
from rich.console import Console
from rich.table import Table

from specjax.tools.evaluate.report import markdown_table

TITLE = "specjax beside other programs"
QUESTION = """How fast is specjax beside other programs with the same weights on the same processor?

A ratio above 1 says that specjax is faster. *Same texts*: texts that equal those of specjax's plain decoding in as
many bits. Programs round differently, so a near tie between two tokens may fall differently."""
FOLLOWS = """
- Measure on your own processor: the kernels of the programs differ by its instructions.
- Give `specjax serve` its cache with `--blocks` for chats: the next turn finds the answer before it there.
"""

_SPEEDS = ("decoding", "tokens/s, whole calls: median (quartiles)", "decoding alone", "same texts")
_RATIOS = ("compared", "specjax", "peer's", "ratio, whole calls: median (quartiles)", "decoding alone")


def summary(
    args: argparse.Namespace,
    conditions: dict,
    seconds: dict[Contender, list[float]],
    answers: dict[Contender, list[Answer]],
) -> dict:
    """Tokens a second of each contender, and ratios to each peer: plain by bits, and the fastest methods."""
    whole = {one: np.array([a.count for a in answers[one]]) / times for one, times in seconds.items()}
    alone = {one: np.array([(a.count - 1) / a.seconds for a in answers[one]]) for one in seconds}
    ratios = [
        {
            "kind": kind, "of": str(own), "to": str(other), "whole": spread(whole[own] / whole[other]),
            "alone": spread(alone[own] / alone[other]),
        }
        for kind, own, other in pairs(whole)
    ]  # fmt: skip
    speeds = [
        {
            "decoding": str(one), "whole": spread(whole[one]), "alone": spread(alone[one]), "same_texts": same_texts(one, answers, args.model),
        }
        for one in whole
    ]  # fmt: skip
    settings = {n: Path(str(v)).name if v else v for n, v in vars(args).items() if n not in ("converted", "output")}
    settings["label"] = args.label or settings["model"]
    return {"conditions": conditions, "settings": settings, "speeds": speeds, "ratios": ratios}


def pairs(speeds: dict[Contender, np.ndarray]) -> Iterator[tuple[str, Contender, Contender]]:
    """Contenders of specjax and of each peer to compare: the fastest plain ones by bits, and the fastest of all."""

    def fastest(peer: str, *, bits: int | None = None) -> Contender | None:
        fit = [x for x in speeds if x.peer == peer and (bits is None or (x.bits, x.method) == (bits, "plain"))]
        return max(fit, key=lambda x: np.median(speeds[x]), default=None)

    for peer in dict.fromkeys(one.peer for one in speeds):
        for bits in (16, 8, 4):
            own, other = (fastest(name, bits=bits) for name in ("specjax", peer))
            if peer != "specjax" and own and other:
                yield f"{peer}, plain, {bits} bits", own, other
        own, other = fastest("specjax"), fastest(peer)
        if peer != "specjax" and own and other:
            yield f"{peer}, fastest", own, other


def same_texts(one: Contender, answers: dict[Contender, list[Answer]], model: str) -> int:
    """The texts that equal those of specjax's plain decoding of the same form, else in as many bits.

    A peer's form that the file ``model`` has itself is specjax's form ``stored``.
    """
    form = "stored" if one.form in Path(model).name else one.form
    plain = [x for x in answers if (x.peer, x.bits, x.method) == ("specjax", one.bits, "plain")]
    plain.sort(key=lambda x: x.form != form)  # The sort is stable: else the first form of as many bits.
    compared = plain[0] if plain else one
    return sum(a.text == b.text for a, b in zip(answers[one], answers[compared]))


def spread(values: np.ndarray) -> dict:
    return {"median": float(np.median(values)), "quartiles": [float(q) for q in np.percentile(values, (25, 75))]}


def rows_of_speeds(report: dict) -> list[tuple[str, ...]]:
    of = int(report["settings"]["num_prompts"])
    return [
        (r["decoding"], _cell(r["whole"], ".0f"), _cell(r["alone"], ".0f"), f"{r['same_texts']} of {of}")
        for r in report["speeds"]
    ]


def rows_of_ratios(report: dict) -> list[tuple[str, ...]]:
    return [(r["kind"], r["of"], r["to"], _cell(r["whole"], ".2f"), _cell(r["alone"], ".2f")) for r in report["ratios"]]


def show(report: dict) -> None:
    """Prints both tables."""
    for head, rows in ((_SPEEDS, rows_of_speeds(report)), (_RATIOS, rows_of_ratios(report))):
        table = Table(*head)
        for row in rows:
            table.add_row(*row)
        Console().print(table)


def save(report: dict, result: Result) -> None:
    """Writes the report, and the page of all reports."""
    result.save(report)
    reports = result.read_all() if result.part else [report]
    sections = [section(one["conditions"], text_of(one), one["settings"]["label"]) for one in reports]
    result.write(TITLE, QUESTION, sections, FOLLOWS)


def text_of(report: dict) -> str:
    """The report as Markdown."""
    return _text_of_servers(report) if report.get("kind") == "servers" else _text_of_decoding(report)


def _text_of_decoding(report: dict) -> str:
    of = report["settings"]
    prompts = f"{of['num_prompts']} {'chats' if of['chat'] else 'prompts'} of {of['prompts'] or 'held-out code'}"
    lines = [
        f"{prompts}, {of['max_new_tokens']} new tokens each, greedy, batch 1; runs alternate.",
        *(f"{peer} is left out: {why}." for peer, why in report["left_out"].items()),
    ]
    tables = [
        markdown_table(head, rows)
        for head, rows in ((_RATIOS, rows_of_ratios(report)), (_SPEEDS, rows_of_speeds(report)))
    ]
    return "\n\n".join(["\n".join(lines), *tables])


def _text_of_servers(report: dict) -> str:
    of, rows = report["settings"], []
    for count, servers in report["runs"].items():
        for name, run in servers.items():
            speeds = run["tokens_per_second"]
            latencies = [f"{median:.0f}, {late:.0f}" for median, late in (run["first"], run["between"])]
            rows.append([count, name, f"{np.median(speeds):.0f} ({min(speeds):.0f} to {max(speeds):.0f})", *latencies])
    head = ["clients", "server", "tokens/s: median (range)", "ms to the first token: median, 95 %", "ms between tokens"]
    memory = f", {of['blocks']} blocks" if of.get("blocks") else ""
    return f"""Chats of two turns of {of["prompts"]}, {of["new"]} new tokens an answer, greedy; {of["slots"]} slots, both servers at
the same time on one machine, and runs alternate. specjax has the weights as `{of["quantize"]}`, the draft {of["draft"]}{memory}.

{markdown_table(head, rows)}"""


def _cell(found: dict, form: str) -> str:
    low, high = found["quartiles"]
    return f"{found['median']:{form}} ({low:{form}} to {high:{form}})"
