"""``specjax doctor``: whether drafting helps, by how much, and the reasons where it does not."""

import argparse
import dataclasses
import json
from typing import Any

from ..errors import RequestError
from .arguments import (
    HOSTS,
    METHOD_EXAMINED,
    MODELS_TOGETHER,
    Output,
    Prompts,
    check_method,
    choose_method,
    prepare_prompts,
)
from .drafting import drafting_flags, drafting_options
from .fields import flag, flags_of
from .loading import load_given_drafts, load_target
from .output import check_output, write_output
from .terminal import print_lines, print_table, progress_bar, status


@dataclasses.dataclass(frozen=True)
class Doctor:
    """The flags of the command.

    Attributes:
      batch: rows that are decoded together (default 1 and 8).
      temperature: temperature of the requests (default 0 and 1).
      max_new_tokens: new tokens after each prompt.
      device: plan the speed for a device that is not at hand, such as v5e:1 or h100:1; acceptance
        is measured here.
    """

    batch: tuple[int, ...] | None = flag(None, action="append", least=1, most=4096)
    temperature: tuple[float, ...] | None = flag(None, action="append")
    max_new_tokens: int = flag(64, least=8)
    device: str | None = flag(None, metavar="NAME:SHAPE")


FLAGS = (
    {"options": flags_of(Doctor) | flags_of(Output), "prompts": flags_of(Prompts)}
    | MODELS_TOGETHER
    | METHOD_EXAMINED
    | drafting_flags()
    | HOSTS
)
COMMON = ("model", "draft", "method", "prompts", "batch", "temperature", "device", "output", "json")


def read_questions(args: argparse.Namespace) -> list[list[dict]]:
    """The conversations of ``--prompts``, each up to the first turn of the user."""
    from ..tools.evaluate import read_conversations

    if args.prompts is None:
        raise RequestError("--chat needs --prompts; name a file of JSON lines with turns or messages")
    conversations = read_conversations(args.prompts)[: args.num_prompts]
    first = lambda messages: 1 + [message["role"] for message in messages].index("user")
    return [messages[: first(messages)] for messages in conversations]


def run(args: argparse.Namespace) -> None:
    """Examines the pair, and prints the answer and its figures, or JSON."""
    from ..parallel import mesh_of, use_mesh
    from ..tools.doctor import examination
    from ..tools.doctor import report as words
    from ..tools.plan.devices import compile_only, parse_device

    method = choose_method(args)
    drafting = drafting_options(args)
    check_method(args, method, drafting)
    fields = dict(batches=args.batch, temperatures=args.temperature, max_new_tokens=args.max_new_tokens)
    settings = {name: value for name, value in (fields | {"device": args.device}).items() if value not in (None, [])}
    examination.check(method)
    examination.ExamineSettings(**settings)
    check_output(args)
    if args.device:
        compile_only(*parse_device(args.device))
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
