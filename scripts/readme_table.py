"""Measures the methods on the embedded pair and writes docs/results/compare_<platform>.json and .md, and the table of the README.

python scripts/readme_table.py [--num-prompts 32] [--num-speculative-tokens 5]
"""

import argparse
import json
import re
from pathlib import Path

import jax

import specjax
from specjax.bench import compare, held_out_prompts, report

ROOT = Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--num-speculative-tokens", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    args = parser.parse_args()

    target, draft = (specjax.load(name) for name in ("tiny-python", "tiny-python-draft"))
    prompts = held_out_prompts(target.tokenizer, args.num_prompts, 128)
    options = dict(max_new_tokens=args.max_new_tokens, num_speculative_tokens=args.num_speculative_tokens)
    measured = compare(target, ["none", "ngram", "draft_model"], prompts, draft=draft, **options)

    results = ROOT / "docs" / "results" / f"compare_{jax.default_backend()}"
    results.with_suffix(".json").write_text(json.dumps(measured, indent=1) + "\n")
    table = report.markdown(measured)
    results.with_suffix(".md").write_text(f"# Methods on the embedded pair\n\nWritten by `scripts/readme_table.py`.\n\n{table}\n")
    readme = ROOT / "README.md"
    between = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.S)
    readme.write_text(between.sub(lambda m: m[1] + table + "\n" + m[2], readme.read_text()))
    print(table)


if __name__ == "__main__":
    main()
