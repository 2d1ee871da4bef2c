"""Compares draft models of one target: all of them and plain decoding alternate in one run.

    git archive 723d7d7 specjax/zoo/tiny-python-draft | tar -x -C DIR
    python scripts/draft_gain.py --before DIR/specjax/zoo/tiny-python-draft

``--before`` is the draft to which the embedded draft is compared. The commit above has the embedded
draft that did not yet learn from texts of the target. Takes minutes on two cores. Writes
docs/results/draft_gain_<platform>.md and .json.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np

import specjax
from specjax import Generator, LanguageModel
from specjax.cli.parser import integer
from specjax.errors import CheckpointError
from specjax.evaluation import held_out_prompts, machine
from specjax.evaluation.comparison import alternate_runs, encode_prompts, interval, rate, seconds_of
from specjax.evaluation.report import markdown_table, with_interval
from specjax.stats import total

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
LENGTHS = 3, 5, 8
"""Numbers of drafted tokens. 5 is the default of method draft_model."""
TEMPERATURES = 0.0, 1.0
PROMPT = 128

HEAD = """# The embedded draft before and after it read the target's own texts

Written by `python scripts/draft_gain.py`. {cpu}, {cores} cores; Python {python}, jax {jax}; {dtype}.

Both drafts have the same shape. "before" was trained on Python's source and distilled from the target on it. "now"
then learnt the texts that the target writes greedily, and went on with distillation (`scripts/train_zoo.py`). Method
`draft_model` decodes {prompts} prompts of held-out code, with {new} new tokens each, at batch 1. Plain decoding and
both drafts with each number of drafted tokens alternate in one process. A speed-up is the median of {repeats} runs of
each prompt over that of plain decoding, with its 95 % bootstrap interval over prompts.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="the other draft: an embedded name, a directory or a hub id")
    parser.add_argument("--num-prompts", type=integer(2), default=16)
    parser.add_argument("--max-new-tokens", type=integer(8), default=128)
    parser.add_argument("--repeats", type=integer(1), default=3)
    args = parser.parse_args()
    target = specjax.load("tiny-python")
    try:
        drafts = {"before": specjax.load(args.before), "now": specjax.load("tiny-python-draft")}
    except CheckpointError as error:
        parser.error(f"--before: {error}")
    prompts = encode_prompts(target, held_out_prompts(target.tokenizer, args.num_prompts, PROMPT))
    measure = lambda temperature: compare(target, drafts, prompts, args.max_new_tokens, args.repeats, temperature)
    found = {str(temperature): measure(temperature) for temperature in TEMPERATURES}
    report = dict(machine=machine(target), settings=vars(args) | {"before": drafts["before"].name}, found=found)
    path = RESULTS / f"draft_gain_{jax.default_backend()}"
    path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(report))


def compare(
    target: LanguageModel, drafts: dict[str, LanguageModel], prompts: list, new: int, repeats: int, temperature: float
) -> dict:
    """The figures of each draft with each number of drafted tokens, and of both drafts with their best numbers."""
    generators = {
        (gamma, name): Generator(target, "draft_model", draft, num_speculative_tokens=gamma)
        for gamma in LENGTHS
        for name, draft in drafts.items()
    }
    every = {"none": Generator(target, "none")} | generators
    runs = alternate_runs(every, prompts, new, repeats, lambda done, of: None, temperature=temperature, seed=0)
    seconds = {name: seconds_of(found) for name, found in runs.items()}
    rows = [
        dict(
            drafted=gamma, draft=name, tokens_per_call=stats.mean_acceptance_length, accepted=stats.draft_acceptance_rate,
            speedup=ratio(seconds["none"], seconds[gamma, name]),
            over_before=ratio(seconds[gamma, "before"], seconds[gamma, name]),
        )
        for gamma, name in generators
        for stats in [total([results[0].stats for results in runs[gamma, name]])]
    ]  # fmt: skip
    best = {name: min(LENGTHS, key=lambda gamma: seconds[gamma, name].sum()) for name in drafts}
    gain = ratio(*(seconds[best[name], name] for name in ("before", "now")))
    return dict(rows=rows, best=best, gain=gain)


def ratio(other: np.ndarray, own: np.ndarray) -> dict:
    """How many times as fast as another run a run is, with the interval over prompts."""
    return dict(ratio=float(rate(other, own)), interval=interval(rate, other, own))


def page(report: dict) -> str:
    """A table for each temperature, and the gain of the best drafts."""
    parts = [HEAD.format(**report["machine"], prompts=report["settings"]["num_prompts"],
                         new=report["settings"]["max_new_tokens"], repeats=report["settings"]["repeats"])]  # fmt: skip
    show = lambda found: with_interval(found["ratio"], found["interval"], ".2f")
    head = ["drafted", "draft", "tokens/call", "accepted", "speed-up", "over the draft before"]
    for temperature, found in report["found"].items():
        rows = [
            [row["drafted"], row["draft"], f"{row['tokens_per_call']:.2f}", f"{100 * row['accepted']:.0f} %",
             show(row["speedup"]), show(row["over_before"])]
            for row in found["rows"]
        ]  # fmt: skip
        best = found["best"]
        parts.append(
            f"## Temperature {float(temperature):g}\n\n{markdown_table(head, rows)}\n\n"
            f"The draft of now with {best['now']} drafted tokens, its fastest number, is {show(found['gain'])} times as "
            f"fast as the draft before with {best['before']}, its fastest.\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    main()
