"""Measures specjax beside OpenVINO GenAI, llama.cpp and transformers.

    python scripts/benchmarks/compare_peers [--model tiny-python --draft tiny-python-draft] [--peers openvino,transformers]

All have the same weights, prompts and number of new tokens. Decoding is greedy, at batch 1. Every
program stays in memory, and the runs alternate. Each peer runs plain, with its prompt lookup and
with its draft, in several settings. Times are those of whole calls after a warm-up, prefill
included. The packages of the peers:

    openvino        openvino-genai, optimum-intel, torch
    llama.cpp       llama-cpp-python, gguf
    transformers    torch

A peer without its packages is named and left out. Weights in a peer's own format are written to
--converted once. Writes peers_<model>_<platform>.json, and the page peers.md.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import jax

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of page.py

import llama_cpp_peer
import numpy as np
import openvino_peer
import specjax_peer
import transformers_peer
from page import Result, arguments, measured
from peers_page import save, show
from rich.console import Console
from rich.progress import track

import specjax
from specjax.cli.parser import integer
from specjax.tools.evaluate import held_out_prompts, machine

PEERS = {"openvino": openvino_peer, "llama.cpp": llama_cpp_peer, "transformers": transformers_peer}
"""Modules with ``contenders(args, longest)``: functions from token ids to new token ids, by name."""


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    peers = [peer for peer in args.peers.split(",") if peer]
    if unknown := set(peers) - PEERS.keys():
        fail(f"the peer {min(unknown)!r} is unknown; use one of {', '.join(PEERS)}")
    try:
        target = specjax.load(args.model)
        prompts = [target.tokenizer.encode(p) for p in held_out_prompts(target.tokenizer, args.num_prompts, 128)]
        longest = max(map(len, prompts))
        contenders = specjax_peer.contenders(args, longest)
    except specjax.SpecjaxError as error:
        fail(str(error))
    missing = {}
    for peer in peers:
        try:
            contenders |= PEERS[peer].contenders(args, longest)
        except ImportError as error:
            missing[peer] = str(error)
            print(f"{peer} is left out: {error}", file=sys.stderr)
    seconds, tokens = alternate(contenders, prompts)
    conditions = measured((args.model, args.draft), f"specjax in {machine(target)['dtype']}")
    report = summary(args, conditions, seconds, tokens) | {"left_out": missing}
    show(report)
    part = f"{Path(args.model).name}_{jax.default_backend()}"
    save(report, Result(args.output.name, folder=args.output.parent) if args.output else Result("peers", part))


def fail(message: str) -> NoReturn:
    print(f"compare_peers: error: {message}", file=sys.stderr)
    sys.exit(2)


def alternate(contenders: dict[str, Callable], prompts: list) -> tuple[dict[str, np.ndarray], dict[str, list]]:
    """The seconds per new token of every contender for every prompt, and the new tokens.

    The order rotates. The first two rounds compile programs and do not count.
    """
    names = list(contenders)
    seconds, tokens = ({name: [] for name in names} for _ in range(2))
    rounds = [min(prompts, key=len), max(prompts, key=len), *prompts]
    shown = track(rounds, "measuring", console=Console(stderr=True), disable=not sys.stderr.isatty())
    for turn, prompt in enumerate(shown):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            began = time.perf_counter()
            new = contenders[name](prompt)
            seconds[name].append((time.perf_counter() - began) / len(new))
            tokens[name].append(list(map(int, new)))
    return {name: np.array(times[2:]) for name, times in seconds.items()}, {n: t[2:] for n, t in tokens.items()}


def summary(args: argparse.Namespace, measured_on: dict, seconds: dict[str, np.ndarray], tokens: dict) -> dict:
    """Medians and quartiles over prompts, and for each peer two ratios: plain, and the fastest methods."""
    rate = lambda name: float(np.median(1 / seconds[name]))
    fastest = lambda begins: max((name for name in seconds if name.startswith(begins)), key=rate)
    ratios = []
    for peer in PEERS:
        if any(name.startswith(peer) for name in seconds):
            for kind, ours, theirs in (
                ("plain", "specjax none", fastest(f"{peer} plain")),
                ("fastest", fastest("specjax"), fastest(peer)),
            ):
                ratio = spread(seconds[theirs] / seconds[ours])
                ratios.append({"peer": peer, "kind": kind, "of": ours, "to": theirs, **ratio})
    own = {"peer": "specjax", "kind": "fastest over plain", "of": fastest("specjax"), "to": "specjax none"}
    ratios.append(own | spread(seconds[own["to"]] / seconds[own["of"]]))
    same = lambda name: sum(a == b for a, b in zip(tokens[name], tokens["specjax none"]))
    rates = [{"decoding": name, "same_texts": same(name), **spread(1 / times)} for name, times in seconds.items()]
    word = lambda value: Path(value).name if Path(str(value)).is_dir() else str(value)  # no paths of this machine
    settings = {name: word(value) for name, value in vars(args).items() if name not in ("converted", "output")}
    settings["label"] = args.label or settings["model"]
    return {"conditions": measured_on, "settings": settings, "tokens_per_second": rates, "ratios": ratios}


def spread(values: np.ndarray) -> dict:
    return {"median": float(np.median(values)), "quartiles": [float(q) for q in np.percentile(values, (25, 75))]}


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="tiny-python")
    parser.add_argument("--label", help="words for the model on the page, such as its origin (default --model)")
    parser.add_argument("--draft", default="tiny-python-draft")
    parser.add_argument("--peers", default=",".join(PEERS), help="peers separated by commas (default all)")
    parser.add_argument("--methods", default="none,ngram,draft_model,switch", help="methods of specjax")
    parser.add_argument("--num-prompts", type=integer(1), default=8)
    parser.add_argument("--max-new-tokens", type=integer(1), default=128)
    parser.add_argument("--num-speculative-tokens", type=integer(1), default=5, help="for the methods of specjax")
    parser.add_argument(
        "--converted",
        type=Path,
        default=Path(tempfile.gettempdir()) / "specjax_peers",
        help="directory for weights in the peers' formats (default in the system's temporary directory)",
    )
    parser.add_argument("--output", type=Path, help="path of the two files, without suffix (default in docs/results)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
