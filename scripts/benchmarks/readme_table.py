"""Measures every method on the embedded pair, and writes the five fastest into the README.

    python scripts/benchmarks/readme_table.py [--methods all] [--num-prompts 16]

The prompts are held-out code, and files that the model writes once more. Writes
compare_<platform>.json and .md.
"""

import re

import jax
from page import ROOT, Result, arguments, measured, section

import specjax
from specjax.cli.parser import integer
from specjax.drafters import METHODS, needs_of
from specjax.loop.drafter import Models, TrainedHead
from specjax.tools.evaluate import compare, edit_prompts, held_out_prompts, left_out, report

SETS = {
    "held-out code": lambda target, count: held_out_prompts(target.tokenizer, count, 128),
    "a file written again": lambda target, count: edit_prompts(target, count, 112),
}
SHOWN = 5
"""The number of rows in the README."""

TREES = dict(tree_nodes=23, tree_depth=8, tree_top_k=4, tree_temperature=0.3)
"""The options of dynamic trees.

The papers' trees have 59 nodes, for machines that score 59 nodes as fast as one.
"""


TITLE = "Methods on the embedded pair"
QUESTION = "How fast is every method with the embedded models, on held-out code and on a file written again?"
FOLLOWS = """
- Where the text repeats its prompt, methods that look up n-grams are near the best and need no second model.
- Elsewhere a small draft model is fastest on a CPU; trees and heads with many nodes pay on GPUs and TPUs.
- Methods below 1 here show the cost of a round on a small machine, not their worth on another.
"""


def main():
    parser = arguments(__doc__)
    parser.add_argument("--methods", default="all", help="methods separated by commas (default all)")
    parser.add_argument("--num-prompts", type=integer(1), default=16)
    parser.add_argument("--max-new-tokens", type=integer(1), default=128)
    args = parser.parse_args()

    target, draft = (specjax.load(name) for name in ("tiny-python", "tiny-python-draft"))
    reasons = left_out(target, METHODS, (draft,))
    fit = [method for method in METHODS if method not in reasons]
    methods = fit if args.methods == "all" else args.methods.split(",")
    options = dict(draft=draft, max_new_tokens=args.max_new_tokens, shares=True, **TREES)
    measured_sets = {}
    for name, prompts_of in SETS.items():
        measured_sets[name] = compare(target, methods, prompts_of(target, args.num_prompts), **options)
        measured_sets[name]["left_out"] = reasons
    names = [draft["draft"] for draft in (found["settings"] for found in measured_sets.values())]
    models = ["tiny-python", *dict.fromkeys(name for line in names for name in line.split(", "))]
    result = Result(f"compare_{jax.default_backend()}")
    result.save({"conditions": measured(models), "sets": measured_sets})
    write_page(result)
    readme = ROOT / "README.md"
    between = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.S)
    readme.write_text(between.sub(lambda m: m[1] + fastest(measured_sets) + "\n" + m[2], readme.read_text()))


def write_page(result: Result) -> None:
    figures = result.read()
    tables = "\n\n".join(f"**{name}**\n\n{report.markdown(found)}" for name, found in figures["sets"].items())
    result.write(TITLE, QUESTION, [section(figures["conditions"], tables)], FOLLOWS)


def fastest(sets: dict) -> str:
    """The README's table of the methods with the highest speed-up on the first set of prompts."""
    by_method = [{m["method"]: m for m in found["methods"]} for found in sets.values()]
    best = sorted(by_method[0], key=lambda method: -by_method[0][method]["speedup"])
    head = ["method", "drafts with", *(f"speed-up: {name}" for name in sets), "tokens per target call"]
    lines = []
    for method in [method for method in best if method != "none"][:SHOWN]:
        rows = [found[method] for found in by_method]
        speedups = [report.with_interval(row["speedup"], row["speedup_interval"], ".2f") for row in rows]
        lines.append([f"`{method}`", drafts_with(method), *speedups, f"{rows[0]['mean_acceptance_length']:.2f}"])
    return report.markdown_table(head, lines)


def drafts_with(method: str) -> str:
    if method == "switch":
        return "n-grams or a smaller model, per row and round"
    needs = needs_of(method)
    if isinstance(needs, TrainedHead):
        return "a trained head"
    return "a smaller model" if isinstance(needs, Models) else "nothing"


if __name__ == "__main__":
    main()
