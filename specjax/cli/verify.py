"""``specjax verify``: checks that a method leaves the target's output as it is."""

import argparse
import json

from ..evaluation.faults import FAULTS
from .arguments import (
    add_chat_argument,
    add_method_arguments,
    add_model_arguments,
    add_new_tokens_argument,
    add_prompts_arguments,
    add_sampling_arguments,
    check_method,
    choose_method,
    given_sampling,
    prepare_conversations,
    prepare_prompts,
)
from .drafting import add_drafting_flags, given_drafting
from .loading import load_given_drafts, load_target
from .parser import integer
from .terminal import progress_bar, status

_PROMPTS, _TOKENS = 4, 32
"""The number of held-out prompts, and their tokens: few, since every draw reads its prompt."""

_MOST_SAMPLES, _MOST_TOKENS = 10_000_000, 1024


def add_command(commands) -> None:
    about = "check that a method does not change the output; exit code 1 if it does"
    command = commands.add_parser("verify", usage="specjax verify [option ...]", help=about, description=about)
    command.set_defaults(handler=run, num_prompts=_PROMPTS)
    add = command.add_argument
    add_prompts_arguments(command, str(_PROMPTS))
    add_chat_argument(command)
    add_new_tokens_argument(command)
    add(
        "--samples",
        type=integer(1, _MOST_SAMPLES),
        default=512,
        metavar="N",
        help="draws for each prompt and method (default 512)",
    )
    add(
        "--tokens",
        type=integer(1, _MOST_TOKENS),
        default=3,
        metavar="N",
        help="compare the first N tokens of the draws (default 3)",
    )
    add("--inject", metavar="FAULT", help=f"plant a known wrong rule, which the check must find: {', '.join(FAULTS)}")
    add("--json", action="store_true", help="print one JSON object")
    add_model_arguments(command, apart=True)
    add_method_arguments(command)
    add_sampling_arguments(command, temperature=1.0)
    add_drafting_flags(command)


def run(args: argparse.Namespace) -> int:
    """Checks a method against plain decoding. Returns 1 where they disagree."""
    from ..drafters import default_method
    from ..drafts import load_drafts
    from ..evaluation import lossless
    from ..generate import Generator
    from ..requests.chat import end_of_turn_ids

    sampling, drafting = given_sampling(args), given_drafting(args)
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
