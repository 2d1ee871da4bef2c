"""``specjax explain``: the choices of method auto on prompts, and the reasons."""

import argparse
import json

from .arguments import (
    add_model_arguments,
    add_new_tokens_argument,
    add_prompts_arguments,
    check_output,
    prepare_prompts,
    write_output,
)
from .loading import load_given_drafts, load_target
from .parser import integer, name, path
from .terminal import print_lines, status


def add_command(commands) -> None:
    about = "decode prompts by method auto, and tell its choices and their reasons"
    command = commands.add_parser("explain", help=about, description=about)
    command.set_defaults(handler=run)
    add = command.add_argument
    add_prompts_arguments(command, "all of the file, or 4")
    add_new_tokens_argument(command)
    add("--batch", type=integer(1, 16384), default=1, metavar="N", help="rows that are decoded together (default 1)")
    add("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (default 0)")
    add(
        "--costs",
        type=name,
        metavar="FILE",
        help="times that specjax tune --auto measured; by default those in the cache",
    )
    add("--output", type=path, metavar="FILE", help="write the report to this JSON file")
    add("--json", action="store_true", help="print one JSON object")
    add_model_arguments(command)


def run(args: argparse.Namespace) -> None:
    """Decodes the prompts, and prints the choices."""
    from ..planning.auto import explain

    check_output(args.output)
    prompts = prepare_prompts(args, count=4)
    with status("loading"):
        target = load_target(args)
        drafts = load_given_drafts(args, target)
    with status("compiling and decoding"):
        options = dict(costs=args.costs, max_new_tokens=args.max_new_tokens, temperature=args.temperature)
        report = explain(target, prompts(target), drafts, batch=args.batch, **options)
    write_output(args.output, json.dumps(report) + "\n")
    if args.json:
        print(json.dumps(report))
    else:
        print_lines(report["lines"])
