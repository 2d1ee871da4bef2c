"""``specjax compare``: measures methods against plain decoding on the same prompts."""

import argparse
import json

from ..errors import RequestError
from .arguments import (
    add_chat_argument,
    add_model_arguments,
    add_new_tokens_argument,
    add_prompts_arguments,
    check_method,
    check_output,
    prepare_conversations,
    prepare_prompts,
    write_output,
)
from .drafting import add_drafting_flags, given_drafting
from .loading import load_given_drafts, load_target
from .parser import integer, name, path
from .terminal import print_table, progress_bar, status


def add_command(commands) -> None:
    about = "measure methods against plain decoding on the same prompts"
    command = commands.add_parser(
        "compare",
        usage="specjax compare [option ...]",
        help=about,
        description=f"{about}; each method gets its own drafting options",
    )
    command.set_defaults(handler=run)
    add = command.add_argument
    add("--methods", help="names separated by commas; by default all that the given models allow")
    add_prompts_arguments(command, "all of the file, or 16")
    add_chat_argument(command)
    add_new_tokens_argument(command)
    add(
        "--repeats",
        type=integer(1),
        default=1,
        metavar="N",
        help="runs of each prompt, whose median counts (default 1)",
    )
    add(
        "--rule",
        type=name,
        default="auto",
        help="acceptance rule of all methods (default auto); for a lossy rule the report says how far texts are from "
        "the target's",
    )
    add("--shares", action="store_true", help="also measure the share of a round that drafting takes")
    add("--output", type=path, metavar="FILE", help="also write the JSON to this file")
    add("--json", action="store_true", help="print one JSON object")
    add_model_arguments(command, apart=True)
    add_drafting_flags(command)


def run(args: argparse.Namespace) -> None:
    """Measures the methods, and prints a table or JSON."""
    from ..drafters import METHODS
    from ..drafts import load_drafts
    from ..evaluation import compare, left_out, report

    everything, drafting = args.methods in (None, "all"), given_drafting(args)
    methods = list(METHODS) if everything else [method.strip() for method in args.methods.split(",") if method.strip()]
    _check_methods(args, methods, everything, drafting)
    check_output(args.output)
    prompts = prepare_conversations(args) if args.chat else prepare_prompts(args)
    with status("loading"):
        target = load_target(args)
        drafts = load_drafts(target, load_given_drafts(args, target))
        reasons = left_out(target, methods, drafts, **drafting) if everything else {}
    with status("preparing prompts"):
        prompts = prompts(target)
    with progress_bar("comparing") as progress:
        options = dict(drafting, rule=args.rule, max_new_tokens=args.max_new_tokens, repeats=args.repeats)
        options |= dict(shares=args.shares)
        fit = [method for method in methods if method not in reasons]
        measured = compare(target, fit, prompts, draft=drafts, progress=progress, **options) | {"left_out": reasons}
    measured["settings"]["chat"] = args.chat
    write_output(args.output, json.dumps(measured, indent=2) + "\n")
    if args.json:
        print(json.dumps(measured))
    else:
        print_table(report.table(measured), report.notes(measured))


def _check_methods(args: argparse.Namespace, methods: list[str], everything: bool, drafting: dict) -> None:
    """Checks each method as ``check_method`` does, before a model is loaded.

    Where the user asks for all methods, it skips those that need more drafts.
    """
    from ..drafter import Models
    from ..drafters import METHODS, needs_of
    from ..evaluation.comparison import select_options

    if not methods:
        raise RequestError(f"--methods is empty; name some of {', '.join(METHODS)}")
    for method in methods:
        needs = needs_of(method)
        if not everything or not isinstance(needs, Models) or needs.least <= len(args.draft):
            check_method(args, method, select_options(method, drafting))
