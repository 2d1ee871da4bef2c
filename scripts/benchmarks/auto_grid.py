"""Measures method auto against plain decoding and five fixed methods, on four kinds of text.

    python scripts/benchmarks/auto_grid.py [--model tiny-python] [--draft tiny-python-draft] [--label 14m]

The kinds are held-out code, a file written again, prose that the pair has not seen, and random
tokens. Each cell has a kind, a temperature and a batch size. It has as many texts as a batch has rows, and
at least ``--texts-per-cell``, which are decoded one batch after another. In a cell the methods alternate, in
an order that rotates, each beside a run of plain decoding and one of auto, and ratios are those of runs side
by side. With ``--batches 1`` among others, a single text then changes its kind in the middle.
Before the first cell, `specjax tune --auto` measures the times if no file has them.

A run that was interrupted goes on at the next cell. The page names GLIBC_TUNABLES, if it is set, see
docs/cpu.md. Needs the extra "plot". Writes auto_<label>_<platform>.json and .png, and the page auto.md.
"""

import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
from page import ROOT, Result, arguments, measured, section

import specjax
from specjax.cli.parser import integer
from specjax.tools.evaluate import edit_prompts, held_out_prompts, machine
from specjax.tools.evaluate.report import markdown_table
from specjax.tools.tune.auto import batches_up_to, tune_auto

FIXED = {
    "ngram": ("ngram", {}),
    "suffix": ("suffix", {}),
    "draft_model": ("draft_model", {}),
    "draft_model, ema": ("draft_model", {"draft_length": "ema"}),
    "switch": ("switch", {}),
}
"""The fixed methods with their options, the five best of docs/results/compare_cpu.md."""

SEGMENT, SETTLED = 64, 32
"""Rounds of each kind in a text that changes, and rounds within which the method must adapt."""

TITLE = "Method auto against fixed methods"
QUESTION = (
    "How close does the default method come to the best fixed method of each kind of text, temperature and batch?"
)
TEXT = """Speeds are multiples of plain decoding, medians over pairs of runs side by side, {repeats} for each fixed
method and {pairs} for auto; {max_new_tokens} new tokens of at least {texts_per_cell} texts in each cell{memory}.

![Method auto against the best fixed method of each cell]({picture})
"""
FOLLOWS = """
- With `auto` nothing has to be chosen: no kind of text is much slower than plain decoding, and most are faster.
- Who decodes one prompt at a time of one known kind gets up to a sixth more from the best fixed method of that row.
- With many rows at once on a CPU drafts hardly pay; `auto` then decodes plainly.
"""


def main():
    args = parse_arguments()
    try:
        target, draft = specjax.load(args.model), specjax.load(args.draft)
    except specjax.SpecjaxError as error:
        print(f"auto_grid: error: {error}", file=sys.stderr)
        sys.exit(2)
    tune_auto(target, draft, batches=batches_up_to(max(args.batches)))
    result = Result("auto", f"{args.label}_{jax.default_backend()}")
    report = result.read() or {"cells": {}}
    conditions = measured((args.model, args.draft), machine(target)["dtype"])
    report |= {"conditions": conditions, "settings": describe(args), "picture": result.picture().name}
    made = generators(target, draft, args)
    for kind, temperature, batch in itertools.product(args.texts, args.temperatures, args.batches):
        key = f"{kind}, temperature {temperature:g}, batch {batch}"
        if key not in report["cells"]:
            prompts = prompts_of(target, kind, max(batch, args.texts_per_cell), args.prompt_tokens)
            report["cells"][key] = measure_cell(made, prompts, temperature, batch, args)
            result.save(report)
            print(key, {name: round(float(np.median(x)), 3) for name, x in report["cells"][key]["ratio"].items()})
    if 1 in args.batches and "changes" not in report:
        starts = {kind: prompts_of(target, kind, 1, args.prompt_tokens)[0] for kind in args.texts}
        report["changes"] = follow_changes(made["auto"], starts)
    result.save(report)
    draw(report).savefig(result.picture(), dpi=150)
    write_page(result)


def write_page(result: Result) -> None:
    sections = [section(report["conditions"], text(report), title(report)) for report in result.read_all()]
    result.write(TITLE, QUESTION, sections, FOLLOWS)


def title(report: dict) -> str:
    settings = report["settings"]
    batches = settings["batches"]
    return f"{settings['model']} with {settings['draft']}, batch {', '.join(map(str, batches))}"


def parse_arguments():
    parser = arguments(__doc__)
    add = parser.add_argument
    add("--model", default="tiny-python")
    add("--draft", default="tiny-python-draft")
    add("--label", default="14m", help="a name for the files")
    add("--texts", nargs="+", choices=list(TEXTS), default=list(TEXTS))
    add("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    add("--batches", nargs="+", type=integer(1), default=[1, 4, 16])
    add("--methods", nargs="+", choices=list(FIXED), default=list(FIXED))
    add("--texts-per-cell", type=integer(1), default=4, help="the fewest texts of a cell (default 4)")
    add("--prompt-tokens", type=integer(16), default=96)
    add("--max-new-tokens", type=integer(1), default=128)
    add("--repeats", type=integer(1), default=5)
    return parser.parse_args()


def prose(target, count: int, length: int) -> list[list[int]]:
    """Pieces of this project's documentation, which is English and in no training set of the pair."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    tokens = target.tokenizer.encode(text)
    starts = np.random.default_rng(0).integers(0, len(tokens) - length, count)
    return [tokens[start : start + length] for start in starts]


def random_tokens(target, count: int, length: int) -> list[list[int]]:
    """Tokens drawn uniformly from the vocabulary."""
    return np.random.default_rng(0).integers(0, target.config.vocab_size, (count, length)).tolist()


TEXTS = {
    "held-out code": lambda target, count, length: held_out_prompts(target.tokenizer, count, length),
    "a file written again": edit_prompts,
    "prose": prose,
    "random tokens": random_tokens,
}


def prompts_of(target, kind: str, count: int, length: int) -> list:
    return list(TEXTS[kind](target, count, length))


def describe(args) -> dict:
    names = {name: Path(getattr(args, name)).name for name in ("model", "draft")}
    return vars(args) | names | {"memory": os.environ.get("GLIBC_TUNABLES", "")}


def generators(target, draft, args) -> dict:
    capacity = 1 << (4 * args.prompt_tokens + max(args.max_new_tokens, 5 * SEGMENT) + 64).bit_length()
    made = {"plain": specjax.Generator(target, "none", capacity=capacity)}
    made["auto"] = specjax.Generator(target, "auto", draft, capacity=capacity)
    for name in args.methods:
        method, options = FIXED[name]
        given = None if method in ("ngram", "suffix") else draft
        made[name] = specjax.Generator(target, method, given, capacity=capacity, **options)
    return made


def measure_cell(made: dict, prompts: list, temperature: float, batch: int, args) -> dict:
    """Tokens a second of each run, the ratios to the plain run beside it, and the choices of auto.

    A run decodes all prompts, ``batch`` at a time. Plain decoding and auto run once beside each fixed method,
    so they run most often.
    """
    speeds: dict[str, list[float]] = {name: [] for name in made}
    ratios: dict[str, list[float]] = {name: [] for name in made if name != "plain"}
    choices = {}

    def run(name: str, tokens: int = args.max_new_tokens) -> float:
        options = dict(max_new_tokens=tokens, temperature=temperature, ignore_eos=True)
        groups = [made[name](prompts[at : at + batch], **options) for at in range(0, len(prompts), batch)]
        if name == "auto":
            choices.update({c.name: c.rounds for c in groups[0][0].stats.choices})
        emitted = sum(len(result.token_ids) for results in groups for result in results)
        return emitted / sum(results[0].stats.decode_seconds for results in groups)

    with ThreadPoolExecutor() as pool:  # compiles
        list(pool.map(lambda name: run(name, 1), made))
    for name in made:  # touches the memory for the first time
        run(name, max(args.max_new_tokens // 8, 1))
    for turn in range(args.repeats):
        for place in range(len(args.methods)):
            method, pair = args.methods[(turn + place) % len(args.methods)], ["plain", "auto"]
            speed = {name: run(name) for name in [*(pair if (turn + place) % 2 else pair[::-1]), method]}
            for name in speed:
                speeds[name].append(speed[name])
            for name in speed.keys() - {"plain"}:
                ratios[name].append(speed[name] / speed["plain"])
    return {"tokens_per_second": speeds, "ratio": ratios, "choices": choices}


def follow_changes(generator, prompts: dict) -> list[dict]:
    """The choices after each change of text, round by round, and the speed by the known times.

    The state with which the method chooses is carried from one text to the next. ``settled`` is the
    speed after ``SETTLED`` rounds over that of the same rounds of a text without a past.
    """
    session = generator.session
    kinds = list(prompts)
    carried = None
    changes = []
    for kind in [*kinds, *kinds[::-1][1:]]:
        runs = {}
        for name in ("fresh", "carried"):
            decoding = generator.start([prompts[kind]], max_new_tokens=session.capacity // 2, ignore_eos=True)
            if name == "carried" and carried is not None:
                own = decoding.state.drafter.replace(**carried)
                decoding.state = decoding.state.replace(drafter=own)
            runs[name] = play(session, decoding)
        drafter = decoding.state.drafter
        carried = {name: getattr(drafter, name) for name in ("acceptance", "since_near")}
        speed = {name: run["tokens"][SETTLED:].sum() / run["time"][SETTLED:].sum() for name, run in runs.items()}
        run = {key: value.tolist() for key, value in runs["carried"].items()}
        changes.append({"text": kind, "settled": speed["carried"] / speed["fresh"]} | run)
    return changes


def play(session, decoding) -> dict[str, np.ndarray]:
    """The arm, the tokens and the time (in plain rounds) of each of ``SEGMENT`` rounds."""
    arms, tokens, times = [], [], []
    for _ in range(SEGMENT):
        before = jax.device_get(decoding.state.counters)
        session.advance(decoding, 1)
        after = jax.device_get(decoding.state.counters)
        ran = (after.chosen - before.chosen)[0]
        if not ran.sum():
            break
        seconds = np.asarray(session.parameters.times.at(1, 128))
        arms.append(int(ran.argmax()))
        tokens.append(int((after.emitted - before.emitted)[0].sum()))
        times.append(float(seconds[arms[-1]] / seconds[0]))
    return {"arm": np.array(arms), "tokens": np.array(tokens), "time": np.array(times)}


def medians(report: dict) -> dict[str, dict[str, float]]:
    """The median ratio to plain decoding, by cell and method."""
    return {
        key: {name: float(np.median(values)) for name, values in cell["ratio"].items()}
        for key, cell in report["cells"].items()
    }


def text(report: dict) -> str:
    cells, settings = medians(report), report["settings"]
    methods = ["auto", *settings["methods"]]
    rows = []
    for key, ratio in cells.items():
        best = max(ratio[method] for method in methods[1:])
        values = report["cells"][key]["ratio"]["auto"]
        low, high = np.quantile(values, [0.25, 0.75])
        spread = f"{ratio['auto']:.2f} ({low:.2f} to {high:.2f})"
        rows.append([key, spread, *(f"{ratio[m]:.2f}" for m in methods[1:]), f"{ratio['auto'] / max(best, 1):.2f}"])
    mean = lambda values: float(np.exp(np.mean(np.log(list(values)))))
    means = {method: mean(ratio[method] for ratio in cells.values()) for method in methods}
    best = mean(ratio["auto"] / max(ratio[m] for m in methods[1:]) for ratio in cells.values())
    loads: dict[str, list[float]] = {}
    for key, ratio in cells.items():
        text, _, batch = key.split(", ")
        loads.setdefault(f"{text}, {batch}", []).append(ratio["auto"])
    lowest = min(loads, key=lambda load: mean(loads[load]))
    worst = min(cells, key=lambda key: cells[key]["auto"])
    memory = f"; `GLIBC_TUNABLES={settings['memory']}`" if settings.get("memory") else ""
    head = TEXT.format(
        **settings | {"memory": memory}, pairs=settings["repeats"] * len(settings["methods"]),
        picture=report["picture"],
    )  # fmt: skip
    lines = [
        f"- Geometric means over the cells: {', '.join(f'{m} {v:.3f}' for m, v in means.items())}.",
        f"- Auto over the best fixed method of each cell, geometric mean: {best:.3f}.",
        f"- Lowest mean of a text and load against plain decoding: {mean(loads[lowest]):.3f} ({lowest}).",
        f"- Lowest cell against plain decoding: {cells[worst]['auto']:.3f} ({worst}).",
    ]
    table = markdown_table(["cell", "auto (quartiles)", *methods[1:], "auto / best, plain included"], rows)
    return "\n".join([head, *lines, "", table, *changes_section(report), ""])


def changes_section(report: dict) -> list[str]:
    """The lines about texts that change; [] without a batch of 1."""
    if "changes" not in report:
        return []
    rows = [[one["text"], f"{one['settled']:.2f}"] for one in report["changes"][1:]]
    head = ["text after a change", f"speed from round {SETTLED} on, over that without a past"]
    return ["", "## Texts that change", "", markdown_table(head, rows)]


def draw(report: dict):
    """A matplotlib figure: the regret of each cell, and the progress of the text that changes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cells, changes = medians(report), report.get("changes", [])
    size = (13 if changes else 9, 0.25 * len(cells) + 2.5)
    figure, panels = plt.subplots(1, 2 if changes else 1, figsize=size, squeeze=False)
    draw_regret(panels[0, 0], cells)
    if changes:
        draw_changes(panels[0, 1], changes)
    figure.tight_layout()
    return figure


def draw_regret(panel, cells: dict):
    regret = [1 - r["auto"] / max(1.0, *(v for m, v in r.items() if m != "auto")) for r in cells.values()]
    panel.barh(list(cells), regret)
    panel.invert_yaxis()
    panel.set_xlabel("regret: share of the best method's speed that auto loses")


def draw_changes(panel, changes: list[dict]):
    start = 0
    for one in changes:
        place = start + np.arange(len(one["arm"]))
        lost = np.cumsum(np.array(one["time"]) - np.array(one["tokens"]) / (sum(one["tokens"]) / sum(one["time"])))
        panel.plot(place, lost, label=one["text"])
        start += len(place)
    panel.set_xlabel("round of a text that changes")
    panel.set_ylabel("time behind the segment's mean, plain rounds")
    panel.legend(fontsize=7)


if __name__ == "__main__":
    main()
