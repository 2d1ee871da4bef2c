"""``specjax evaluate``: runs methods over a public suite of questions, and writes answers and a report."""

import argparse
import json

from ..checks import whole
from ..errors import RequestError
from ..parallel import several_hosts
from .arguments import (
    LARGEST_SEED,
    add_model_arguments,
    add_new_tokens_argument,
    check_method,
)
from .drafting import add_drafting_flags, given_drafting
from .loading import load_given_drafts, load_target
from .parser import integer, layers, name, path
from .terminal import print_table, progress_bar, status


def add_command(commands) -> None:
    about = "run methods over a public suite of questions, and write answers and a report"
    command = commands.add_parser(
        "evaluate",
        usage="specjax evaluate --suite SUITE --output DIR [option ...]",
        help=about,
        description=f"{about}; the same command resumes after an interruption",
    )
    command.set_defaults(handler=run)
    add = command.add_argument
    add(
        "--suite",
        type=name,
        required=True,
        help="spec-bench, mt-bench, humaneval, gsm8k, cnn_dm, xsum, mmlu, hellaswag, squad, class-eval, alpaca, "
        "chatbot-arena, math-500, or small, which ships with specjax",
    )
    add(
        "--data",
        type=path,
        metavar="DIR|FILE",
        help="the suite's files as published; by default they come from the Hugging Face hub (extra eval)",
    )
    add("--methods", type=name, required=True, help="names separated by commas; plain decoding is added")
    add("--limit", type=integer(1), metavar="N", help="the most questions of each task; by default all")
    add_new_tokens_argument(command)
    add("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (default 0)")
    add("--seed", type=integer(0, LARGEST_SEED), default=0, metavar="N", help="seed of the random numbers (default 0)")
    add("--shares", action="store_true", help="also measure the share of a round that drafting takes")
    add(
        "--batches",
        type=layers,
        default=(),
        metavar="SIZES",
        help="also measure batches of these sizes, such as 1,4,16",
    )
    add(
        "--samples",
        type=integer(0),
        default=0,
        metavar="N",
        help="also test with N draws after four prompts that methods have the law of plain decoding (default 0)",
    )
    add("--output", type=path, required=True, metavar="DIR", help="the directory of the answers and of the report")
    add("--json", action="store_true", help="print the report as one JSON object")
    add_model_arguments(command, apart=True)
    add_drafting_flags(command)


def run(args: argparse.Namespace) -> None:
    """Answers the questions that are left, and writes the report."""
    from ..drafts import load_drafts
    from ..evaluation.benchmark import html, report
    from ..evaluation.benchmark.answers import replace_text
    from ..evaluation.benchmark.further import read_or_measure
    from ..evaluation.benchmark.run import run_suite
    from ..evaluation.suites import find_suite
    from ..evaluation.suites.files import read_questions

    suite, drafting = find_suite(args.suite), given_drafting(args)
    methods = [method.strip() for method in args.methods.split(",") if method.strip()]
    _check(args, methods, drafting)
    questions = read_questions(suite, args.data, args.limit)
    with status("loading"):
        target = load_target(args)
        drafts = load_drafts(target, load_given_drafts(args, target))
    settings = dict(max_new_tokens=args.max_new_tokens, temperature=args.temperature, seed=args.seed)
    try:
        with progress_bar("evaluating") as progress:
            given = suite, questions, methods, args.output
            finished = run_suite(target, *given, draft=drafts, progress=progress, **settings, **drafting)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the same command continues in {args.output}") from None
    with status("measuring and writing the report"):
        asked = dict(shares=args.shares, batches=args.batches, samples=args.samples)
        further = read_or_measure(finished, args.output, **asked)
        made = report.make_report(finished, suite, questions, further)
        replace_text(args.output / "report.json", json.dumps(made, indent=2) + "\n")
        replace_text(args.output / "report.html", html.page(made))
    if args.json:
        print(json.dumps(made))
    else:
        resumed = [f"{finished.resumed} of {made['settings']['questions']} questions were answered by earlier runs"]
        print_table(report.table(made), report.notes(made) + resumed * bool(finished.resumed))
        print(f"report: {args.output / 'report.html'}")


def _check(args: argparse.Namespace, methods: list[str], drafting: dict) -> None:
    """Checks everything that needs no model, before one is loaded."""
    from ..drafters import METHODS
    from ..evaluation.comparison import select_options
    from ..requests.limits import MOST_PROMPTS
    from .arguments import given_sampling

    if several_hosts():
        raise RequestError("specjax evaluate runs on one host; leave out --coordinator and its companions")
    if not methods:
        raise RequestError(f"--methods is empty; name some of {', '.join(METHODS)}")
    for method in methods:
        check_method(args, method, select_options(method, drafting))
    given_sampling(args)
    if args.shares and args.draft_mesh is not None:
        raise RequestError(
            "shares are measured with drafts on the target's devices; leave out --shares or --draft-mesh"
        )
    for size in args.batches:
        whole("--batches", size, most=MOST_PROMPTS)
    if args.samples and not args.temperature:
        raise RequestError("--samples tests the law of sampled texts; give --temperature above 0, or leave it out")
