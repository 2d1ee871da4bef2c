"""``specjax verify``: checks that a method leaves the target's output as it is."""

import argparse
import json

from ..tools.evaluate import lossless
from ..tools.evaluate.planted_faults import FAULTS
from .arguments import (
    HOSTS,
    METHOD_EXAMINED,
    MODELS,
    NEW_TOKENS,
    Output,
    Prompts,
    check_method,
    choose_method,
    prepare_conversations,
    prepare_prompts,
)
from .drafting import drafting_flags, drafting_options
from .fields import flags_of
from .loading import load_given_drafts, load_target
from .sampling import sampling_flags, sampling_options
from .terminal import progress_bar, status

_PROMPTS = 4
_TOKENS = 32
"""The number of held-out prompts, and their tokens: few, since every draw reads its prompt."""


_FORMS = {
    "samples": dict(least=1, most=10_000_000),
    "tokens": dict(least=1, most=1024),
    "inject": dict(
        choices=FAULTS, metavar="FAULT", help=f"plant a known wrong rule, which must be found: {', '.join(FAULTS)}"
    ),
}
_NUM_PROMPTS = {"num_prompts": dict(default=_PROMPTS, help="number of prompts to use")}
FLAGS = (
    {"options": flags_of(lossless.verify, *_FORMS, forms=_FORMS) | NEW_TOKENS | flags_of(Output, "json")}
    | {"prompts": flags_of(Prompts, forms=_NUM_PROMPTS)}
    | MODELS
    | METHOD_EXAMINED
    | sampling_flags(temperature=dict(default=1.0), seed=dict(default=0))
    | drafting_flags()
    | HOSTS
)
COMMON = ("model", "draft", "method", "prompts", "num_prompts", "samples", "tokens", "temperature", "json")


def run(args: argparse.Namespace) -> int:
    """Checks a method against plain decoding. Returns 1 where they disagree."""
    from ..drafters import default_method
    from ..requests.chat import end_of_turn_ids
    from ..text.drafts import load_drafts
    from ..text.generator import Generator

    sampling = sampling_options(args)
    drafting = drafting_options(args)
    check_method(args, choose_method(args), drafting)
    prompts = prepare_conversations(args) if args.chat else prepare_prompts(args, _TOKENS)
    with status("loading"):
        target = load_target(args)
        plain = Generator(target, "none")
        drafts = load_drafts(target, load_given_drafts(args, target))
        name = args.method or default_method(drafts)
        method = Generator(target, name, drafts, **drafting, rule=args.rule)
    with status("preparing prompts"):
        prompts = prompts(target)
    if args.chat and not args.ignore_eos:
        sampling["stop_token_ids"] = [*sampling.get("stop_token_ids", ()), *end_of_turn_ids(target.tokenizer)]
    with progress_bar("verifying") as progress:
        setting = {name: getattr(args, name) for name in ("samples", "tokens", "max_new_tokens", "seed", "inject")}
        report = lossless.verify(plain, method, prompts, **setting, progress=progress, **sampling)
    if args.json:
        print(json.dumps(report))
    else:
        print(*lossless.lines(report), sep="\n")
    return 0 if report["agree"] else 1
