"""Writes the page evaluate_cpu.md, and the plots of the first suite beside it, from evaluations.

    METHODS=auto,ngram,draft_model,switch
    specjax evaluate --suite small --draft tiny-python-draft --methods $METHODS --max-new-tokens 64 \
        --batches 1,4 --output runs/small
    specjax evaluate --suite humaneval --data HUMANEVAL --draft tiny-python-draft --methods $METHODS \
        --max-new-tokens 64 --output runs/humaneval
    specjax evaluate --suite spec-bench --data SPEC_BENCH --draft tiny-python-draft --methods $METHODS \
        --limit 20 --max-new-tokens 64 --output runs/spec-bench
    python scripts/benchmarks/evaluate_page.py runs/small runs/humaneval runs/spec-bench
"""

import json
from pathlib import Path

from page import Result, arguments, measured, section

from specjax.tools.evaluate.benchmark.plots import draw_plots
from specjax.tools.evaluate.benchmark.report import LEGEND, markdown

TITLE = "Suites"
QUESTION = "How fast are the methods on the tasks of published suites, with the embedded pair?"
TEXT = f"""The reports are those of [`specjax evaluate`](../evaluate.md); its commands stand in the script.

The embedded target knows Python and little English. Its answers to Spec-Bench are poor, and often
repeat themselves, so the speed-ups there say nothing about models that can answer.

Columns: {LEGEND}.
"""
FOLLOWS = """
- Drafts pay most where the answer repeats its prompt or itself, and least in free text after a long prompt.
- Run the suite nearest to your own texts before you choose a method.
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("directories", nargs="+", type=Path, help="directories of specjax evaluate")
    files = [each / "report.json" for each in parser.parse_args().directories]
    if absent := [str(file) for file in files if not file.exists()]:
        parser.error(f"no report {absent[0]}; name directories of specjax evaluate")
    reports = [json.loads(file.read_text()) for file in files]
    suites = [f"## {report['settings']['suite']}\n\n{markdown(report)}" for report in reports]
    result = Result("evaluate_cpu")
    result.page.parent.mkdir(parents=True, exist_ok=True)
    pictures = []
    for number, (title, svg) in enumerate(draw_plots(reports[0]).items(), 1):
        name = f"evaluate_{reports[0]['settings']['suite']}_{number}.svg"
        result.page.with_name(name).write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
        pictures.append(f"![{title}]({name})")
    suites[0] += "\n\n" + "\n\n".join(pictures)
    conditions = measured(("tiny-python", "tiny-python-draft"), "bfloat16")
    result.write(TITLE, f"{QUESTION}\n\n{TEXT}", [section(conditions, suites[0], ""), *suites[1:]], FOLLOWS)


if __name__ == "__main__":
    main()
