"""Measures every method on the embedded pair, on held-out code and on code that is written again, and puts the tables into the README.

python scripts/readme_table.py [--methods all] [--num-prompts 16]       writes docs/results/compare_<platform>.json and .md
"""

import argparse
import json
import re
from pathlib import Path

import jax

import specjax
from specjax.drafters import METHODS
from specjax.evaluation import compare, edit_prompts, held_out_prompts, left_out, report

ROOT = Path(__file__).resolve().parent.parent
SETS = {
    "held-out code": lambda target, count: held_out_prompts(target.tokenizer, count, 128),
    "a file written again": lambda target, count: edit_prompts(target, count, 112),
}
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
    readme.write_text(between.sub(lambda m: m[1] + tables + "\n" + m[2], readme.read_text()))
    print(tables)


if __name__ == "__main__":
    main()
