"""Trains drafts of equal size and different depth, and compares latency, acceptance and speed.

    python scripts/draft_depths.py --work DIR [--steps 400]

The question is that of "Decoding Speculative Decoding" (2402.01528, sections 4 and 5). All drafts have
about the same number of weights, and the same windows, steps and loss (forward KL to tiny-python).
Writes docs/results/draft_depths_<platform>.md, .json and .png. An interrupted run continues in DIR.
"""

import argparse
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import specjax
from specjax.checkpoints.load import LanguageModel
from specjax.cli.parser import integer
from specjax.drafters import Plain
from specjax.evaluation import machine
from specjax.evaluation.comparison import alternate_runs, seconds_of
from specjax.evaluation.report import markdown_table
from specjax.models.config import ModelConfig
from specjax.planning.cost import Blank, round_timers
from specjax.planning.design import RATIOS, make_shape
from specjax.planning.timers import alternate, forward_timer
from specjax.stats import total
from specjax.training import data, losses
from specjax.training.recipe import Recipe, make_recipe
from specjax.training.run import train
from specjax.tree import from_paths

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
DEPTHS = 2, 3, 4, 6, 8
DRAFTED = 2, 4
FIXED = 4
CONTEXT, ROUNDS, REPEATS = 128, 8, 25

HEAD = """# Drafts of equal size and different depth

Written by `scripts/draft_depths.py`.

![speed and acceptance by depth](draft_depths_{platform}.png)

Drafts of `tiny-python`, each with about {weights:.1f} M weights. Each was trained by forward KL on {tokens:,} tokens
of Python's standard library. TAR is the mean number of tokens of a round, with {fixed} drafted tokens. Speeds are
those of greedy decoding at batch 1 on {prompts} held-out prompts with {new} new tokens, at the fastest of {drafted}
drafted tokens; all drafts and plain decoding alternated in one process ({plain:.0f} tokens/s plain). The rule is
TAR / (gamma t_draft + t_target), relative to plain decoding. {cpu}, {cores} cores; jax {jax}.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory of the trainings")
    parser.add_argument("--weights", type=integer(10**5), default=1_600_000, help="of each draft (default 1,600,000)")
    parser.add_argument("--steps", type=integer(1), default=400, help="steps of each training (default 400)")
    parser.add_argument("--prompts", type=integer(2), default=16, help="held-out prompts (default 16)")
    parser.add_argument("--max-new-tokens", type=integer(8), default=128, help="after each prompt (default 128)")
    args = parser.parse_args()
    target = specjax.load("tiny-python")
    shapes = {layers: shape_of(target.config, layers, args.weights) for layers in DEPTHS}
    for layers, shape in shapes.items():
        train(recipe_of(shape, args.steps), target, output=args.work / str(layers))
    drafts = {layers: specjax.load(str(args.work / str(layers))) for layers in shapes}
    report = measure(target, drafts, args.prompts, args.max_new_tokens)
    report["settings"] = dict(steps=args.steps, weights=args.weights, prompts=args.prompts, new=args.max_new_tokens)
    path = RESULTS / f"draft_depths_{jax.default_backend()}"
    path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    draw(report["drafts"]).savefig(path.with_suffix(".png"), dpi=110)
    path.with_suffix(".md").write_text(page(report))


def shape_of(target: ModelConfig, layers: int, weights: int) -> ModelConfig:
    """The shape of this depth whose number of weights is nearest to ``weights``."""
    widths = range(target.head_dim // 2, target.hidden_size + 1, target.head_dim // 2)
    shapes = [make_shape(target, layers, width, ratio) for width in widths for ratio in RATIOS]
    return min(shapes, key=lambda shape: abs(shape.num_weights - weights))


def recipe_of(shape: ModelConfig, steps: int) -> Recipe:
    names = "num_layers", "hidden_size", "intermediate_size", "head_dim", "num_heads", "num_kv_heads"
    table = {
        "kind": "draft", "steps": steps, "every": steps, "prompts": 0,
        "head": {name: getattr(shape, name) for name in names},
        "optimizer": {"name": "muon", "rate": 1e-2, "warmup": 20},
    }  # fmt: skip
    return make_recipe(table, f"{shape.num_layers} layers")


def measure(target: LanguageModel, drafts: dict[int, LanguageModel], count: int, new: int) -> dict:
    """The speed of plain decoding, the figures of each draft, and rank correlations with speed."""
    _, held_out = data.read_streams((), target.tokenizer, target.config.eos_token_ids[0])
    prompts = held_out.cut_prompts(count, 64)
    speed, tokens = decode(target, drafts, prompts, new)
    verify, draft_seconds = time_rounds(target), time_tokens(drafts)
    windows = jnp.asarray(held_out.cut(0, 0, 32, 256)[0])
    rows = []
    for layers, draft in drafts.items():
        t, fastest = draft_seconds[layers], max(DRAFTED, key=lambda gamma: speed[layers, gamma])
        rule = tokens[layers, fastest] / (fastest * t + verify[fastest + 1]) * verify[1]
        rows.append(
            dict(
                layers=layers, width=draft.config.hidden_size, intermediate=draft.config.intermediate_size,
                weights=draft.config.num_weights, milliseconds=t * 1e3,
                perplexity=math.exp(losses.next_token(draft.model, windows)), TAR=tokens[layers, FIXED],
                TAR_per_millisecond=tokens[layers, FIXED] / t / 1e3, fastest=fastest, rule=rule,
                tokens_per_second=speed[layers, fastest], speedup=speed[layers, fastest] / speed["none"],
            )
        )  # fmt: skip
    figures = "perplexity", "TAR", "milliseconds", "TAR_per_millisecond", "rule"
    column = lambda name: [row[name] for row in rows]
    ranks = {name: stats.spearmanr(column(name), column("tokens_per_second"))[0] for name in figures}
    return dict(machine=machine(target), plain=speed["none"], drafts=rows, rank_correlation=ranks)


def decode(target: LanguageModel, drafts: dict[int, LanguageModel], prompts: list, new: int) -> tuple[dict, dict]:
    """Tokens a second and tokens a round, by depth and number of drafted tokens; "none" is plain decoding."""
    generators = {
        (layers, gamma): specjax.Generator(target, "draft_model", (draft,), num_speculative_tokens=gamma)
        for layers, draft in drafts.items()
        for gamma in DRAFTED
    } | {"none": specjax.Generator(target, "none")}
    runs = alternate_runs(generators, prompts, new, 1, lambda done, of: None)
    totals = {name: total([results[0].stats for results in found]) for name, found in runs.items()}
    return (
        {name: found.generated / seconds_of(runs[name]).sum() for name, found in totals.items()},
        {name: found.mean_acceptance_length for name, found in totals.items()},
    )


def time_rounds(target: LanguageModel) -> dict[int, float]:
    """Seconds of a round without its draft, by the number of nodes; of plain decoding for one node."""
    chain = lambda gamma: from_paths((0,) * depth for depth in range(1, gamma + 1))
    drafters = {1: Plain()} | {gamma + 1: Blank(chain(gamma)) for gamma in DRAFTED}
    timers = round_timers(target, None, drafters, length=CONTEXT, rounds=ROUNDS)
    return {nodes: float(np.median(times)) / ROUNDS for nodes, times in alternate(timers, REPEATS).items()}


def time_tokens(drafts: dict[int, LanguageModel]) -> dict[int, float]:
    """Seconds of a token of each draft."""
    timers = {n: forward_timer(draft.model, CONTEXT, jnp.dtype(draft.config.dtype)) for n, draft in drafts.items()}
    return {layers: float(np.median(times)) for layers, times in alternate(timers, REPEATS).items()}


def draw(rows: list[dict]):
    """A matplotlib figure: speed, TAR and the time of a token by depth."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    titles = {"milliseconds": "ms a draft token", "TAR": f"TAR, {FIXED} drafted tokens", "speedup": "speed-up"}
    for axes, (name, title) in zip(figure.subplots(1, 3), titles.items()):
        axes.plot([row["layers"] for row in rows], [row[name] for row in rows], "o-")
        axes.set(xlabel="layers of the draft", title=title)
        axes.grid(alpha=0.3)
    return figure


def page(report: dict) -> str:
    """The figures of the drafts, a row each, and the rank correlations."""
    rows = report["drafts"]
    about = report["machine"] | report["settings"] | dict(platform=jax.default_backend(), plain=report["plain"])
    about |= dict(
        weights=report["settings"]["weights"] / 1e6, fixed=FIXED, drafted=", ".join(map(str, DRAFTED)),
        tokens=report["settings"]["steps"] * 8 * 256,
    )  # fmt: skip
    head = [
        "layers",
        "width",
        "MLP",
        "weights",
        "ms a token",
        "perplexity",
        "TAR",
        "drafted",
        "speed-up",
        "by the rule",
    ]
    cells = [
        [
            row["layers"], row["width"], row["intermediate"], f"{row['weights'] / 1e6:.2f} M", f"{row['milliseconds']:.2f}",
            f"{row['perplexity']:.1f}", f"{row['TAR']:.2f}", row["fastest"], f"{row['speedup']:.2f}", f"{row['rule']:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    names = {
        "perplexity": "perplexity", "TAR": "TAR", "milliseconds": "ms a token",
        "TAR_per_millisecond": "TAR / ms a token", "rule": "the rule",
    }  # fmt: skip
    ranks = [[title, f"{report['rank_correlation'][name]:+.2f}"] for name, title in names.items()]
    return "\n".join(
        [HEAD.format(**about), markdown_table(head, cells), "", "Spearman's rank correlation of a figure with the speed, "
         f"over these {len(rows)} drafts:", "", markdown_table(["figure", "rank correlation"], ranks), ""]
    )  # fmt: skip


if __name__ == "__main__":
    main()
