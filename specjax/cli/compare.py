"""``specjax compare``: measures methods against plain decoding on the same prompts."""

import argparse
import dataclasses
import json

from ..errors import RequestError
from ..tools.evaluate import compare
from .arguments import HOSTS, MODELS, NEW_TOKENS, Output, Prompts, check_method, prepare_conversations, prepare_prompts
from .drafting import drafting_flags, drafting_options
from .fields import flag, flags_of
from .loading import load_given_drafts, load_target
from .output import check_output, write_output
from .terminal import print_table, progress_bar, status


@dataclasses.dataclass(frozen=True)
class Compare:
    """The flags of the command beside those of the function.

    Attributes:
      methods: names separated by commas; by default all that the given models allow.
    """

    methods: str | None = flag(None, type=str)


_FORMS = {"repeats": dict(least=1), "shares": {}, "rule": {}}
FLAGS = (
    {"options": flags_of(Compare) | flags_of(compare, *_FORMS, forms=_FORMS) | NEW_TOKENS | flags_of(Output)}
    | {"prompts": flags_of(Prompts)}
    | MODELS
    | drafting_flags()
    | HOSTS
)
COMMON = ("model", "draft", "methods", "prompts", "num_prompts", "max_new_tokens", "repeats", "output", "json")


def run(args: argparse.Namespace) -> None:
    """Measures the methods, and prints a table or JSON."""
    from ..drafters import METHODS
    from ..text.drafts import load_drafts
    from ..tools.evaluate import left_out, report

    everything = args.methods in (None, "all")
    drafting = drafting_options(args)
    methods = list(METHODS) if everything else [method.strip() for method in args.methods.split(",") if method.strip()]
    _check_methods(args, methods, everything, drafting)
    check_output(args)
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
    from ..drafters import METHODS, needs_of
    from ..loop.drafter import Models
    from ..tools.evaluate.comparison import select_options

    if not methods:
        raise RequestError(f"--methods is empty; name some of {', '.join(METHODS)}")
    for method in methods:
        needs = needs_of(method)
        if not everything or not isinstance(needs, Models) or needs.least <= len(args.draft):
            check_method(args, method, select_options(method, drafting))
