"""Measures methods on a target with the size of a real model.

    specjax grow --like CONFIG --output runs/8b
    specjax grow --like CONFIG --draft tiny-python-eagle3 --output runs/8b-eagle3
    python scripts/benchmarks/large_target.py --model runs/8b --draft tiny-python-draft runs/8b-eagle3 --label 8b

The target is the embedded one, grown to the shape of CONFIG, a config.json. It has the costs of that shape, and
the texts and the acceptance of the embedded target, up to rounding. The prompts are held-out code, greedy. For
each batch size the methods alternate, in an order that rotates. Writes large_<label>_<platform>.json and the page
large.md after each batch size.
"""

import argparse
import sys
from pathlib import Path

import jax
import numpy as np
from page import Result, arguments, measured, section, with_folder

import specjax
from specjax.cli.parser import integer
from specjax.drafters import METHODS
from specjax.text.drafts import load_drafts
from specjax.text.generator import Generator
from specjax.tools.evaluate import held_out_prompts, machine
from specjax.tools.evaluate.comparison import make_generators
from specjax.tools.evaluate.report import markdown_table

TITLE = "Methods on a large target"
QUESTION = "How fast are the methods on a GPU, with a target of a usual size?"
TEXT = """The target is the embedded one grown to {parameters:.2f} G parameters. It has the costs of that size, and the texts
and the acceptance of the embedded target, up to rounding. {prompts} prompts of held-out code with {prompt_tokens} tokens,
{max_new_tokens} new tokens each, greedy. The speed-up is the seconds of plain decoding divided by those of the method in the
same turn: the median of {repeats} turns, with the least and the greatest. A batch ends with its slowest row. Equal texts are
those that plain decoding at the same batch size writes too. In bfloat16 the others part at near ties.
"""
FOLLOWS = """
- On a GPU drafts pay for one row and for a few: a round of several nodes takes hardly longer than one of one.
- The gain follows from the acceptance. With your own pair, ask `specjax doctor` for it first.
"""


def main():
    args = parse_arguments()
    try:
        target = specjax.load(args.model)
        prompts = prompts_of(target, args)
        generators = make_generators(target, ["none", *args.methods], load_drafts(target, args.draft), {})
    except specjax.SpecjaxError as error:
        print(f"large_target: error: {error}", file=sys.stderr)
        sys.exit(2)
    for generator in generators.values():
        deepest = max(generator.drafter.depth for generator in generators.values())
        generator.session.capacity = args.prompt_tokens + args.max_new_tokens + deepest + 1
    conditions = measured(
        [args.model, *args.draft], f"{machine(target)['dtype']}; the target is grown from tiny-python"
    )
    report = {"conditions": conditions, "settings": settings(target, args), "prompts": len(prompts), "batches": {}}
    result = Result("large", f"{args.label}_{jax.default_backend()}", args.results)
    for batch in args.batches:
        report["batches"][batch] = measure(generators, prompts, batch, args)
        result.save(report)
        write_page(result)


def write_page(result: Result) -> None:
    reports = result.read_all()
    title = "{parameters:.1f} G parameters, with {drafts}"
    sections = [section(report["conditions"], text(report), title.format(**report["settings"])) for report in reports]
    result.write(TITLE, QUESTION, sections, FOLLOWS)


def prompts_of(target, args: argparse.Namespace) -> list[list[int]]:
    """The last tokens of held-out prompts, all of one length, so that a batch size has one program to read them.

    Raises RequestError where too few prompts have this length.
    """
    texts = held_out_prompts(target.tokenizer, 2 * args.num_prompts, 2 * args.prompt_tokens)
    ids = [target.tokenizer.encode(text)[-args.prompt_tokens :] for text in texts]
    found = [each for each in ids if len(each) == args.prompt_tokens]
    if len(found) < args.num_prompts:
        raise specjax.RequestError(
            f"{len(found)} held-out prompts have {args.prompt_tokens} tokens, not {args.num_prompts}; "
            "use a smaller --prompt-tokens or --num-prompts"
        )
    return found[: args.num_prompts]


def settings(target, args: argparse.Namespace) -> dict:
    """The settings of the page, without paths of this machine."""
    kept = ("label", "prompt_tokens", "max_new_tokens", "repeats")
    names = {"model": Path(args.model).name, "drafts": ", ".join(Path(draft).name for draft in args.draft)}
    parameters = sum(leaf.size for leaf in jax.tree.leaves(target.model)) / 1e9
    return {name: getattr(args, name) for name in kept} | names | {"parameters": parameters}


def measure(generators: dict[str, Generator], prompts: list, batch: int, args: argparse.Namespace) -> dict:
    """The figures of each method at a batch size."""
    groups = [prompts[first : first + batch] for first in range(0, len(prompts) - batch + 1, batch)]
    names, runs = list(generators), {name: [] for name in generators}
    for turn in range(args.repeats + 1):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            asked = groups if turn else groups[:1]  # the first turn compiles
            options = dict(max_new_tokens=args.max_new_tokens, ignore_eos=True)
            results = [generators[name](group, **options) for group in asked]
            if turn:
                runs[name].append(results)
            else:
                print(f"batch {batch}: {name} compiled", file=sys.stderr, flush=True)
    seconds = {name: np.array([total(results) for results in turns]) for name, turns in runs.items()}
    found = {}
    for name, turns in runs.items():
        rows = [row for group in turns[-1] for row in group]
        plain = [row for group in runs["none"][-1] for row in group]
        rounds = sum(max(row.stats.target_calls for row in group) for group in turns[-1])
        found[name] = {
            "speedups": (seconds["none"] / seconds[name]).tolist(),
            "tokens_per_second": len(rows) * args.max_new_tokens / float(np.median(seconds[name])),
            "tokens_per_call": sum(row.stats.generated for row in rows) / sum(row.stats.target_calls for row in rows),
            "round_ms": float(np.median(seconds[name])) / rounds * 1e3,
            "equal": sum(row.token_ids == other.token_ids for row, other in zip(rows, plain)) / len(rows),
        }
        print(f"batch {batch}: {name} {found[name]}", file=sys.stderr, flush=True)
    return found


def total(results: list) -> float:
    """The seconds in which groups of rows were decoded one after another."""
    return sum(group[0].stats.decode_seconds for group in results)


def text(report: dict) -> str:
    lines = [TEXT.format(**report["settings"], prompts=report["prompts"])]
    head = ["method", "speed-up", "tokens a second", "tokens a target call", "ms a round", "equal texts"]
    for batch, methods in report["batches"].items():
        rows = []
        for name, found in sorted(methods.items(), key=lambda item: -float(np.median(item[1]["speedups"]))):
            low, middle, high = np.percentile(found["speedups"], [0, 50, 100])
            rows.append(
                [f"`{name}`", f"{middle:.2f} ({low:.2f} to {high:.2f})", f"{found['tokens_per_second']:,.0f}"]
                + [f"{found['tokens_per_call']:.2f}", f"{found['round_ms']:.2f}", f"{found['equal']:.0%}"]
            )
        lines += [f"Batch {batch}:", markdown_table(head, rows)]
    return "\n\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = with_folder(arguments(__doc__))
    add = parser.add_argument
    add("--model", required=True, help="the directory of the grown target")
    add("--draft", nargs="+", default=["tiny-python-draft"], help="draft models and grown heads")
    add("--label", required=True, help="a name for the files")
    add("--methods", nargs="+", choices=[name for name in METHODS if name != "none"], metavar="METHOD",
        default=["draft_model", "auto", "eagle3", "dynamic_tree", "ngram"])  # fmt: skip
    add("--batches", nargs="+", type=integer(1), default=[1, 8])
    add("--num-prompts", type=integer(1), default=16)
    add("--prompt-tokens", type=integer(16), default=64)
    add("--max-new-tokens", type=integer(1), default=128)
    add("--repeats", type=integer(1), default=3)
    args = parser.parse_args()
    if max(args.batches) > args.num_prompts:
        parser.error(f"--batches: {max(args.batches)} rows need as many prompts; --num-prompts is {args.num_prompts}")
    return args


if __name__ == "__main__":
    main()
