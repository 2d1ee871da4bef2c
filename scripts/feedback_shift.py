"""Measures how a draft adapts to another kind of text by the log of its own rounds.

    python scripts/feedback_shift.py --work DIR

The embedded draft was trained on Python's standard library. Here it drafts C, the headers of the
running Python. Some headers are held out by the checksums of their names. The mean acceptance length
is measured on beginnings of held-out headers and of held-out modules of the library, greedily.

The reference is ordinary training on the headers' text: forward KL to the target. Feedback sees
beginnings of headers and the target's answers alone. In stages it generates with a log of rounds,
and then continues the draft by `specjax train --recipe feedback`, with each of three objectives.

Writes docs/results/feedback_<platform>.md and a picture. An interrupted run continues in DIR.
"""

import argparse
import json
import shutil
import sysconfig
import zlib
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import specjax
from specjax.checkpoints.load import LanguageModel
from specjax.cli.parser import integer
from specjax.evaluation import machine
from specjax.evaluation.report import markdown_table
from specjax.stats import total
from specjax.training import data
from specjax.training.feedback.run import train_from_log
from specjax.training.on_policy import MeasuredAcceptance
from specjax.training.recipe import make_recipe
from specjax.training.run import cast, train
from specjax.training.sources import Document

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
HEADERS = Path(sysconfig.get_path("include"))
START = "tiny-python-draft"
PROMPTS, PROMPT, MEASURED = 48, 64, 64
"""Held-out prompts of each kind of text, their tokens, and the tokens decoded after each."""
ROWS, BEGINNING, ANSWER = 64, 32, 128
"""Rows of a batch that is logged, tokens of the beginning and of the answer of each."""
REFERENCE = dict(steps=160, every=80, batch=8, length=256, optimizer=dict(rate=2e-3, warmup=20))
RECIPES = {
    "distill": dict(rate=1e-3, replay=0.2, epochs=2),
    "pseudo": dict(rate=4e-4, replay=0.4, epochs=2),
    "policy": dict(rate=4e-4, replay=0.3, epochs=2),
}
"""The rate of AdamW, the share of replayed windows, and how often each objective reads a log."""
BATCH = 10

PAGE = """# A draft learns from verification

Written by `python scripts/feedback_shift.py --work DIR`, which the script's text describes.

![acceptance length by tokens seen, on C headers and on Python](feedback_{platform}.png)

The embedded draft `tiny-python-draft` meets C headers: {learnt:,} tokens of the headers of Python {python} to learn,
and held-out headers. The numbers are mean acceptance lengths on {prompts} held-out prompts of {prompt} tokens each,
measured by greedy decoding of {measured} tokens with five drafted tokens. The reference is trained on the headers'
text. The others see {beginning} tokens of a header and the target's {answer} tokens after it, drawn at temperature 1;
both count as seen. A share of their windows is Python's library, against forgetting. {cpu}, {cores} cores, which also
did other work; jax {jax}.

{table}

"Of the reference's gain" compares with the last row of the reference. "Python" is the change on the original text.
Rate of AdamW, share of replayed windows and passes over a log: {recipes}.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory of logs and trainings")
    parser.add_argument("--stages", type=integer(1), default=3, help="stages of feedback (default 3)")
    parser.add_argument("--tokens", type=integer(1), default=200_000, help="tokens seen in all (default 200000)")
    parser.add_argument("--objectives", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(args.work / "compiled"))  # a stage compiles what the last did
    target = specjax.load("tiny-python")
    learnt, measure = read_headers(target, args.work / "headers")
    results = Results(args.work / "results.json")
    results.once("start", lambda: measure(specjax.load(START, dtype="float32").model))
    reference(target, args.work, measure, results)
    rows = args.tokens // (args.stages * (BEGINNING + ANSWER) * ROWS) * ROWS
    drafts = dict.fromkeys(args.objectives, START)
    for stage in range(args.stages):
        for name, draft in drafts.items():
            drafts[name] = feedback(target, draft, learnt, name, stage, rows, args.work, measure, results)
        write_page(target, results.found, learnt.size)


class Results:
    """Figures by name, kept in a file so that an interrupted run continues."""

    def __init__(self, path: Path):
        self.path = path
        self.found = json.loads(path.read_text()) if path.exists() else {}

    def once(self, name: str, compute: Callable[[], dict]) -> dict:
        if name not in self.found:
            self.found[name] = compute()
            self.path.write_text(json.dumps(self.found, indent=1))
            print(name, self.found[name], flush=True)
        return self.found[name]


def read_headers(target: LanguageModel, directory: Path) -> tuple[np.ndarray, Callable]:
    """The tokens of the headers to learn, and the measurement on both kinds of held-out text.

    The headers to learn are also copied to ``directory``, for the reference.
    """
    separator = target.config.eos_token_ids[0]
    is_held_out = lambda path: zlib.crc32(path.relative_to(HEADERS).as_posix().encode()) % 8 == 0
    headers = sorted(HEADERS.rglob("*.h"))
    documents = lambda paths: [Document(text) for text in data.read_texts(paths)]
    read = lambda paths: data.token_stream(documents(paths), target.tokenizer, separator)
    directory.mkdir(exist_ok=True)
    for i, path in enumerate(path for path in headers if not is_held_out(path)):
        shutil.copyfile(path, directory / f"{i:04d}.h")
    _, library = data.read_streams((), target.tokenizer, separator)
    held_out = {"headers": data.Mixture.join([read(filter(is_held_out, headers))]), "library": library}
    prompts = {name: mixture.cut_prompts(PROMPTS, PROMPT) for name, mixture in held_out.items()}
    measured = MeasuredAcceptance(target, "draft", (), MEASURED)

    def measure(module) -> dict:
        """The mean acceptance length on each kind of text."""
        found = {}
        for name, measured.prompts in prompts.items():
            found[name] = measured(module)
        return found

    return read(path for path in headers if not is_held_out(path)).tokens, measure


def reference(target: LanguageModel, work: Path, measure: Callable, results: Results) -> None:
    """Ordinary training on the headers' text, without replay."""
    recipe = make_recipe(dict(kind="draft", head=dict(start=START), **REFERENCE), "reference")
    a_step, steps = recipe.batch * recipe.length, iter(range(recipe.every, recipe.steps + 1, recipe.every))

    def report(module) -> float:
        tokens = next(steps) * a_step
        return results.once(f"reference {tokens}", lambda: measure(module) | {"tokens": tokens})["headers"]

    if f"reference {recipe.steps * a_step}" not in results.found:
        shutil.rmtree(work / "reference", ignore_errors=True)
        train(recipe, target, [work / "headers"], work / "reference", measure=report)


def feedback(target, draft, learnt: np.ndarray, name: str, stage: int, rows: int, work: Path, measure, results):
    """One stage: a log of ``rows`` answers, a training, a measurement. Returns the new draft's directory."""
    options, run = RECIPES[name], work / f"{name}-{stage + 1}"
    key = f"{name} {stage + 1}"
    if key in results.found:
        return str(run)
    log = work / ("log-1" if stage == 0 else f"log-{name}-{stage + 1}")  # all begin with the same draft
    if not (log / "done").exists():
        write_log(target, draft, learnt, rows, stage, log)
    replayed = max(round(options["replay"] * BATCH), 1)
    table = dict(
        kind="feedback", batch=BATCH, length=BEGINNING + ANSWER, prompts=0, seed=stage, head=dict(start=draft),
        steps=round(options["epochs"] * rows / (BATCH - replayed)), every=10**6,
        loss=dict(objective=name, replay=options["replay"]),
        optimizer=dict(name="adamw", rate=options["rate"], warmup=10),
    )  # fmt: skip
    trained = train_from_log(make_recipe(table, key), target, log, output=run, measure=lambda module: None)
    seen = dict(tokens=(stage + 1) * rows * (BEGINNING + ANSWER), logged=json.loads((log / "done").read_text()))
    results.once(key, lambda: measure(cast(trained.model, "float32")) | seen)
    return str(run)


def write_log(target, draft: str, learnt: np.ndarray, rows: int, stage: int, log: Path) -> None:
    """Answers to beginnings of headers, with their rounds in ``log``."""
    shutil.rmtree(log, ignore_errors=True)
    generator = specjax.Generator(target, "draft_model", draft, feedback_log=log)
    starts = np.random.default_rng(stage).integers(0, learnt.size - BEGINNING, rows)
    stats = []
    for first in range(0, rows, ROWS):
        prompts = [learnt[start : start + BEGINNING].tolist() for start in starts[first : first + ROWS]]
        seeds = list(range(stage * rows + first, stage * rows + first + ROWS))
        options = dict(max_new_tokens=ANSWER, temperature=1.0, seed=seeds, ignore_eos=True)
        stats += [result.stats for result in generator(prompts, **options)]
    (log / "done").write_text(json.dumps(total(stats).mean_acceptance_length))


def write_page(target: LanguageModel, found: dict, learnt: int) -> None:
    """Writes the table and the picture of the runs so far."""
    path = RESULTS / f"feedback_{jax.default_backend()}.md"
    draw(found).savefig(path.with_suffix(".png"), dpi=110)
    path.write_text(page(target, found, learnt))


def draw(found: dict):
    """A matplotlib figure: acceptance on each kind of text by the tokens seen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, text in zip(figure.subplots(1, 2), ("headers", "library")):
        for name in ("reference", *RECIPES):
            points = [(0, found["start"][text])] + [(each["tokens"], each[text]) for each in of_run(found, name)]
            axes.plot(*zip(*points), "o--" if name == "reference" else "o-", label=name)
        axes.set(xlabel="tokens of the headers seen", title=f"mean acceptance length, held-out {text}")
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def of_run(found: dict, name: str) -> list[dict]:
    """The figures of the stages of a run, in order."""
    return [figures for key, figures in found.items() if key.startswith(f"{name} ")]


def page(target: LanguageModel, found: dict, learnt: int) -> str:
    start, best = found["start"], of_run(found, "reference")[-1]["headers"]
    rows = [("start", 0, f"{start['headers']:.2f}", "", f"{start['library']:.2f}", "")]
    for name in ("reference", *RECIPES):
        for figures in of_run(found, name):
            gain = (figures["headers"] - start["headers"]) / (best - start["headers"])
            change = figures["library"] / start["library"] - 1
            rows += [
                (name, f"{figures['tokens']:,}", f"{figures['headers']:.2f}", f"{gain:.0%}",
                 f"{figures['library']:.2f}", f"{change:+.1%}")
            ]  # fmt: skip
    head = ("draft", "tokens seen", "headers", "of the reference's gain", "library", "Python")
    about = machine(target) | dict(learnt=learnt, prompts=PROMPTS, prompt=PROMPT, measured=MEASURED)
    recipes = [f"{name} {each['rate']:g}, {each['replay']:g}, {each['epochs']}" for name, each in RECIPES.items()]
    about |= dict(recipes="; ".join(recipes))
    about |= dict(beginning=BEGINNING, answer=ANSWER, table=markdown_table(head, rows))
    return PAGE.format(**about)


if __name__ == "__main__":
    main()
