"""Writes docs/results/evaluate_cpu.md, and the plots of the first suite beside it, from evaluations.

    METHODS=auto,ngram,draft_model,switch
    specjax evaluate --suite small --draft tiny-python-draft --methods $METHODS --max-new-tokens 64 \
        --batches 1,4 --output runs/small
    specjax evaluate --suite humaneval --data HUMANEVAL --draft tiny-python-draft --methods $METHODS \
        --max-new-tokens 64 --output runs/humaneval
    specjax evaluate --suite spec-bench --data SPEC_BENCH --draft tiny-python-draft --methods $METHODS \
        --limit 20 --max-new-tokens 64 --output runs/spec-bench
    python scripts/evaluate_page.py runs/small runs/humaneval runs/spec-bench
"""

import argparse
import json
from pathlib import Path

from specjax.evaluation.benchmark.plots import draw_plots
from specjax.evaluation.benchmark.report import LEGEND, markdown

RESULTS = Path(__file__).parents[1] / "docs" / "results"

HEAD = f"""# Suites

`scripts/evaluate_page.py` writes this page from the directories of
[`specjax evaluate`](../evaluate.md). The commands stand in the script.

The embedded target knows Python and little English. Its answers to Spec-Bench are poor, and often
repeat themselves, so the speed-ups there say nothing about models that can answer.

Columns: {LEGEND}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the page of evaluations, and the plots of the first.")
    parser.add_argument("directories", nargs="+", type=Path, help="directories of specjax evaluate")
    files = [each / "report.json" for each in parser.parse_args().directories]
    if absent := [str(file) for file in files if not file.exists()]:
        parser.error(f"no report {absent[0]}; name directories of specjax evaluate")
    reports = [json.loads(file.read_text()) for file in files]
    sections = [f"## {report['settings']['suite']}\n\n{markdown(report)}" for report in reports]
    pictures = []
    for number, (title, svg) in enumerate(draw_plots(reports[0]).items(), 1):
        name = f"evaluate_{reports[0]['settings']['suite']}_{number}.svg"
        (RESULTS / name).write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
        pictures.append(f"![{title}]({name})")
    sections[0] += "\n\n" + "\n\n".join(pictures)
    (RESULTS / "evaluate_cpu.md").write_text("\n\n".join([HEAD.rstrip(), *sections]) + "\n")


if __name__ == "__main__":
    main()
