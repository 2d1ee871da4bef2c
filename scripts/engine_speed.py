"""Measures the engine's throughput, and the time between tokens while a long prompt is read.

    python scripts/engine_speed.py [--requests 64] [--slots 8] [--rate 20]

The requests are held-out code with 16 to 512 new tokens. They arrive at random (Poisson) times. The
engine decodes them with the embedded pair; so do fixed batches of the same width, in the order of
arrival, and a Generator one after another. The last two have all requests at once. Times are without
compilation: every run is made twice, and the second counts. Writes
docs/results/engine_<platform>.json and .md.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

from specjax import Engine, Generator, LanguageModel, load
from specjax.evaluation import held_out_prompts, machine
from specjax.evaluation.report import markdown_table

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
SHORTEST, LONGEST, PROMPT = 16, 512, 64
CAPACITY = 2048
LATE = 1500
"""Tokens of the prompt that is read while other rows run."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="tiny-python")
    parser.add_argument("--draft", default="tiny-python-draft")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--rate", type=float, default=20.0, help="arrivals a second")
    parser.add_argument("--longest", type=int, default=LONGEST, help="the largest number of new tokens")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder to write to")
    args = parser.parse_args()
    target, draft = load(args.target), load(args.draft)
    report = {"machine": machine(target), "settings": {**vars(args), "results": None}}
    report |= throughput(target, draft, args) | {"gaps": gaps(target, draft, args.slots)}
    path = args.results / f"engine_{jax.default_backend()}"
    path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(report))
    print(f"written to {path}.json and .md")


def throughput(target: LanguageModel, draft: LanguageModel, args: argparse.Namespace) -> dict:
    """Seconds and tokens a second of each way to decode the same requests, and the engine's waiting times."""
    rng = np.random.default_rng(0)
    prompts = held_out_prompts(target.tokenizer, args.requests, PROMPT)
    new = rng.integers(SHORTEST, args.longest + 1, args.requests).tolist()
    arrivals = np.cumsum(rng.exponential(1 / args.rate, args.requests))
    engine = Engine(target, draft=draft, slots=args.slots, capacity=CAPACITY)
    generator = Generator(target, draft=draft, capacity=CAPACITY)
    waits = []
    runs = {
        "engine": lambda: waits.append(serve(engine, prompts, new, arrivals)),
        f"batches of {args.slots}": lambda: in_batches(generator, prompts, new, args.slots),
        "one after another": lambda: in_batches(generator, prompts, new, 1),
    }
    found = {}
    for name, run in runs.items():
        for _ in range(2):  # the first run compiles
            began = time.perf_counter()
            run()
            seconds = time.perf_counter() - began
        found[name] = {"seconds": seconds, "tokens_per_second": sum(new) / seconds}
    return {"runs": found, "latency_seconds": quantiles(waits[-1])}


def serve(engine: Engine, prompts: list[str], new: list[int], arrivals: np.ndarray) -> list[float]:
    """Seconds from each arrival to the end of the request."""
    began, handles, over = time.perf_counter(), [], {}
    while len(over) < len(prompts):
        now = time.perf_counter() - began
        while len(handles) < len(prompts) and arrivals[len(handles)] <= now:
            i = len(handles)
            handles.append(engine.submit(prompts[i], max_new_tokens=new[i], ignore_eos=True))
        engine.step()
        ended = time.perf_counter() - began
        over |= {i: ended - arrivals[i] for i, handle in enumerate(handles) if handle.is_over and i not in over}
    return list(over.values())


def in_batches(generator: Generator, prompts: list[str], new: list[int], size: int) -> None:
    """Decodes all requests, ``size`` at a time."""
    for at in range(0, len(prompts), size):
        generator(prompts[at : at + size], max_new_tokens=new[at : at + size], ignore_eos=True)


def gaps(target: LanguageModel, draft: LanguageModel, slots: int) -> dict:
    """Milliseconds between the steps of running rows: before, and while a prompt of ``LATE`` tokens is read."""
    engine = Engine(target, draft=draft, slots=slots, capacity=CAPACITY)
    prompts = held_out_prompts(target.tokenizer, slots - 1, PROMPT)
    long = np.random.default_rng(1).integers(100, target.config.vocab_size, LATE).tolist()
    found = {}
    for _ in range(2):  # the first run compiles
        running = [engine.submit(prompt, max_new_tokens=400, ignore_eos=True) for prompt in prompts]
        while not all(handle.token_ids for handle in running):
            engine.step()
        found["before"] = steps(engine, lambda times: len(times) == 20)
        late = engine.submit(long, max_new_tokens=1)
        found["while it is read"] = steps(engine, lambda times, late=late: late.is_over)
        for handle in running:
            handle.cancel()
        engine.step()
    return {name: quantiles(times, 1000) for name, times in found.items()}


def steps(engine: Engine, until) -> list[float]:
    """Seconds of each step, until ``until(seconds)``."""
    times = []
    while not until(times):
        began = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - began)
    return times


def quantiles(values: list[float], unit: float = 1) -> dict:
    return {name: float(np.quantile(values, q)) * unit for name, q in (("median", 0.5), ("p90", 0.9), ("longest", 1))}


def page(report: dict) -> str:
    """The results in Markdown."""
    settings, runs = report["settings"], report["runs"]
    rows = [[name, f"{run['seconds']:.1f}", f"{run['tokens_per_second']:.0f}"] for name, run in runs.items()]
    number = lambda found: [f"{found[name]:.3g}" for name in ("median", "p90", "longest")]
    timed = [["request, from arrival to end, s", *number(report["latency_seconds"])]]
    timed += [[f"step, {name}, ms", *number(found)] for name, found in report["gaps"].items()]
    return f"""# The engine's speed

Written by `scripts/engine_speed.py` on {report["machine"]["cpu"]}, {report["machine"]["device"]}.

{settings["requests"]} requests of {SHORTEST} to {settings["longest"]} new tokens, {settings["rate"]:g} arrivals a second,
{settings["slots"]} slots. Fixed batches and the calls one after another have all requests at the start.

{markdown_table(["way", "seconds", "tokens a second"], rows)}

A prompt of {LATE:,} tokens is read while {settings["slots"] - 1} rows run.

{markdown_table(["time", "median", "90 %", "longest"], timed)}
"""


if __name__ == "__main__":
    main()
