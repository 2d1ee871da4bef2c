"""Draws the loss and the measured acceptance length of training runs, from their logs.

    python scripts/zoo/training_curves.py RUN [RUN ...] --output curves.png

It needs the extra "plot".
"""

import argparse
import json
from pathlib import Path

import numpy as np

_SMOOTHED = 20
"""A point of the loss is the mean over this many steps."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="directories of specjax train")
    parser.add_argument("--output", type=Path, default=Path("curves.png"), help="the picture (default curves.png)")
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    logs = {run.name: [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()] for run in args.runs}
    draw(logs).savefig(args.output, dpi=150)
    print(args.output)


def draw(logs: dict[str, list[dict]]):
    """A matplotlib figure of the loss, and beside it of the measured acceptance length, by step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    losses, acceptance = figure.subplots(1, 2)
    for name, records in logs.items():
        steps, values = (np.array([record[key] for record in records]) for key in ("step", "loss"))
        size = min(_SMOOTHED, len(values))
        (line,) = losses.plot(steps[size - 1 :], np.convolve(values, np.ones(size) / size, "valid"), label=name)
        losses.plot(steps, values, color=line.get_color(), alpha=0.2)
        measured = [(record["step"], record["acceptance"]) for record in records if "acceptance" in record]
        acceptance.plot(*zip(*measured), "o-", label=name) if measured else None
    for axes, title in ((losses, "loss"), (acceptance, "mean acceptance length, held-out prompts")):
        axes.set(xlabel="step", title=title)
        axes.grid(alpha=0.3)
    losses.legend()
    return figure


if __name__ == "__main__":
    main()
