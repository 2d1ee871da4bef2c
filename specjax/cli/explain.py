"""``specjax explain``: the choices of method auto on prompts, and the reasons."""

import argparse
import dataclasses
import json
from pathlib import Path

from .arguments import HOSTS, MODELS_TOGETHER, NEW_TOKENS, Output, Prompts, prepare_prompts
from .fields import flag, flags_of
from .loading import load_given_drafts, load_target
from .output import check_output, write_output
from .terminal import print_lines, status


@dataclasses.dataclass(frozen=True)
class Explain:
    """The flags of the command.

    Attributes:
      batch: rows that are decoded together.
      temperature: 0 is greedy.
      costs: times that specjax tune --auto measured; by default those in the cache.
    """

    batch: int = flag(1, least=1, most=16384)
    temperature: float = 0.0
    costs: str | None = flag(None, metavar="FILE")


_NUM_PROMPTS = {"num_prompts": dict(help="number of prompts to use; by default all of the file, or 4")}
FLAGS = (
    {"options": flags_of(Explain) | NEW_TOKENS | flags_of(Output)}
    | {"prompts": flags_of(Prompts, "prompts", "num_prompts", forms=_NUM_PROMPTS)}
    | MODELS_TOGETHER
    | HOSTS
)
COMMON = ("model", "draft", "prompts", "num_prompts", "max_new_tokens", "batch", "temperature", "output", "json")


def run(args: argparse.Namespace) -> None:
    """Decodes the prompts, and prints the choices."""
    from ..text.round_times import read_costs
    from ..tools.tune.auto import explain

    check_output(args)
    if args.costs is not None:
        read_costs(Path(args.costs))
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
