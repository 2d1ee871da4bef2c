"""Measures specjax beside OpenVINO GenAI, llama.cpp and transformers.

    python scripts/benchmarks/compare_peers [--model MODEL.gguf --draft DRAFT --prompts FILE --chat] [--peers llama.cpp]

All have the same weights, prompts and number of new tokens; forms of fewer bits are rounded from the
same numbers. Decoding is greedy, at batch 1. Every program stays in memory, and the runs alternate.
Each program runs plain and with its ways to draft. The packages of the peers:

    openvino        openvino-genai, gguf
    llama.cpp       xllamacpp, gguf
    transformers    torch

A peer without its packages is named and left out. Weights in a peer's own format are written to
--converted once. Writes peers_<model>_<platform>.json, and the page peers.md.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

import jax

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of page.py

import llama_cpp_peer
import openvino_peer
import specjax_peer
import transformers_peer
from contender import Answer, Contender
from page import Result, arguments, measured
from peers_page import save, show, summary
from rich.console import Console
from rich.progress import track

import specjax
from specjax.cli.parser import integer
from specjax.tools.evaluate import held_out_prompts, read_prompts

PEERS = {"openvino": openvino_peer, "llama.cpp": llama_cpp_peer, "transformers": transformers_peer}
"""Modules with ``contenders(args, tokenizer, longest)``."""


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    peers = [peer for peer in args.peers.split(",") if peer]
    if unknown := set(peers) - PEERS.keys():
        fail(f"the peer {min(unknown)!r} is unknown; use one of {', '.join(PEERS)}")
    try:
        target = specjax.load(args.model)
        prompts = read_ids(args, target.tokenizer)
        longest = max(map(len, prompts))
        contenders = list(specjax_peer.contenders(args, target.tokenizer, longest))
    except specjax.SpecjaxError as error:
        fail(str(error))
    missing = {}
    for peer in peers:
        try:
            contenders += PEERS[peer].contenders(args, target.tokenizer, longest)
        except ImportError as error:
            missing[peer] = str(error)
            print(f"{peer} is left out: {error}", file=sys.stderr)
    seconds, answers = alternate(contenders, prompts)
    conditions = measured([name for name in (args.model, args.draft) if name])
    report = summary(args, conditions, seconds, answers) | {"left_out": missing}
    show(report)
    part = f"{Path(args.model).stem}_{jax.default_backend()}"
    save(report, Result(args.output.name, folder=args.output.parent) if args.output else Result("peers", part))


def fail(message: str) -> NoReturn:
    print(f"compare_peers: error: {message}", file=sys.stderr)
    sys.exit(2)


def read_ids(args: argparse.Namespace, tokenizer) -> list[list[int]]:
    """The token ids of the first ``--num-prompts`` prompts."""
    texts = read_prompts(args.prompts) if args.prompts else held_out_prompts(tokenizer, args.num_prompts, 128)
    if not args.chat:
        return [tokenizer.encode(text) for text in texts[: args.num_prompts]]
    turns = [[{"role": "user", "content": text}] for text in texts[: args.num_prompts]]
    return [tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False) for turn in turns]


def alternate(
    contenders: list[Contender], prompts: list
) -> tuple[dict[Contender, list[float]], dict[Contender, list[Answer]]]:
    """The seconds of each contender's whole call for every prompt, and its answers.

    The order rotates. The first two rounds compile programs and do not count.
    """
    seconds: dict[Contender, list] = {one: [] for one in contenders}
    answers: dict[Contender, list] = {one: [] for one in contenders}
    rounds = [min(prompts, key=len), max(prompts, key=len), *prompts]
    shown = track(rounds, "measuring", console=Console(stderr=True), disable=not sys.stderr.isatty())
    for turn, prompt in enumerate(shown):
        for place in range(len(contenders)):
            one = contenders[(turn + place) % len(contenders)]
            began = time.perf_counter()
            answer = one.run(prompt)
            seconds[one].append(time.perf_counter() - began)
            answers[one].append(answer)
    return {one: times[2:] for one, times in seconds.items()}, {one: found[2:] for one, found in answers.items()}


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="tiny-python", help="a GGUF file, or a checkpoint of Llama's architecture")
    parser.add_argument("--label", help="words for the model on the page, such as its origin (default --model)")
    parser.add_argument("--draft", help="specjax's draft, a head or a model")
    parser.add_argument("--peer-draft", help="a language model that the peers draft with")
    parser.add_argument("--peers", default=",".join(PEERS), help="peers separated by commas (default all)")
    parser.add_argument("--forms", default="bfloat16,int8,int4", help="forms of specjax's weights")
    parser.add_argument("--methods", default="none,auto", help="methods of specjax")
    parser.add_argument("--prompts", type=Path, help="a file of JSON lines (default held-out code)")
    parser.add_argument("--chat", action="store_true", help="write the prompts by the chat template")
    parser.add_argument("--num-prompts", type=integer(1), default=8)
    parser.add_argument("--max-new-tokens", type=integer(1), default=128)
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
