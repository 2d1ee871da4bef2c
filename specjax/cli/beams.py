"""``specjax beams``: the likeliest continuations of prompts, by beam search."""

import argparse
import dataclasses
import json

from .arguments import (
    add_adapter_argument,
    add_dtype_argument,
    add_mesh_argument,
    add_new_tokens_argument,
    add_quantize_argument,
    add_revision_argument,
)
from .hosts import add_host_arguments
from .loading import load_target
from .parser import integer, name
from .terminal import status

_MOST_BEAMS = 1024


def add_command(commands) -> None:
    about = "search the likeliest continuations of prompts"
    command = commands.add_parser(
        "beams", usage="specjax beams --prompt TEXT [option ...]", help=about, description=about
    )
    command.set_defaults(handler=run, kv_quantize=None)
    add = command.add_argument
    add(
        "--prompt",
        action="append",
        required=True,
        type=name,
        metavar="TEXT",
        help="text to continue; may be given several times",
    )
    add("--num-beams", type=integer(1, _MOST_BEAMS), default=4, metavar="N", help="continuations to keep (default 4)")
    add(
        "--length-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="exponent of the length that divides a log-probability (default 1)",
    )
    add(
        "--stop-token-ids",
        type=int,
        nargs="+",
        default=[],
        metavar="ID",
        help="tokens that end a beam, beside the model's own",
    )
    add_new_tokens_argument(command)
    add("--json", action="store_true", help="print one JSON object")
    add(
        "--model",
        type=name,
        default="tiny-python",
        help="an embedded name, a directory or a hub id (default tiny-python)",
    )
    add_revision_argument(command)
    add_dtype_argument(command)
    add_adapter_argument(command)
    add_quantize_argument(command)
    add_mesh_argument(command)
    add_host_arguments(command)


def run(args: argparse.Namespace) -> None:
    """Searches, and prints the score and the text of each beam."""
    from ..beam_search import beam_search

    with status("loading"):
        target = load_target(args)
    options = {key: getattr(args, key) for key in ("num_beams", "max_new_tokens", "length_penalty", "stop_token_ids")}
    with status("compiling and searching"):
        found = beam_search(target, args.prompt, **options)
    if args.json:
        rows = zip(args.prompt, found)
        print(json.dumps([{"prompt": prompt, "beams": list(map(dataclasses.asdict, beams))} for prompt, beams in rows]))
        return
    for prompt, beams in zip(args.prompt, found):
        print(f"{prompt!r}")
        for beam in beams:
            print(f"{beam.score:9.4f}  {beam.text!r}")
