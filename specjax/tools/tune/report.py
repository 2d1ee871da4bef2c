"""The report of ``tune_tree`` as a table, as a file and as a command line."""

import json
import shlex

from rich.table import Table
from rich.text import Text

_COLUMNS = ("nodes", "depth", "expected tokens a call", "ms a round", "expected speed-up", "")


def table(report: dict) -> Table:
    """A table of plain decoding, the best chain, and the best tree of each measured size.

    It marks the best tree of all.
    """
    grid = Table(*_COLUMNS, caption=_about(report), caption_justify="left")
    shown = {*report["cost"]["verify"]["sizes"], report["best"]["nodes"]}
    plain = dict(nodes=1, depth=0, tokens=1.0, seconds=report["cost"]["verify"]["median"][0], speedup=1.0)
    chain = report["chain"]
    best = report["best"]
    lines = [(plain, "plain decoding")] + [
        (tree, "best" * (tree == best)) for tree in report["trees"] if tree["nodes"] in shown
    ]
    if chain["paths"] != best["paths"]:
        lines.append((chain, "best chain"))
    for tree, mark in lines:
        figures = (f"{tree['tokens']:.2f}", f"{1e3 * tree['seconds']:.2f}", f"{tree['speedup']:.2f}")
        cells = map(Text, (str(tree["nodes"]), str(tree["depth"]), *figures, mark))
        grid.add_row(*cells, style="bold" if mark == "best" else None)
    return grid


def notes(report: dict) -> list[str]:
    """Warnings where no tree beats plain decoding or the best chain; speeds by draft options."""
    best = report["best"]
    chain = report["chain"]
    lines = []
    if best["speedup"] <= 1:
        lines = [f"no tree beats plain decoding here: the best is expected at {best['speedup']:.2f} times its speed"]
    elif best["paths"] == chain["paths"]:
        lines = ["no tree beats the chain here: the best tree has no branches"]
    if len(tried := report["draft_options"]) > 1:
        each = ", ".join(f"{one['speedup']:.2f} with {shlex.join(_flags(one['options']))}" for one in tried)
        lines.append(f"expected speed-up by the draft's own options: {each}")
    return lines


def toml(report: dict) -> str:
    """The best tree as a file for ``--tree``, and the draft's fastest options.

    Comments have the measurement. ``--tree`` reads the paths alone. The options are flags of their
    own, which a comment names.
    """
    best = report["best"]
    own = report["settings"]["draft_options"]
    lines = [
        f"{best['nodes']} nodes, depth {best['depth']}: {best['tokens']:.2f} expected tokens a call, "
        f"{best['speedup']:.2f} times plain decoding",
        *_about(report).split("; "),
        *notes(report),
        *([f"use it with {shlex.join(_flags(own))}"] if own else []),
    ]
    values = [f"{name} = {json.dumps(value)}" for name, value in ({"paths": best["paths"]} | own).items()]
    return "".join(f"{line}\n" for line in [*(f"# {line}" for line in lines), *values])


def command(report: dict, file) -> str:
    """The command line that decodes with the tree in ``file``."""
    settings = report["settings"]
    words = ["specjax", "generate", "--model", settings["model"], "--method", settings["method"], "--tree", str(file)]
    if settings["draft"]:
        words += ["--draft", settings["draft"]]
        if settings["temperature"] == 0 and settings["method"] not in ("medusa", "hydra"):
            words += ["--siblings", "top_k"]
    if settings["temperature"]:
        words += ["--temperature", str(settings["temperature"])]
    return shlex.join([*words, *_flags(settings["draft_options"]), "--prompt", "..."])


def _about(report: dict) -> str:
    """One line: models, texts, cost and machine."""
    machine = report["machine"]
    settings = report["settings"]
    models = " with ".join(filter(None, (settings["model"], settings["draft"] or "token_recycling")))
    return (
        f"{models}, {machine['dtype']}, temperature {settings['temperature']}; "
        f"acceptance on {settings['prompts']} texts of {settings['max_new_tokens']} new tokens; "
        f"cost at batch {settings['batch']} after {settings['length']} tokens; "
        f"{machine['devices']} x {machine['device']}, {machine['cpu']}, {machine['cores']} cores; jax {machine['jax']}"
    )


def _flags(options: dict[str, float]) -> list[str]:
    """The command line's words for sampling options of the draft."""
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", f"{value:g}")]
