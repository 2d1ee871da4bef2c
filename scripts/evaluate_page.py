"""Writes docs/results/evaluate_cpu.md from the directories of evaluations.

    specjax evaluate --suite spec-bench --data SPEC_BENCH --draft tiny-python-draft --methods ngram,draft_model,switch \
        --limit 4 --max-new-tokens 64 --output runs/spec-bench
    specjax evaluate --suite humaneval --data HUMANEVAL --draft tiny-python-draft --methods ngram,draft_model,switch \
        --limit 24 --max-new-tokens 64 --output runs/humaneval
    specjax evaluate --suite small --draft tiny-python-draft --methods ngram,draft_model,switch \
        --max-new-tokens 64 --output runs/small
    python scripts/evaluate_page.py runs/small runs/humaneval runs/spec-bench > docs/results/evaluate_cpu.md
"""

import argparse
import json
from pathlib import Path

from specjax.evaluation.benchmark.report import LEGEND, markdown

HEAD = f"""# Suites

`scripts/evaluate_page.py` writes this page from the directories of [`specjax evaluate`](../evaluate.md). The
commands stand in the script. The embedded target knows Python and no English, so the texts of
Spec-Bench are not what its speed-ups should be judged by: the page shows the form of the figures.

Columns: {LEGEND}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the page of evaluations.")
    parser.add_argument("directories", nargs="+", type=Path, help="directories of specjax evaluate")
    print(HEAD)
    reports = [json.loads((each / "report.json").read_text()) for each in parser.parse_args().directories]
    print("\n\n".join(f"## {report['settings']['suite']}\n\n{markdown(report)}" for report in reports))


if __name__ == "__main__":
    main()
