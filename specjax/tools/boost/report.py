"""The pages of a boost: ``report.html``, and the model card ``README.md``."""

from pathlib import Path
from typing import Any

import jinja2

from ..evaluate.benchmark.plots import draw
from ..evaluate.report import with_interval

_TEMPLATES = Path(__file__).parent
_LOW = 0.97


def write(directory: Path, facts: dict[str, Any]) -> None:
    """Writes ``report.html`` and ``README.md``.

    Args:
      facts: the results of the steps, see ``boost``: "model", "machine", "best", "tuned", "curves",
        "gains", "proof", "survey", "seconds", "texts" and "options".
    """
    loader = jinja2.FileSystemLoader(_TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=jinja2.select_autoescape(), trim_blocks=True)
    environment.lstrip_blocks = True
    tasks = list(_tasks(facts["proof"], facts["best"]["method"]))
    shown = facts | {
        "directory": directory,
        "tasks": tasks,
        "losses": [task for task in tasks if task["speedup"] < _LOW],
        "plots": {} if not facts["curves"] else draw({"Acceptance by tokens of training": _draw_curves}, facts),
        "choices": [_choice(choice) for choice in facts["tuned"]],
        "whole": next((task["cell"] for task in tasks), None),
    }
    for template, file in (("report.html", "report.html"), ("card.md", "README.md")):
        text = environment.get_template(template).render(shown)
        (directory / file).write_text(text, encoding="utf-8")


def _tasks(proof: dict[str, Any], method: str):
    """The speed-up of each suite, task and temperature."""
    for suite, by_temperature in proof.items():
        for temperature, report in by_temperature.items():
            further = report["methods"][method]
            for task, methods in report["tasks"].items():
                figures = methods[method]
                differences = [each for each in figures["differences"] if not each["tie"]]
                yield {
                    "suite": suite,
                    "task": task,
                    "temperature": temperature,
                    "speedup": figures["speedup"],
                    "cell": with_interval(figures["speedup"], figures["speedup_interval"], ".2f"),
                    "length": figures["mean_acceptance_length"],
                    "equal": f"{figures['turns'] - len(figures['differences'])} of {figures['turns']}",
                    "wrong": len(differences),
                    "law": further.get("law_p_value"),
                    "batches": _batches(report["methods"], method),
                }


def _batches(methods: dict[str, Any], method: str) -> str:
    """The speed-up at each measured size of the batch."""
    plain = methods["none"].get("batches", [])
    own = methods[method].get("batches", [])
    ratio = lambda a, b: b["tokens_per_second"] / a["tokens_per_second"]
    return ", ".join(f"{a['batch']}: {ratio(a, b):.2f}" for a, b in zip(plain, own))


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    options = choice["options"]
    nodes = f"tree of {options['tree_nodes']}" if "tree_nodes" in options else ""
    length = options.get("num_speculative_tokens", nodes)
    cell = with_interval(choice["speedup"], choice["interval"], ".2f")
    return {"method": choice["method"], "draft": choice["draft"] or "", "length": length, "cell": cell}


def _draw_curves(axes, facts: dict[str, Any]) -> None:
    """A line a candidate; a point for a kind that needs no training."""
    for i, (name, curve) in enumerate(facts["curves"].items()):
        tokens = [point["tokens"] / 1e6 for point in curve]
        lengths = [1 + sum(point["reached"]) for point in curve]
        axes.plot(tokens, lengths, marker="o", label=name, color=f"C{i % 10}")
    axes.set_xlabel("millions of tokens of training")
    axes.set_ylabel("tokens a round, greedy")
    axes.legend()
