"""``specjax doctor``: whether drafting helps, by how much, and the reasons where it does not."""

import argparse
import json
from typing import Any

from ..errors import RequestError
from .arguments import (
    add_chat_argument,
    add_method_arguments,
    add_model_arguments,
    add_prompts_arguments,
    check_method,
    check_output,
    choose_method,
    prepare_prompts,
    write_output,
)
from .drafting import add_drafting_flags, given_drafting
from .loading import load_given_drafts, load_target
from .parser import integer, name, path
from .terminal import print_lines, print_table, progress_bar, status

_MOST_BATCH = 4096


def add_command(commands) -> None:
    about = "say whether drafting helps, by how much, and if not, why"
    command = commands.add_parser("doctor", usage="specjax doctor [option ...]", help=about, description=about)
    command.set_defaults(handler=run, draft_mesh=None)
    add = command.add_argument
    add_prompts_arguments(command, "all of the file, or 16")
    add_chat_argument(command)
    add(
        "--batch",
        type=integer(1, _MOST_BATCH),
        action="append",
        metavar="N",
        help="rows that are decoded together; may be given several times (default 1 and 8)",
    )
    add(
        "--temperature",
        type=float,
        action="append",
        metavar="X",
        help="temperature of the requests; may be given several times (default 0 and 1)",
    )
    add(
        "--max-new-tokens",
        type=integer(8),
        default=64,
        metavar="N",
        help="new tokens after each prompt (default 64)",
    )
    add(
        "--device",
        type=name,
        metavar="NAME:SHAPE",
        help="plan the speed for a device that is not at hand, such as v5e:1 or h100:1; acceptance is measured here",
    )
    add("--output", type=path, metavar="FILE", help="also write the JSON to this file")
    add("--json", action="store_true", help="print one JSON object")
    add_model_arguments(command)
    add_method_arguments(command)
    add_drafting_flags(command)


def read_questions(args: argparse.Namespace) -> list[list[dict]]:
    """The conversations of ``--prompts``, each up to the first turn of the user."""
    from ..evaluation import read_conversations

    if args.prompts is None:
        raise RequestError("--chat needs --prompts; name a file of JSON lines with turns or messages")
    conversations = read_conversations(args.prompts)[: args.num_prompts]
    first = lambda messages: 1 + [message["role"] for message in messages].index("user")
    return [messages[: first(messages)] for messages in conversations]


def run(args: argparse.Namespace) -> None:
    """Examines the pair, and prints the answer and its figures, or JSON."""
    from ..parallel import mesh_of, use_mesh
    from ..planning.devices import parse_device
    from ..planning.doctor import examination, words

    method, drafting = choose_method(args), given_drafting(args)
    check_method(args, method, drafting)
    given = dict(batches=args.batch, temperatures=args.temperature, max_new_tokens=args.max_new_tokens)
    settings = {name: value for name, value in (given | {"device": args.device}).items() if value not in (None, [])}
    if args.device:
        parse_device(args.device)
    examination.check(method)
    examination.ExamineSettings(**settings)
    check_output(args.output)
    conversations = read_questions(args) if args.chat else None
    prompts = prepare_prompts(args) if conversations is None else lambda target: ()
    with status("loading"):
        target = load_target(args)
        drafts = load_given_drafts(args, target)
    with progress_bar("examining") as progress, use_mesh(mesh_of(target.model)):
        options: dict[str, Any] = dict(rule=args.rule, conversations=conversations, progress=progress)
        options |= settings | drafting
        report = examination.examine(target, prompts(target), method, drafts or None, **options)
    write_output(args.output, json.dumps(report, indent=2) + "\n")
    if args.json:
        print(json.dumps(report))
        return
    print_lines(words.answer(report))
    print_table(words.table(report), ())
