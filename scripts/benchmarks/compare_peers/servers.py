"""Measures specjax's server beside llama.cpp's, with chats of two turns.

    python scripts/benchmarks/compare_peers/servers.py --model FILE.gguf --prompts FILE [--draft HEAD] [--clients 1,4,16,64]

Both servers run at the same time on the same weights and take turns, so drift of the machine affects
both equally. A client sends the second turn of a chat after the answer to the first. --prompts is a file
of JSON lines with "turns", such as MT-Bench's. llama.cpp needs the package xllamacpp. Writes
peers_servers_<model>_<platform>.json, and the page peers.md.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import jax

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of page.py

import numpy as np
from page import Result, arguments, measured
from peers_page import save
from serve_process import NAME, serve

from specjax import SpecjaxError
from specjax.cli.parser import integer
from specjax.tools.evaluate import read_conversations

_LLAMA_CPP = """
import sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_parallel, params.n_ctx, params.verbosity = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[4])
server = xllamacpp.Server(params)
print("listens at", server.listening_address, flush=True)
sys.stdin.read()
"""


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    try:
        read = read_conversations(args.prompts)
        chats = [[turn["content"] for turn in chat[:2]] for chat in read if len(chat) > 1]
    except SpecjaxError as error:
        print(f"servers: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    drafting = ("--draft", args.draft) if args.draft else ()
    blocks = ("--blocks", args.blocks) if args.blocks else ()
    sizes = ("--slots", args.slots, "--capacity", args.capacity, "--quantize", args.quantize, "--warm-up", "all")
    with (
        serve("--model", args.model, *drafting, *blocks, *sizes) as own,
        serve_llama_cpp(args.model, args.slots, args.capacity) as other,
    ):
        servers = {"specjax": own.url, "llama.cpp": other}
        runs = measure(args, servers, chats)
    settings = {name: Path(str(v)).name if v else v for name, v in vars(args).items() if name != "output"}
    settings["label"] = f"{Path(args.model).stem}, servers"
    conditions = measured([name for name in (args.model, args.draft) if name])
    report = {"conditions": conditions, "settings": settings, "kind": "servers", "runs": runs}
    part = f"servers_{Path(args.model).stem}_{jax.default_backend()}"
    save(report, Result(args.output.name, folder=args.output.parent) if args.output else Result("peers", part))


@contextmanager
def serve_llama_cpp(file: str, slots: int, capacity: int) -> Iterator[str]:
    """The address of a server of llama.cpp, which ends with the block."""
    threads = len(os.sched_getaffinity(0))
    command = [sys.executable, "-c", _LLAMA_CPP, file, str(slots), str(slots * capacity), str(threads)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with subprocess.Popen(command, **pipes) as process:
        try:
            while not (line := process.stdout.readline()).startswith("listens at "):
                if not line:
                    raise SystemExit("llama.cpp's server has not started; install xllamacpp")
            yield line.split()[-1]
        finally:
            process.kill()


def measure(args: argparse.Namespace, servers: dict[str, str], chats: list[list[str]]) -> dict[str, dict]:
    """The figures of both servers by the number of clients."""
    counts = [int(count) for count in args.clients.split(",")]
    found: dict[tuple[int, str], list[dict]] = {}
    for turn in range(-1, args.repeats):  # the first one warms up
        for count in counts:
            part = [chats[i % len(chats)] for i in range(max(count, args.chats))]
            for name in np.roll(list(servers), turn).tolist():
                run = asyncio.run(send(servers[name], part[:2] if turn < 0 else part, count, args.new))
                if turn >= 0:
                    found.setdefault((count, name), []).append(run)
    return {str(count): {name: summary(found[count, name]) for name in servers} for count in counts}


async def send(url: str, chats: list[list[str]], count: int, new: int) -> dict:
    """Sends the chats from ``count`` clients. Returns seconds, tokens, and the latencies of each answer."""
    left, times = iter(chats), {"first": [], "between": []}
    began = time.perf_counter()
    once = httpx.Limits(max_keepalive_connections=0)  # llama.cpp's server closes a connection after a stream
    async with httpx.AsyncClient(base_url=url, timeout=900, limits=once) as client:

        async def work() -> None:
            for chat in left:
                messages = []
                for turn in chat:
                    messages.append({"role": "user", "content": turn})
                    messages.append({"role": "assistant", "content": await read_answer(client, messages, new, times)})

        await asyncio.gather(*(work() for _ in range(count)))
    answers = len(times["first"])
    return {"seconds": time.perf_counter() - began, "tokens": answers * new, **times}


async def read_answer(client: httpx.AsyncClient, messages: list[dict], new: int, times: dict) -> str:
    """The text of an answer of ``new`` tokens. Adds its latencies in seconds to ``times``."""
    body = dict(model=NAME, messages=messages, max_tokens=new, temperature=0, ignore_eos=True, stream=True)
    began, first, last, text = time.perf_counter(), 0.0, 0.0, ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            choices = json.loads(line[6:])["choices"] if line.startswith("data: {") else []
            if choices and (part := choices[0]["delta"].get("content")):
                last = time.perf_counter()
                first = first or last
                text += part
    times["first"].append(first - began)
    times["between"].append((last - first) / (new - 1))
    return text


def summary(runs: list[dict]) -> dict:
    """Tokens a second by run; median and 95 % of the latencies in milliseconds, over all answers."""
    found: dict = {"tokens_per_second": [run["tokens"] / run["seconds"] for run in runs]}
    for name in ("first", "between"):
        values = 1000 * np.concatenate([run[name] for run in runs])
        found[name] = [float(np.quantile(values, q)) for q in (0.5, 0.95)]
    return found


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--draft", help="specjax's draft, a head or a model")
    parser.add_argument("--quantize", default="stored", help="the form of specjax's weights")
    parser.add_argument("--prompts", type=Path, required=True, help="a file of JSON lines with two turns each")
    parser.add_argument("--clients", default="1,4,16,64")
    parser.add_argument("--chats", type=integer(1), default=6, help="the least number of chats of a run")
    parser.add_argument("--repeats", type=integer(1), default=2)
    parser.add_argument("--new", type=integer(2), default=64, help="new tokens of an answer")
    parser.add_argument("--slots", type=integer(1), default=16)
    parser.add_argument("--capacity", type=integer(1), default=1024)
    parser.add_argument("--blocks", type=integer(1), help="blocks of specjax's cache (default fixed slots)")
    parser.add_argument("--output", type=Path, help="path of the two files, without suffix (default in docs/results)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
