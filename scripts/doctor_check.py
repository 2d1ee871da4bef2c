"""Compares the speed-ups that ``specjax doctor`` predicts with measured ones.

    python scripts/doctor_check.py [--methods ngram,draft_model] [--num-prompts 8]

Every method of the embedded target is examined at temperature 0. Then all methods decode the same
prompts in one alternating run, at batch 1 by ``evaluation.compare`` and at a larger batch in groups.
Writes docs/results/doctor_<platform>.json and .md.
"""

import argparse
import json
import sys
from pathlib import Path

import jax
import numpy as np

import specjax
from specjax.cli.parser import integer
from specjax.drafts import load_drafts
from specjax.evaluation import compare, held_out_prompts, left_out, machine
from specjax.evaluation.comparison import select_drafts
from specjax.evaluation.report import markdown_table, with_interval
from specjax.generate import Generator
from specjax.planning.doctor import examine

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
BOUND = 0.15
"""The relative error that a prediction should not exceed."""

HEAD = """# Predicted and measured speed-up

Written by `scripts/doctor_check.py`.

{model} with {draft} and the embedded heads, {dtype}; {prompts} prompts of held-out code, {max_new_tokens} new tokens
each, greedy; {cpu}, {cores} cores; jax {jax}. The prediction of `specjax doctor` has its 95 % interval. All methods
were measured afterwards, in one alternating run on the same prompts. A batch ends with its slowest row.
{within} of {of} predictions lie within {bound:.0%} of the measured value."""


def main():
    args = parse_arguments()
    target = specjax.load(args.model)
    drafts = load_drafts(target, args.draft)
    given = [name for name in args.methods.split(",") if name] or [name for name in specjax.METHODS if name != "none"]
    methods = [method for method in given if method not in left_out(target, given, drafts)]
    prompts = held_out_prompts(target.tokenizer, args.num_prompts, 128)
    sizes = dict(max_new_tokens=args.max_new_tokens)
    predicted = {}
    for method in methods:
        own = select_drafts(method, drafts) or None
        report = examine(target, prompts, method, own, batches=(1, args.batch), temperatures=(0.0,), **sizes)
        predicted[method] = {cast["batch"]: cast for cast in report["forecasts"]}
        print(method, {batch: round(cast["speedup"], 2) for batch, cast in predicted[method].items()}, file=sys.stderr)
    single = compare(target, methods, prompts, draft=drafts, repeats=args.repeats, **sizes)
    measured = {1: {each["method"]: each["speedup"] for each in single["methods"]}}
    measured[args.batch] = measure_groups(target, methods, drafts, prompts, args)
    rows = [
        {"method": method, "batch": batch, "measured": measured[batch][method]} | predicted[method][batch]
        for batch in (1, args.batch)
        for method in methods
    ]
    report = {"machine": machine(target), "settings": vars(args), "rows": rows}
    path = RESULTS / f"doctor_{jax.default_backend()}"
    path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(report))
    print(f"written to {path}.json and .md", file=sys.stderr)


def measure_groups(target, methods: list[str], drafts: tuple, prompts: list[str], args) -> dict[str, float]:
    """The speed-up of each method where groups of ``batch`` prompts are decoded together."""
    generators = {"none": Generator(target, "none")}
    generators |= {method: Generator(target, method, select_drafts(method, drafts) or None) for method in methods}
    groups = [prompts[first : first + args.batch] for first in range(0, len(prompts), args.batch)]
    room = max(len(target.tokenizer.encode(prompt)) for prompt in prompts) + args.max_new_tokens
    seconds = {name: [[] for _ in groups] for name in generators}
    for generator in generators.values():
        generator.session.capacity = room + max(each.drafter.depth for each in generators.values()) + 1
    for turn in range(args.repeats + 1):
        for i, group in enumerate(groups):
            for place in range(len(generators)):
                name = list(generators)[(turn + i + place) % len(generators)]
                results = generators[name](group, max_new_tokens=args.max_new_tokens, ignore_eos=True)
                if turn:  # The first run is a warm-up.
                    seconds[name][i].append(results[0].stats.decode_seconds)
    total = {name: float(np.median(times, 1).sum()) for name, times in seconds.items()}
    return {name: total["none"] / total[name] for name in methods}


def error(row: dict) -> float:
    """The relative error of a prediction."""
    return row["speedup"] / row["measured"] - 1


def page(report: dict) -> str:
    rows, settings = report["rows"], report["settings"]
    within = sum(abs(error(row)) <= BOUND for row in rows)
    about = report["machine"] | settings | {"prompts": settings["num_prompts"], "bound": BOUND, "of": len(rows)}
    head = ["method", "batch", "predicted", "measured", "error", "tokens a round", "ms a round", "plain, ms"]
    cells = [
        [row["method"], row["batch"], with_interval(row["speedup"], row["speedup_interval"], ".2f")]
        + [f"{row['measured']:.2f}", f"{error(row):+.0%}", f"{row['tokens_per_round']:.2f}"]
        + [f"{row['round_ms']:.2f}", f"{row['plain_ms']:.2f}"]
        for row in rows
    ]
    return "\n".join([HEAD.format(within=within, **about), "", markdown_table(head, cells)]) + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-python")
    parser.add_argument("--draft", default="tiny-python-draft")
    parser.add_argument("--methods", default="", help="names separated by commas (default all that the models allow)")
    parser.add_argument("--num-prompts", type=integer(8), default=8)
    parser.add_argument("--max-new-tokens", type=integer(8), default=128)
    parser.add_argument("--batch", type=integer(2), default=8, help="the larger batch (default 8)")
    parser.add_argument("--repeats", type=integer(1), default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
