"""Measures latency and throughput of servers with and without drafts, at several numbers of clients.

    python scripts/benchmarks/serve_speed.py [--methods none,ngram,auto] [--clients 1,4,16] [--turns 5]

Each method has a server of its own, and all run at the same time. One turn sends the same requests to
one server after another, so drift of the machine affects all methods equally; servers without requests
rest. Requests are streams of held-out code. Writes serve_speed_<label>_<platform>.json and .png, and the page
serve_speed.md.
"""

import argparse
import asyncio
import json
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import jax
import matplotlib
import numpy as np
from page import Result, arguments, measured, section, with_folder
from serve_process import NAME, Server, serve

from specjax import METHODS, SpecjaxError, load
from specjax.cli.parser import integer
from specjax.tools.evaluate import held_out_prompts, machine
from specjax.tools.evaluate.report import markdown_table
from specjax.tools.tune.auto import batches_up_to, tune_auto

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PROMPT, CAPACITY = 64, 512
LATENCIES = {"first": "to the first token", "between": "between two tokens", "whole": "to the last token"}


TITLE = "A server's latency and throughput"
QUESTION = "What do clients of a server gain from drafts, alone and together?"
FOLLOWS = """
- One client gets its answer sooner with drafts; the time to the first token stays.
- With as many clients as slots drafts cost throughput on a CPU. `auto` notices it and decodes plainly.
"""


def main():
    parser = with_folder(arguments(__doc__))
    parser.add_argument("--target", default="tiny-python")
    parser.add_argument("--draft", default="tiny-python-draft")
    parser.add_argument("--label", default="14m", help="a name for the files")
    parser.add_argument("--methods", default="none,ngram,auto", help="the first one is the baseline")
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--turns", type=integer(1), default=5)
    parser.add_argument("--requests", type=integer(1), default=16, help="requests of a turn for each number of clients")
    parser.add_argument("--new", type=integer(1), default=128, help="new tokens of a request")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--slots", type=integer(1), default=16)
    args = parser.parse_args()
    if unknown := [name for name in args.methods.split(",") if name not in METHODS]:
        parser.error(f"--methods: no method {unknown[0]!r}; use {', '.join(METHODS)}")
    try:
        target, draft = load(args.target), load(args.draft)
    except SpecjaxError as error:
        parser.error(str(error))
    prompts = held_out_prompts(target.tokenizer, args.requests, PROMPT)
    if "auto" in args.methods.split(","):
        tune_auto(target, draft, batches=batches_up_to(args.slots))
    settings = {name: value for name, value in vars(args).items() if name != "results"}
    settings |= {name: Path(getattr(args, name)).name for name in ("target", "draft")}
    conditions = measured((args.target, args.draft), machine(target)["dtype"])
    result = Result("serve_speed", f"{args.label}_{jax.default_backend()}", args.results)
    picture = result.picture()
    runs = measure(args, prompts)
    result.save({"conditions": conditions, "settings": settings, "picture": picture.name, "runs": runs})
    draw(result.read(), picture)
    write_page(result)


def write_page(result: Result) -> None:
    sections = []
    for report in result.read_all():
        settings = report["settings"]
        sections.append(section(report["conditions"], text(report, report["picture"]), settings["target"]))
    result.write(TITLE, QUESTION, sections, FOLLOWS)


def measure(args: argparse.Namespace, prompts: list[str]) -> dict[str, dict[str, dict]]:
    """The figures by number of clients and method."""
    methods, counts = args.methods.split(","), [int(count) for count in args.clients.split(",")]
    bodies = [
        dict(
            model=NAME, prompt=prompt, max_tokens=args.new, temperature=args.temperature, seed=i,
            ignore_eos=True, stream=True, specjax_rounds=True,
        )
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip
    turns: dict[tuple[int, str], list[dict]] = {}
    with ExitStack() as stack:
        servers = {method: stack.enter_context(serve(*flags(args, method))) for method in methods}
        for turn in range(-1, args.turns):  # the first one warms up
            for count in counts:
                for method in np.roll(methods, turn).tolist():
                    found = asyncio.run(send(servers[method], bodies, count))
                    if turn >= 0:
                        turns.setdefault((count, method), []).append(found)
    return {
        str(count): {method: summary(turns[count, method], turns[count, methods[0]]) for method in methods}
        for count in counts
    }


def flags(args: argparse.Namespace, method: str) -> tuple:
    """The flags of the server of a method."""
    drafts = method not in ("none", "ngram", "suffix", "token_recycling", "lookahead")
    sizes = ("--slots", args.slots, "--capacity", CAPACITY)
    return ("--model", args.target, "--method", method, *(("--draft", args.draft) if drafts else ()), *sizes)


async def send(server: Server, bodies: list[dict], count: int) -> dict:
    """Sends the requests from ``count`` clients. Returns seconds, tokens and all latencies."""
    left, times = iter(bodies), {name: [] for name in LATENCIES}
    began = time.perf_counter()
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:

        async def work() -> None:
            for body in left:
                await read_stream(client, body, times)

        await asyncio.gather(*(work() for _ in range(count)))
    tokens = sum(body["max_tokens"] for body in bodies)
    return {"seconds": time.perf_counter() - began, "tokens": tokens, **times}


async def read_stream(client: httpx.AsyncClient, body: dict, times: dict[str, list[float]]) -> None:
    """Reads a stream, and adds its latencies in seconds to ``times``."""
    began, last, seen = time.perf_counter(), None, 0
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            tokens = len(json.loads(line[6:])["specjax"]["tokens"]) if line.startswith("data: {") else 0
            if not tokens:
                continue
            now = time.perf_counter()
            if last is None:
                times["first"].append(now - began)
            else:
                times["between"] += [(now - last) / tokens] * tokens
            last, seen = now, seen + tokens
    times["whole"].append(time.perf_counter() - began)
    assert seen == body["max_tokens"], (seen, body)


def summary(turns: list[dict], baseline: list[dict]) -> dict:
    """Throughput, its ratio to the baseline turn by turn, and median and 95 % of the latencies in ms."""
    rate = lambda turn: turn["tokens"] / turn["seconds"]
    ratios = [rate(turn) / rate(other) for turn, other in zip(turns, baseline)]
    found: dict = {"tokens_per_second": float(np.median([rate(turn) for turn in turns]))}
    found["speed_up"] = [float(np.median(ratios)), min(ratios), max(ratios)]
    for name in LATENCIES:
        values = 1000 * np.concatenate([turn[name] for turn in turns])
        found[name] = [float(np.quantile(values, q)) for q in (0.5, 0.95)]
    return found


def text(report: dict, picture: str) -> str:
    """The report as Markdown."""
    settings, rows = report["settings"], []
    for count, methods in report["runs"].items():
        for method, run in methods.items():
            median, least, most = run["speed_up"]
            latencies = [f"{run[one][0]:.3g}, {run[one][1]:.3g}" for one in LATENCIES]
            rows.append(
                [
                    count,
                    method,
                    f"{run['tokens_per_second']:.0f}",
                    f"{median:.2f} ({least:.2f} to {most:.2f})",
                    *latencies,
                ]
            )
    head = ["clients", "method", "tokens a second", "speed-up", *(f"ms {text}" for text in LATENCIES.values())]
    return f"""`specjax serve` with {settings["target"]}, {settings["slots"]} slots, and {settings["draft"]} for methods with a draft.
{settings["requests"]} streams of {settings["new"]} new tokens after at most {PROMPT} tokens of held-out code, temperature
{settings["temperature"]:g}, in {settings["turns"]} turns. Every client sends its next request after its answer. The servers of
all methods take turns on the same machine, beside the clients.

The speed-up is the throughput over that of `{settings["methods"].split(",")[0]}` in the same turn: the median, and the
smallest and the largest turn. Latencies are the median and the 95 % quantile over all requests or tokens.

{markdown_table(head, rows)}

![Throughput and time between tokens by number of clients]({picture})
"""


def draw(report: dict, path: Path) -> None:
    """Throughput, and the time between two tokens, by number of clients."""
    runs = report["runs"]
    counts, methods = [int(count) for count in runs], list(next(iter(runs.values())))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    for method in methods:
        left.plot(counts, [run[method]["tokens_per_second"] for run in runs.values()], "o-", label=method)
        medians, tails = zip(*(run[method]["between"] for run in runs.values()))
        (line,) = right.plot(counts, medians, "o-", label=method)
        right.plot(counts, tails, ":", color=line.get_color())
    left.set_ylabel("tokens a second")
    right.set_ylabel("ms between tokens; dotted: 95 %")
    for axes in (left, right):
        axes.set_xlabel("clients")
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_ylim(bottom=0)
    left.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
