"""Measures every method on the embedded pair, on held-out code and on a file written again; the README gets the five fastest.

python scripts/readme_table.py [--methods all] [--num-prompts 16]       writes docs/results/compare_<platform>.json and .md
"""

import argparse
import json
import re
from pathlib import Path

import jax

import specjax
from specjax.drafter import Models, TrainedHead
from specjax.drafters import METHODS, needs_of
from specjax.evaluation import compare, edit_prompts, held_out_prompts, left_out, report

ROOT = Path(__file__).resolve().parent.parent
SETS = {
    "held-out code": lambda target, count: held_out_prompts(target.tokenizer, count, 128),
    "a file written again": lambda target, count: edit_prompts(target, count, 112),
}
SHOWN = 5
"""Rows of the README."""

TREES = dict(tree_nodes=23, tree_depth=8, tree_top_k=4, tree_temperature=0.3)
"""Options of dynamic trees. The papers' trees have 59 nodes, for machines that score 59 nodes as fast as one."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="all", help="separated by commas")
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    args = parser.parse_args()

    target, draft = (specjax.load(name) for name in ("tiny-python", "tiny-python-draft"))
    reasons = left_out(target, METHODS, (draft,))
    methods = (
        [method for method in METHODS if method not in reasons] if args.methods == "all" else args.methods.split(",")
    )
    measured = {}
    for name, prompts_of in SETS.items():
        prompts = prompts_of(target, args.num_prompts)
        measured[name] = compare(
            target, methods, prompts, draft=draft, max_new_tokens=args.max_new_tokens, shares=True, **TREES
        )
        measured[name]["left_out"] = reasons
    results = ROOT / "docs" / "results" / f"compare_{jax.default_backend()}"
    results.with_suffix(".json").write_text(json.dumps(measured, indent=1) + "\n")
    tables = "\n\n".join(f"**{name}**\n\n{report.markdown(found)}" for name, found in measured.items())
    results.with_suffix(".md").write_text(
        f"# Methods on the embedded pair\n\nWritten by `scripts/readme_table.py`.\n\n{tables}\n"
    )
    readme = ROOT / "README.md"
    between = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.S)
    readme.write_text(between.sub(lambda m: m[1] + fastest(measured) + "\n" + m[2], readme.read_text()))
    print(tables)


def fastest(measured: dict) -> str:
    """The methods with the highest speed-up on the first set of prompts, as a table of the README."""
    by_method = [{m["method"]: m for m in found["methods"]} for found in measured.values()]
    best = sorted(by_method[0], key=lambda method: -by_method[0][method]["speedup"])
    lines = [
        ["method", "drafts with", *(f"speed-up: {name}" for name in measured), "tokens per target call"],
        ["---"] * (3 + len(measured)),
    ]
    for method in [method for method in best if method != "none"][:SHOWN]:
        speedups = [
            report.with_interval(found[method]["speedup"], found[method]["speedup_interval"], ".2f")
            for found in by_method
        ]
        lines.append(
            [f"`{method}`", drafts_with(method), *speedups, f"{by_method[0][method]['mean_acceptance_length']:.2f}"]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def drafts_with(method: str) -> str:
    if method == "switch":
        return "n-grams or a smaller model, per row and round"
    needs = needs_of(method)
    return (
        "a trained head"
        if isinstance(needs, TrainedHead)
        else "a smaller model"
        if isinstance(needs, Models)
        else "nothing"
    )


if __name__ == "__main__":
    main()
