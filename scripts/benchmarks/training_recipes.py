"""Trains EAGLE-3 heads by several recipes for the same time, and counts the tokens of a round.

    python scripts/benchmarks/training_recipes.py --model M --data training.jsonl --held-out held_out.jsonl --work DIR

The files are those that ``specjax boost`` writes into its folder texts. Without --foreign there is
no row of a foreign text. Time is that of all cores, so other programs on the machine hardly count.
An interrupted run continues in DIR. Writes training_recipes_<platform>.json and .md.
"""

import json
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from page import Result, arguments, measured, section

from specjax import Generator, LanguageModel, load, load_drafter
from specjax.core.stats import total
from specjax.requests.chat import render_chat
from specjax.text.machine import keep_programs
from specjax.tools.boost.candidates import CANDIDATES
from specjax.tools.evaluate.report import markdown_table
from specjax.training.recipe import make_recipe
from specjax.training.run import train

DRAFTED, NEW_TOKENS, TIMED = 5, 96, 3
VARIANTS = {
    "default": {},
    "random layer": {"head": {"from_target": False}},
    "16,384 draft tokens": {"head": {"draft_vocab_size": 16384}},
    "1 step": {"loss": {"steps": 1}},
    "5 steps": {"loss": {"steps": 5}},
    "cross-entropy with the text": {"loss": {"forward_kl": 0.0, "ce": 1.0}},
    "LK, alpha": {"loss": {"forward_kl": 0.0, "lk_alpha": 1.0}},
    "norms of EAGLE-3.1": {"head": {"fc_norm": True, "norm_output": True}},
}
"""The changes of each recipe to that of a boost."""

FOREIGN = "foreign text"
TITLE = "Recipes of an EAGLE-3 head"
QUESTION = "Which recipe learns most in the same time, from few texts?"
TEXT = f"""The default is the recipe of `specjax boost`: a layer that starts as the target's last one, a draft vocabulary of
a tenth of the target's, three steps of training-time test, forward KL, windows of 256 tokens and Muon. Each row changes
one of these. The texts are answers of the target to its own questions; the foreign text is Python's standard library.
A recipe gets as many steps as fit the time of all cores in the table, with the schedule of its rate. The target's
features are computed in this time.

Tokens a round are greedy, with {DRAFTED} drafted tokens and {NEW_TOKENS} new tokens on held-out questions in the chat
template. The interval is a 95 % bootstrap interval of the difference to the default, question by question.
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, help="rows with messages")
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--foreign", help="a file or folder of text by others")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=300, help="time of all cores for a recipe")
    parser.add_argument("--prompts", type=int, default=16)
    args = parser.parse_args()
    keep_programs()
    target = load(args.model, dtype="bfloat16")
    rows = [json.loads(line) for line in args.held_out.read_text().splitlines()[: args.prompts]]
    prompts = [render_chat(target.tokenizer, row["messages"][:1]) for row in rows]
    report = {"conditions": measured([args.model]), "seconds": args.seconds, "recipes": {}}
    sources = {name: args.data for name in VARIANTS} | ({FOREIGN: args.foreign} if args.foreign else {})
    for name, source in sources.items():
        folder = args.work / name.replace(" ", "_")
        done = folder / "result.json"
        if not done.exists():
            done.parent.mkdir(parents=True, exist_ok=True)
            done.write_text(json.dumps(measure(target, name, source, folder, prompts, args.seconds)))
        report["recipes"][name] = json.loads(done.read_text())
        print(name, {key: value for key, value in report["recipes"][name].items() if key != "rounds"}, flush=True)
        result = Result(f"training_recipes_{jax.default_backend()}")
        result.save(report)
        write_page(result)


def make(target: LanguageModel, name: str, steps: int):
    """The recipe of a boost with the changes of a row."""
    table = CANDIDATES["eagle3"].recipe(target.config)
    for key, change in VARIANTS.get(name, {}).items():
        table[key] = table.get(key, {}) | change if isinstance(change, dict) else change
    return make_recipe(table | {"steps": steps, "every": steps}, name)


def measure(target: LanguageModel, name: str, source: str, folder: Path, prompts, seconds: float) -> dict:
    """Trains a head for ``seconds``, and returns its figures."""
    # 1. The time of a step, without that of the compilation.
    times = []
    for steps in (1, 1 + TIMED):
        with tempfile.TemporaryDirectory() as scratch:
            began = time.process_time()
            train(make(target, name, steps), target, [source], scratch, measure=lambda module: None)
            times.append(time.process_time() - began)
    step = (times[1] - times[0]) / TIMED
    # 2. The training.
    recipe = make(target, name, max(int(seconds / step), 1))
    train(recipe, target, [source], folder / "training", measure=lambda module: None)
    # 3. The rounds and tokens of each question.
    draft = load_drafter(str(folder / "training"), target)
    generator = Generator(target, "eagle3", draft, num_speculative_tokens=DRAFTED)
    stats = [generator(prompt, max_new_tokens=NEW_TOKENS).stats for prompt in prompts]
    reached = total(stats).acceptance_rate_per_position[:DRAFTED]
    return {
        "steps": recipe.steps, "tokens": recipe.steps * recipe.batch * recipe.length, "step_seconds": step,
        "reached": [float(rate) for rate in reached], "rounds": [one.mean_acceptance_length for one in stats],
    }  # fmt: skip


def difference(rounds, default) -> str:
    """The mean difference of two recipes with its bootstrap interval."""
    gaps = np.subtract(rounds, default)
    draws = np.random.default_rng(0).choice(gaps, (2000, gaps.size)).mean(1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return f"{gaps.mean():+.2f} ({low:+.2f} to {high:+.2f})"


def write_page(result: Result) -> None:
    report = result.read()
    default = report["recipes"]["default"]["rounds"]
    cells = [
        [name, f"{row['tokens'] / 1e6:.2f} M", f"{np.mean(row['rounds']):.2f}", difference(row["rounds"], default),
         f"{row['reached'][0]:.2f}", f"{row['reached'][2]:.2f}"]
        for name, row in report["recipes"].items()
    ]  # fmt: skip
    head = ["recipe", "tokens of training", "tokens a round", "to the default", "first draft", "third draft"]
    text = f"{TEXT}\nTime of all cores for a recipe: {report['seconds']:.0f} seconds.\n\n{markdown_table(head, cells)}"
    result.write(TITLE, QUESTION, [section(report["conditions"], text)], FOLLOWS)


FOLLOWS = "- `specjax boost` trains by the default."

if __name__ == "__main__":
    main()
