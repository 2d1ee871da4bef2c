"""``specjax evaluate``: runs methods over a public suite, and writes answers and a report."""

import argparse
import dataclasses
import json
from pathlib import Path

from ..core.checks import whole
from ..errors import RequestError
from ..parallel import several_hosts
from ..tools.evaluate.benchmark.run import AnswerOptions
from ..tools.evaluate.suites import SUITES
from .arguments import CHAT_TEMPLATE, HOSTS, MODELS, check_method
from .drafting import drafting_flags, drafting_options
from .fields import flag, flags_of
from .loading import load_given_drafts, load_target
from .output import check_directory
from .sampling import LARGEST_SEED, sampling_options
from .terminal import print_table, progress_bar, status


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """The flags of the command.

    Attributes:
      data: the suite's files as published; by default they come from the Hugging Face hub (extra
        eval).
      methods: names separated by commas; plain decoding is added.
      limit: the most questions of each task; by default all.
      shares: also measure the share of a round that drafting takes.
      batches: also measure batches of these sizes, such as 1,4,16.
      samples: also test with N draws after four prompts that methods have the law of plain
        decoding.
      output: the directory of the answers and of the report.
      json: print the report as one JSON object.
    """

    suite: str = flag(help=f"{', '.join(SUITES)}; small ships with specjax")
    data: Path | None = flag(None, metavar="DIR|FILE")
    methods: str = flag()
    limit: int | None = flag(None, least=1)
    shares: bool = False
    batches: tuple[int, ...] = flag((), metavar="SIZES")
    samples: int = flag(0, least=0)
    output: Path = flag(metavar="DIR")
    json: bool = False


_ANSWERS = dict(max_new_tokens=dict(least=1), seed=dict(least=0, most=LARGEST_SEED))
FLAGS = (
    {"options": flags_of(Evaluate) | CHAT_TEMPLATE | flags_of(AnswerOptions, forms=_ANSWERS)}
    | MODELS
    | drafting_flags()
    | HOSTS
)
COMMON = ("suite", "methods", "output", "model", "draft", "limit", "max_new_tokens", "temperature", "data", "json")


def run(args: argparse.Namespace) -> None:
    """Answers the questions that are left, and writes the report."""
    from ..text.drafts import load_drafts
    from ..tools.evaluate.benchmark import answers, html, report
    from ..tools.evaluate.benchmark.more_measurements import read_or_measure
    from ..tools.evaluate.benchmark.run import run_suite
    from ..tools.evaluate.suites import find_suite
    from ..tools.evaluate.suites.files import read_questions

    suite = find_suite(args.suite)
    drafting = drafting_options(args)
    methods = [method.strip() for method in args.methods.split(",") if method.strip()]
    _check(args, methods, drafting)
    check_directory(args.output)
    answers.check_directory(args.output)
    questions = read_questions(suite, args.data, args.limit)
    with status("loading"):
        target = load_target(args)
        drafts = load_drafts(target, load_given_drafts(args, target))
    settings = {field.name: getattr(args, field.name) for field in dataclasses.fields(AnswerOptions)}
    try:
        with progress_bar("evaluating") as progress:
            inputs = suite, questions, methods, args.output
            finished = run_suite(target, *inputs, draft=drafts, progress=progress, **settings, **drafting)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the same command continues in {args.output}") from None
    with status("measuring and writing the report"):
        asked = dict(shares=args.shares, batches=args.batches, samples=args.samples)
        further = read_or_measure(finished, args.output, **asked)
        result = report.make_report(finished, suite, questions, further)
        answers.replace_text(args.output / "report.json", json.dumps(result, indent=2) + "\n")
        answers.replace_text(args.output / "report.html", html.page(result))
    if args.json:
        print(json.dumps(result))
    else:
        resumed = [f"{finished.resumed} of {result['settings']['questions']} questions were answered by earlier runs"]
        print_table(report.table(result), report.notes(result) + resumed * bool(finished.resumed))
        print(f"report: {args.output / 'report.html'}")


def _check(args: argparse.Namespace, methods: list[str], drafting: dict) -> None:
    """Checks everything that needs no model, before one is loaded."""
    from ..drafters import METHODS
    from ..requests.limits import MOST_PROMPTS
    from ..tools.evaluate.comparison import select_options

    if several_hosts():
        raise RequestError("specjax evaluate runs on one host; leave out --coordinator and its companions")
    if not methods:
        raise RequestError(f"--methods is empty; name some of {', '.join(METHODS)}")
    for method in methods:
        check_method(args, method, select_options(method, drafting))
    sampling_options(args)
    if args.shares and args.draft_mesh is not None:
        raise RequestError(
            "shares are measured with drafts on the target's devices; leave out --shares or --draft-mesh"
        )
    for size in args.batches:
        whole("--batches", size, most=MOST_PROMPTS)
    if args.samples and not args.temperature:
        raise RequestError("--samples tests the law of sampled texts; give --temperature above 0, or leave it out")
