"""Trains the embedded heads by their recipes, and writes them with their cards into specjax/checkpoints/zoo.

    python scripts/zoo/train_zoo_heads.py --work DIR [KIND ...]

It takes about an hour and a half on two quiet CPU cores, and minutes on a GPU. It also draws the
curves of all runs into docs/results/training_zoo.png. An interrupted run continues from its last
checkpoint in DIR. The head and the card of a finished run are written again.
"""

import argparse
import json
import platform
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from training_curves import draw

import specjax
from specjax.checkpoints.heads import save_head
from specjax.core.stats import total
from specjax.drafters import default_method
from specjax.tools.evaluate import held_out_prompts
from specjax.training.loop import LOG
from specjax.training.recipe import read_recipe
from specjax.training.run import train

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("medusa", "eagle3", "mtp", "block")
TREES = {"eagle3": dict(tree_nodes=23, tree_depth=8, tree_top_k=4, tree_temperature=0.3)}
"""The drafting options of a card's figures, where they differ from the method's defaults.

On a CPU more nodes cost more time.
"""

CARD = """# tiny-python-{kind}

{what} for `tiny-python`. `--method {method}` uses it where no draft is given.

| | |
|---|---|
| parameters | {parameters:.2f} M, {dtype}; {shape} |
| data | source of the standard library of Python {python}, tests and generated tables left out, the modules held out of the target's training held out here too |
| training | {steps} steps of {tokens} tokens, {optimizer} at {rate}, loss {loss} |
| loss | {first:.2f} in the first {part} steps, {last:.2f} in the last |
| acceptance length | {lengths} tokens a call after {counts} steps |
| drafts accepted, by position | {positions} |
| rebuild | `python scripts/zoo/train_zoo_heads.py --work DIR {kind}` |
| licence | the weights: Apache-2.0; the text they were trained on: PSF licence |

Acceptance by position is the share of target calls that kept at least this many drafted tokens. It
was measured greedily on {prompts} prompts of held-out code of 128 tokens, with {new} new tokens each,
{drafting}. The acceptance lengths during training are those of 64 new tokens after other prompts.
"""
WHAT = {
    "medusa": "Medusa heads",
    "eagle3": "An EAGLE-3 head",
    "mtp": "A module of multi-token prediction",
    "block": "A block head (DFlash)",
}
PROMPTS, NEW, PART = 16, 128, 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory of runs, one for each kind")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; by default all")
    args = parser.parse_args()
    if unknown := set(args.kinds) - set(KINDS):
        parser.error(f"unknown kind {', '.join(sorted(unknown))}; use {', '.join(KINDS)}")
    target = specjax.load("tiny-python")
    for kind in args.kinds or KINDS:
        recipe, run = read_recipe(ROOT / "configs" / f"tiny-python-{kind}.toml"), args.work / kind
        head = train(recipe, target, (), run)
        where = ROOT / "specjax" / "checkpoints" / "zoo" / f"tiny-python-{kind}"
        save_head(head, where)
        (where / "README.md").write_text(card(recipe, head, target, records(run)))
    runs = {kind: args.work / kind for kind in KINDS if (args.work / kind / LOG).exists()}
    figure = draw({kind: records(run) for kind, run in runs.items()})
    figure.savefig(ROOT / "docs" / "results" / "training_zoo.png", dpi=80)


def records(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / LOG).read_text().splitlines()]


def card(recipe, head, target, log: list[dict]) -> str:
    """The text of a head's README."""
    kind, leaves = recipe.kind, jax.tree.leaves(nnx.state(head.module, nnx.Param))
    method = default_method((head,))
    stats = accepted(target, method, head, TREES.get(kind, {}))
    measured = [record for record in log if "acceptance" in record]
    losses = [record["loss"] for record in log]
    named = lambda table: ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in vars(table).items())
    options = ", ".join(f"`{key} = {value}`" for key, value in TREES.get(kind, {}).items())
    shares = ", ".join(f"{share:.2f}" for share in stats.acceptance_rate_per_position)
    return CARD.format(
        kind=kind,
        what=WHAT[kind],
        method=method,
        parameters=sum(x.size for x in leaves) / 1e6,
        dtype=leaves[0].dtype,
        shape=named(recipe.head),
        python=platform.python_version(),
        steps=recipe.steps,
        tokens=recipe.batch * recipe.length,
        optimizer=recipe.optimizer.name,
        rate=recipe.optimizer.rate,
        loss=named(recipe.loss),
        first=np.mean(losses[:PART]),
        last=np.mean(losses[-PART:]),
        part=PART,
        lengths=", ".join(f"{record['acceptance']:.2f}" for record in measured),
        counts=", ".join(str(record["step"]) for record in measured),
        positions=f"{shares}; {stats.mean_acceptance_length:.2f} tokens a call",
        prompts=PROMPTS,
        new=NEW,
        drafting=f"with {options}" if options else "with the method's own options",
    )


def accepted(target, method: str, head, options: dict):
    """The statistics of decoding with a head, over all prompts."""
    generator = specjax.Generator(target, method, head, **options)
    results = generator(held_out_prompts(target.tokenizer, PROMPTS, 128), max_new_tokens=NEW, ignore_eos=True)
    return total([result.stats for result in results])


if __name__ == "__main__":
    main()
