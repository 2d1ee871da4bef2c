"""Measures the engine's throughput, the time between tokens while a long prompt is read, and shared prompts.

    python scripts/benchmarks/engine_speed.py [--requests 64] [--slots 16] [--rate 20] [--methods none,auto]

The requests are held-out code with 16 to 512 new tokens. They arrive at random (Poisson) times. An
engine with the widths of a server decodes them. So do an engine without widths, fixed batches of as many
rows as slots, in the order of arrival, and a Generator one after another. The last two have all requests
at once. In float32 all texts must be equal. The ways of a method alternate. A first run of each, with few
tokens, compiles and does not count. Writes engine_<label>_<platform>.json and the page engine.md, after
each method.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np
from page import Result, arguments, measured, section, with_folder

from specjax import METHODS, Engine, Generator, LanguageModel, SpecjaxError, load
from specjax.cli.parser import integer
from specjax.engine import usual_widths, warm_up
from specjax.tools.evaluate import held_out_prompts
from specjax.tools.evaluate.report import markdown_table
from specjax.tools.tune.auto import batches_up_to, tune_auto

SHORTEST, LONGEST, PROMPT = 16, 512, 64
CAPACITY = 2048
ALONE = "one after another"
WITHOUT_DRAFT = ("none", "ngram", "suffix", "token_recycling", "lookahead")
LATE = 1500
"""Tokens of the prompt that is read while other rows run."""
COMMON, OWN = 1000, 50
"""Tokens that two prompts have in common, and tokens that only one of them has."""


TITLE = "The engine's speed"
QUESTION = "What does continuous batching bring over fixed batches, and how long do tokens wait while a prompt is read?"
FOLLOWS = """
- Serve many requests with the engine: on a CPU it is faster than fixed batches in the order of arrival.
- On a GPU with a small target and all requests known beforehand, fixed batches are faster.
- A long prompt delays running texts by less than one token; prompts with common beginnings are read once.
"""


def main():
    parser = with_folder(arguments(__doc__))
    parser.add_argument("--target", default="tiny-python")
    parser.add_argument("--label", default="14m", help="a name for the files")
    parser.add_argument("--draft", default="tiny-python-draft", help="a draft, or none")
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16"),
        help="in bfloat16 near ties of greedy texts depend on the number of rows (default float32)",
    )
    parser.add_argument(
        "--methods", default="none,auto", help="separated by commas; the last one is that of the other tables"
    )
    parser.add_argument("--requests", type=integer(1), default=64)
    parser.add_argument("--slots", type=integer(2), default=16)
    parser.add_argument("--rate", type=float, default=20.0, help="arrivals a second")
    parser.add_argument("--longest", type=integer(SHORTEST), default=LONGEST, help="the largest number of new tokens")
    parser.add_argument("--late", type=integer(1), default=LATE, help="tokens of the late prompt")
    parser.add_argument("--repeats", type=integer(1), default=3, help="runs of each way")
    args = parser.parse_args()
    methods = args.methods.split(",")
    if unknown := [name for name in methods if name not in METHODS]:
        parser.error(f"--methods: no method {unknown[0]!r}; use {', '.join(METHODS)}")
    try:
        target = load(args.target, args.dtype)
        draft = None if args.draft == "none" else load(args.draft, args.dtype)
    except SpecjaxError as error:
        parser.error(str(error))
    if "auto" in methods:
        tune_auto(target, draft, batches=batches_up_to(args.slots))
    drafting = [dict(method=name, draft=None if name in WITHOUT_DRAFT else draft) for name in methods]
    result = Result("engine", f"{args.label}_{jax.default_backend()}", args.results)
    conditions = measured([args.target, *([args.draft] if draft else [])], args.dtype)
    report: dict = {"conditions": conditions, "settings": settings(args), "methods": {}}
    for own in drafting:
        report["methods"][own["method"]] = throughput(target, own, args)
        report["gaps"] = gaps(target, own, args.slots, args.late)
        report["shared"] = shared(target, own)
        result.save(report)
        write_page(result)


def write_page(result: Result) -> None:
    reports = result.read_all()
    sections = [section(report["conditions"], text(report), report["settings"]["target"]) for report in reports]
    result.write(TITLE, QUESTION, sections, FOLLOWS)


def settings(args: argparse.Namespace) -> dict:
    """The settings of the page, without paths of this machine."""
    return {**vars(args), "results": None} | {name: Path(getattr(args, name)).name for name in ("target", "draft")}


def throughput(target: LanguageModel, drafting: dict, args: argparse.Namespace) -> dict:
    """Seconds of each way to decode the same requests, the seconds of each request in the engine, and equal texts.

    Raises AssertionError if a text in float32 is not that of the request alone.
    """
    rng = np.random.default_rng(0)
    prompts = held_out_prompts(target.tokenizer, args.requests, PROMPT)
    new = rng.integers(SHORTEST, args.longest + 1, args.requests).tolist()
    arrivals = np.cumsum(rng.exponential(1 / args.rate, args.requests))
    make_engine = partial(Engine, target, **drafting, slots=args.slots, capacity=CAPACITY, prefix_bytes=0)
    engine, wide = make_engine(widths=usual_widths(args.slots)), make_engine()
    for each in (engine, wide):
        warm_up(each)
    generator = Generator(target, **drafting, capacity=CAPACITY)
    waits: list[list[float]] = []
    ways: dict[str, Callable[[list[int]], list[list[int]]]] = {
        ALONE: lambda new: in_batches(generator, prompts, new, 1),
        f"batches of {args.slots}": lambda new: in_batches(generator, prompts, new, args.slots),
        "engine": lambda new: serve(engine, prompts, new, arrivals, waits),
        "engine without widths": lambda new: serve(wide, prompts, new, arrivals, []),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    texts: dict[str, list[list[int]]] = {}
    for run in range(args.repeats + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            texts[name] = way(new if run else [min(one, SHORTEST) for one in new])
            if run:  # the first run compiles
                seconds[name].append(time.perf_counter() - began)
    equal = {name: sum(map(list.__eq__, found, texts[ALONE])) for name, found in texts.items()}
    different = [name for name in ways if equal[name] < len(prompts)]
    assert args.dtype != "float32" or not different, f"texts of {different} are not those of the requests alone"
    return {"seconds": seconds, "tokens": sum(new), "latency_seconds": quantiles(waits[-1]), "equal": equal}


def serve(
    engine: Engine, prompts: list[str], new: list[int], arrivals: np.ndarray, waits: list[list[float]]
) -> list[list[int]]:
    """The tokens of each request. Appends to ``waits`` the seconds from each arrival to the end of the request."""
    began, handles, over = time.perf_counter(), [], {}
    while len(over) < len(prompts):
        now = time.perf_counter() - began
        while len(handles) < len(prompts) and arrivals[len(handles)] <= now:
            i = len(handles)
            handles.append(engine.submit(prompts[i], max_new_tokens=new[i], ignore_eos=True))
        engine.step()
        ended = time.perf_counter() - began
        over |= {i: ended - arrivals[i] for i, handle in enumerate(handles) if handle.is_over and i not in over}
    waits.append(list(over.values()))
    return [handle.result().token_ids for handle in handles]


def in_batches(generator: Generator, prompts: list[str], new: list[int], size: int) -> list[list[int]]:
    """The tokens of all requests, decoded ``size`` at a time."""
    texts = []
    for at in range(0, len(prompts), size):
        results = generator(prompts[at : at + size], max_new_tokens=new[at : at + size], ignore_eos=True)
        texts += [result.token_ids for result in results]
    return texts


def gaps(target: LanguageModel, drafting: dict, slots: int, late: int) -> dict:
    """Milliseconds between two tokens of running rows: before, and while a prompt of ``late`` tokens is read."""
    engine = Engine(target, **drafting, slots=slots, capacity=CAPACITY, prefix_bytes=0)
    prompts = held_out_prompts(target.tokenizer, slots - 1, PROMPT)
    long = np.random.default_rng(1).integers(100, target.config.vocab_size, late).tolist()
    warm_up(engine)
    found = {}
    for _ in range(2):  # the first run uses memory for the first time
        running = [engine.submit(prompt, max_new_tokens=1500, ignore_eos=True) for prompt in prompts]
        while not all(handle.token_ids for handle in running):
            engine.step()
        found["before"] = between(engine, running, lambda times: len(times) == 20)
        last = engine.submit(long, max_new_tokens=1)
        found["while it is read"] = between(engine, running, lambda _, last=last: last.is_over)
        for handle in running:
            handle.cancel()
        engine.step()
    return {name: quantiles(times, 1000) for name, times in found.items()}


def between(engine: Engine, running: list, until) -> list[float]:
    """Seconds of each step over the tokens that a row of ``running`` gets in it, until ``until(seconds)``."""
    times = []
    count = lambda: sum(len(handle.token_ids) for handle in running)
    while not until(times):
        before, began = count(), time.perf_counter()
        engine.step()
        times.append((time.perf_counter() - began) * len(running) / (count() - before))
    return times


def shared(target: LanguageModel, drafting: dict) -> list[dict]:
    """Tokens and seconds of two prompts with ``COMMON`` equal tokens at their beginnings, read one after the other."""
    engine = Engine(target, **drafting, slots=1, capacity=CAPACITY)
    found = []
    for run in range(2):  # the first run compiles
        rng = np.random.default_rng(run)
        draw = lambda count: rng.integers(100, target.config.vocab_size, count).tolist()
        common = draw(COMMON)
        results = [engine.submit(common + draw(OWN), max_new_tokens=1).result() for _ in range(2)]
        stats = [result.stats for result in results]
        found = [{"cached_tokens": one.cached_tokens, "prefill_seconds": one.prefill_seconds} for one in stats]
    return found


def quantiles(values: list[float], unit: float = 1) -> dict:
    return {name: float(np.quantile(values, q)) * unit for name, q in (("median", 0.5), ("p90", 0.9), ("longest", 1))}


def text(report: dict) -> str:
    """The results in Markdown."""
    settings, last = report["settings"], [*report["methods"]][-1]
    rows = []
    for method, found in report["methods"].items():
        for name, times in found["seconds"].items():
            ratios = np.array(times) / np.array(found["seconds"]["engine"])
            spread = "" if name == "engine" else f"{np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"
            equal = f"{found['equal'][name]} of {settings['requests']}"
            rate = f"{found['tokens'] / np.median(times):.0f}"
            rows.append([method, name, f"{np.median(times):.1f}", rate, spread, equal])
    number = lambda found: [f"{found[name]:.3g}" for name in ("median", "p90", "longest")]
    timed = [["request, from arrival to end, s", *number(report["methods"][last]["latency_seconds"])]]
    timed += [[f"between two tokens, {name}, ms", *number(found)] for name, found in report["gaps"].items()]
    read = [
        [name, COMMON + OWN, one["cached_tokens"], f"{1000 * one['prefill_seconds']:.0f}"]
        for name, one in zip(("first", "second"), report["shared"])
    ]
    return f"""{settings["requests"]} requests of {SHORTEST} to {settings["longest"]} new tokens, {settings["rate"]:g} arrivals a second,
{settings["slots"]} slots, {settings["target"]} with the draft {settings["draft"]}. The engine has
the widths of a server, {", ".join(map(str, usual_widths(settings["slots"])))}. Fixed batches and the calls one after another have all requests
at the start. All ways took turns, {settings["repeats"]} times. The ratio is the median of those of one turn, with their
range. Equal texts are those of the same requests one after another.

{markdown_table(["method", "way", "seconds", "tokens a second", "seconds / those of the engine", "equal texts"], rows)}

All below is of method {last}. A prompt of {settings["late"]:,} tokens is read while {settings["slots"] - 1} rows run. The time between two tokens is that of
a step over the mean number of tokens that it gives to a row.

{markdown_table(["time", "median", "90 %", "longest"], timed)}

Two prompts have {COMMON:,} tokens in common.

{markdown_table(["prompt", "tokens", "from the store of prefixes", "ms until it is read"], read)}
"""


if __name__ == "__main__":
    main()
