"""Compares the speed-ups that ``specjax doctor`` predicts with measured ones.

    python scripts/benchmarks/doctor_check.py [--methods ngram,draft_model] [--num-prompts 8]

Every method of the embedded target is examined at temperature 0. Then all methods decode the same
prompts in one alternating run, at batch 1 by ``tools.evaluate.compare`` and at a larger batch in groups.
Writes doctor_<platform>.json and .md.
"""

import argparse
import sys

import jax
import numpy as np
from page import Result, arguments, section

import specjax
from specjax.cli.parser import integer
from specjax.text.drafts import load_drafts
from specjax.text.generator import Generator
from specjax.tools.doctor import examine
from specjax.tools.evaluate import compare, held_out_prompts, left_out, machine
from specjax.tools.evaluate.comparison import select_drafts
from specjax.tools.evaluate.report import markdown_table, with_interval

BOUND = 0.15
"""The relative error that a prediction should not exceed."""

TITLE = "Predicted and measured speed-up"
QUESTION = "How far may one trust the speed-up that `specjax doctor` predicts before a method is chosen?"
TEXT = """The embedded pair and heads; {num_prompts} prompts of held-out code, {max_new_tokens} new tokens each, greedy. The
prediction has its 95 % interval. All methods were measured afterwards, in one alternating run on the same prompts. A
batch ends with its slowest row. {within} of {of} predictions lie within {bound:.0%} of the measured value.
"""
FOLLOWS = """
- A prediction within a few percent of 1 is no reason to change the method; one far above or below it is.
- Predict for the batch that will run: a method that wins at batch 1 may lose at batch 8.
"""


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
    conditions = measured((args.model, *(draft.name for draft in drafts)), machine(target)["dtype"])
    report = {"conditions": conditions, "settings": vars(args), "rows": rows}
    result = Result(f"doctor_{jax.default_backend()}")
    result.save(report)
    write_page(result)


def write_page(result: Result) -> None:
    report = result.read()
    result.write(TITLE, QUESTION, [section(report["conditions"], text(report))], FOLLOWS)


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


def text(report: dict) -> str:
    rows, settings = report["rows"], report["settings"]
    within = sum(abs(error(row)) <= BOUND for row in rows)
    head = ["method", "batch", "predicted", "measured", "error", "tokens a round", "ms a round", "plain, ms"]
    cells = [
        [row["method"], row["batch"], with_interval(row["speedup"], row["speedup_interval"], ".2f")]
        + [f"{row['measured']:.2f}", f"{error(row):+.0%}", f"{row['tokens_per_round']:.2f}"]
        + [f"{row['round_ms']:.2f}", f"{row['plain_ms']:.2f}"]
        for row in rows
    ]
    return TEXT.format(within=within, bound=BOUND, of=len(rows), **settings) + "\n" + markdown_table(head, cells)


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
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
