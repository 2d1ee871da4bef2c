"""Compares three boosted drafts in a merged tree with three drafts trained alike, and with one large draft.

    python scripts/benchmarks/boosted_drafts.py --work DIR [--steps 300]

All drafts of tiny-python see the same number of tokens, with the same loss (forward KL) and optimizer. The drafts
trained alike differ in their seeds. The large draft has about as many weights as three small ones. Writes
docs/results/boosted_drafts_<platform>.md. An interrupted run continues in DIR.
"""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from page import Result, arguments, measured, section

import specjax
from specjax import Generator, LanguageModel
from specjax.cli.parser import integer
from specjax.core.stats import total
from specjax.heads.training_forward import read_target
from specjax.tools.evaluate.comparison import alternate_runs, interval, rate, seconds_of
from specjax.tools.evaluate.datasets import held_out_prompts
from specjax.tools.evaluate.report import markdown_table
from specjax.training import data, losses
from specjax.training.boost_tuning import boost
from specjax.training.recipe import Recipe, make_recipe
from specjax.training.run import train

DRAFTS, DRAFTED = 3, 4
SMALL = dict(num_layers=1, hidden_size=96, head_dim=32)
LARGE = dict(num_layers=1, hidden_size=224, head_dim=32)
BATCH, LENGTH = 8, 128
TRAINING = dict(batch=BATCH, length=LENGTH, prompts=0, optimizer=dict(warmup=20))
PROMPTS, NEW, REPEATS = 12, 64, 3
WINDOWS = 64

TITLE = "Boosted drafts"
QUESTION = "Do several small drafts that were trained against one another's mistakes draft better than one large draft?"
TEXT = """Trainings and measurements took {minutes:.0f} minutes.

Drafts of `tiny-python` with one layer. Each was trained on {tokens:,} tokens of Python's standard library by forward
KL. These trainings are short: the drafts are far from converged. A small draft has width {small} and {weights:.2f} M
weights; the large one has width {large} and {large_weights:.2f} M. Boosted drafts are those of `--recipe boost`. Drafts
trained alike differ in their seeds. The first boosted draft is also the first of those.

Decoding is greedy, with {drafted} drafted tokens in each chain, on {prompts} held-out prompts with {new} new tokens.
"covered" is the share of the next tokens in {windows} held-out windows that are the likeliest of at least one of the
drafts, and the target's likeliest. The intervals are 95 % bootstrap intervals over prompts.
"""
FOLLOWS = """
- Boosting covers more of the target's tokens than equal trainings or one large draft with as many weights.
- The merged tree of three drafts costs more than it gains here; use one draft unless drafts are far cheaper than the
  target.
"""


def main():
    parser = arguments(__doc__)
    parser.add_argument("--work", type=Path, required=True, help="directory of the trainings")
    parser.add_argument("--steps", type=integer(1), default=300, help="steps of each training (default 300)")
    args = parser.parse_args()
    began = time.perf_counter()
    target = specjax.load("tiny-python")
    sets = train_all(target, args.work, args.steps)
    figures = measure(target, sets)
    minutes = (time.perf_counter() - began) / 60
    result = Result(f"boosted_drafts_{jax.default_backend()}")
    conditions = measured(("tiny-python",), "drafts trained for this page")
    text = describe(sets, figures, args.steps * BATCH * LENGTH, minutes)
    result.write(TITLE, QUESTION, [section(conditions, text)], FOLLOWS)


def train_all(target: LanguageModel, work: Path, steps: int) -> dict[str, list[LanguageModel]]:
    """The drafts of each row of the table."""
    boosted = boost(recipe("boost", SMALL | {"drafts": DRAFTS}, steps), target, output=work / "boost")
    single = lambda name, shape, seed: train(recipe("draft", shape, steps, seed=seed), target, output=work / name)
    alike = [boosted[0], *(single(f"alike-{seed}", SMALL, seed) for seed in range(1, DRAFTS))]
    large = single("large", LARGE, 0)
    return {"one small draft": boosted[:1], "one large draft": [large], "three alike": alike, "three boosted": boosted}


def recipe(kind: str, shape: dict, steps: int, **changes) -> Recipe:
    return make_recipe(TRAINING | dict(kind=kind, head=shape, steps=steps) | dict(every=steps) | changes, kind)


def measure(target: LanguageModel, sets: dict[str, list[LanguageModel]]) -> dict[str, dict]:
    """Tokens a call, speed-up with its interval, and the share of tokens covered, for each set of drafts."""
    prompts = [target.tokenizer.encode(text) for text in held_out_prompts(target.tokenizer, PROMPTS, 96)]
    generators = {"plain": Generator(target, "none")}
    for name, drafts in sets.items():
        method = "merged" if len(drafts) > 1 else "draft_model"
        generators[name] = Generator(target, method, drafts, num_speculative_tokens=DRAFTED)
    runs = alternate_runs(generators, prompts, NEW, REPEATS, lambda done, of: None)
    plain, figures = seconds_of(runs["plain"]), {}
    for name, drafts in sets.items():
        seconds = seconds_of(runs[name])
        figures[name] = dict(
            length=total([results[0].stats for results in runs[name]]).mean_acceptance_length,
            speedup=rate(plain, seconds), interval=interval(rate, plain, seconds), covered=covered(target, drafts),
        )  # fmt: skip
    return figures


def covered(target: LanguageModel, drafts: list[LanguageModel]) -> float:
    """The share of the target's likeliest tokens in held-out windows that some draft finds likeliest."""
    _, held_out = data.read_streams((), target.tokenizer, target.config.eos_token_ids[0])
    windows, _ = held_out.cut(0, 0, WINDOWS, LENGTH)

    @jax.jit
    def missed(model, drafts, tokens):
        return losses.missed(model, read_target(model, tokens).hidden, drafts, tokens).mean()

    models = tuple(draft.model for draft in drafts)
    return 1 - float(np.mean([missed(target.model, models, jnp.asarray(part)) for part in np.split(windows, 8)]))


def describe(sets: dict, figures: dict[str, dict], tokens: int, minutes: float) -> str:
    rows = []
    for name, drafts in sets.items():
        row, weights = figures[name], sum(draft.config.num_weights for draft in drafts) / 1e6
        low, high = row["interval"]
        speed = f"{row['speedup']:.2f} ({low:.2f} to {high:.2f})"
        rows.append([name, f"{weights:.2f} M", f"{100 * row['covered']:.1f} %", f"{row['length']:.2f}", speed])
    small, large = (sets[f"one {size} draft"][0].config for size in ("small", "large"))
    head = TEXT.format(
        minutes=minutes, tokens=tokens, small=small.hidden_size, weights=small.num_weights / 1e6,
        large=large.hidden_size, large_weights=large.num_weights / 1e6, drafted=DRAFTED, prompts=PROMPTS, new=NEW,
        windows=WINDOWS,
    )  # fmt: skip
    return f"{head}\n{markdown_table(['drafts', 'weights', 'covered', 'tokens a call', 'speed-up'], rows)}\n"


if __name__ == "__main__":
    main()
