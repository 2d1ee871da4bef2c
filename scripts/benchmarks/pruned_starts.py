"""Compares starts of a draft model: random, the target's first layers, and the pruned target.

    python scripts/benchmarks/pruned_starts.py --work DIR [--steps 400]

The three drafts have one shape, and the same windows, steps and loss (forward KL to tiny-python). The
acceptance length is measured on held-out prompts by greedy decoding. Writes the page
pruned_starts_<platform>.md and a picture. An interrupted run continues in DIR.
"""

import json
import sys
from pathlib import Path

import jax
from page import ROOT, Result, arguments, measured, section

import specjax
from specjax.checkpoints.load import LanguageModel, save
from specjax.cli.parser import integer
from specjax.models.decoder import Decoder
from specjax.tools.evaluate.report import markdown_table
from specjax.tools.prune import Sizes, measure_importance, prune
from specjax.tools.prune.cut import prune_config
from specjax.training import data
from specjax.training.recipe import make_recipe
from specjax.training.run import train

SIZES = dict(width=192, intermediate=512, heads=3)
LAYERS = 2

TITLE = "Starts of a draft model"
QUESTION = "From which start does a small draft learn fastest?"
TEXT = """![loss and acceptance length]({picture})

Drafts of `tiny-python` with {layers} layers of width {width} ({weights:.2f} M weights), trained by forward KL on
{tokens} tokens a step of Python's standard library. The numbers are mean acceptance lengths on 16 held-out prompts,
measured by greedy decoding with five drafted tokens.
"""
FOLLOWS = """
- Start a draft from the pruned target (`specjax prune`): at equal training it is ahead of its first layers and of
  random weights.
"""


def main():
    parser = arguments(__doc__)
    parser.add_argument("--work", type=Path, required=True, help="directory of the trainings")
    parser.add_argument("--steps", type=integer(1), default=400, help="steps of each training (default 400)")
    parser.add_argument("--every", type=integer(1), default=100, help="steps between measurements (default 100)")
    args = parser.parse_args()
    target = specjax.load("tiny-python")
    recipes = {
        name: make_recipe(
            dict(kind="draft", steps=args.steps, every=args.every, head=dict(start=str(start))), f"start {name}"
        )
        for name, start in write_starts(target, args.work).items()
    }
    for name, recipe in recipes.items():
        train(recipe, target, output=args.work / name)
    logs = {name: read_log(args.work / name) for name in recipes}
    sys.path.insert(0, str(ROOT / "scripts" / "zoo"))
    from training_curves import draw

    result = Result(f"pruned_starts_{jax.default_backend()}")
    draw(logs).savefig(result.picture(), dpi=110)
    conditions = measured(("tiny-python",), "drafts trained for this page")
    text = describe(target, logs, recipes["pruned"], result.picture().name)
    result.write(TITLE, QUESTION, [section(conditions, text)], FOLLOWS)


def write_starts(target: LanguageModel, work: Path) -> dict[str, Path]:
    """The directories of the three models before training."""
    mixture, _ = data.read_streams((), target.tokenizer, target.config.eos_token_ids[0])
    importance = measure_importance(target.model, mixture.cut(0, 0, 32, 256)[0])
    modules = {
        "random": Decoder(prune_config(target.config, Sizes(LAYERS, **SIZES)), jax.random.key(0)),
        "first layers": prune(target.model, importance, Sizes(tuple(range(LAYERS)), **SIZES)),
        "pruned": prune(target.model, importance, Sizes(LAYERS, **SIZES)),
    }
    starts = {name: work / "starts" / name for name in modules}
    for name, module in modules.items():
        save(LanguageModel(module, module.config, target.tokenizer, name), starts[name])
    return starts


def read_log(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def describe(target: LanguageModel, logs: dict[str, list[dict]], recipe, picture: str) -> str:
    """Acceptance lengths by training tokens, a row for each start."""
    config, a_step = prune_config(target.config, Sizes(LAYERS, **SIZES)), recipe.batch * recipe.length
    measured = {name: [record for record in log if "acceptance" in record] for name, log in logs.items()}
    columns = [f"{record['step'] * a_step:,} tokens" for record in measured["pruned"]]
    rows = [[name] + [f"{record['acceptance']:.2f}" for record in found] for name, found in measured.items()]
    head = TEXT.format(
        picture=picture, layers=LAYERS, width=SIZES["width"], tokens=a_step, weights=config.num_weights / 1e6
    )
    return f"{head}\n{markdown_table(['start', *columns], rows)}"


if __name__ == "__main__":
    main()
