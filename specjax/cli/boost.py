"""``specjax boost``: gives a model the drafter that makes it fastest here."""

import argparse
import dataclasses
import os
import sys
from pathlib import Path

from ..errors import RequestError
from ..text.boosted import LOADING
from ..text.machine import keep_programs
from ..tools.boost import BoostOptions, boost
from ..tools.boost.candidates import CANDIDATES
from ..tools.boost.options import DEVICES
from ..tools.evaluate.suites import SUITES
from .arguments import MODELS
from .fields import flag, flags_of
from .loading import load_target
from .output import check_directory
from .sampling import LARGEST_SEED
from .terminal import status, step_bar


@dataclasses.dataclass(frozen=True)
class Boost:
    """The flags of the command.

    Attributes:
      suite: also prove the speed on a suite; questions that share words with it are left out of the
        training.
      suite_data: the suite's files as published; by default they come from the Hugging Face hub
        (extra eval).
      limit: the most questions of each task of the suite; by default all.
      output: directory of the drafter, the report and all work; the same command continues there.
    """

    suite: str | None = flag(None, help=f"{', '.join(SUITES)}; also prove the speed on it")
    suite_data: Path | None = flag(None, metavar="DIR|FILE")
    limit: int | None = flag(None, least=1)
    output: Path = flag(metavar="DIR")


_FORMS = {
    "hours": dict(least=0.0),
    "tokens": dict(least=1),
    "drafter": dict(choices=("auto", *CANDIDATES)),
    "device": dict(choices=DEVICES),
    "data": dict(nargs="+", metavar="PATH", type=str),
    "questions": dict(least=2),
    "new_tokens": dict(least=1),
    "seed": dict(least=0, most=LARGEST_SEED),
}
FLAGS = {
    "options": flags_of(Boost) | flags_of(BoostOptions, forms=_FORMS),
    "models": {name: MODELS["models"][name] for name in ("model", *LOADING)},
}
COMMON = ("model", "output", "hours", "tokens", "data", "device", "drafter", "suite")


def run(args: argparse.Namespace) -> None:
    """Boosts the model, and prints how to use the result."""
    from ..tools.boost.journal import check_directory as check_boost
    from ..tools.evaluate.suites import find_suite
    from ..tools.evaluate.suites.files import read_questions
    from ..training.sources import make_sources

    # 1. Check everything that needs no model.
    if args.suite is None and (args.suite_data is not None or args.limit is not None):
        raise RequestError("--suite-data and --limit belong to --suite; name a suite, or leave them out")
    options = BoostOptions(**{field.name: getattr(args, field.name) for field in dataclasses.fields(BoostOptions)})
    for source in make_sources(options.data):
        source.list_files()
    check_directory(args.output)
    check_boost(args.output, {})
    suites = []
    if args.suite is not None:
        suite = find_suite(args.suite)
        suites.append((suite, read_questions(suite, args.suite_data, args.limit)))
    # 2. Load the target, and boost it. Each part of a training compiles the same programs.
    keep_programs()
    with status("loading"):
        target = load_target(args)
    model = os.path.abspath(args.model) if os.path.exists(args.model) else args.model
    try:
        with step_bar() as show:
            say = lambda line: print(f"specjax: {line}", file=sys.stderr, flush=True)
            loading = {name: getattr(args, name) for name in LOADING}
            inputs = target, model, args.output, options
            chosen = boost(*inputs, loading=loading, suites=suites, say=say, progress=show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"what was finished is in {args.output}, and the same command continues") from None
    if options.device == "plan":
        return
    # 3. Print how to use it.
    print(f"{args.output}: method {chosen.method}; see {args.output / 'report.html'}")
    if chosen.method != "none":
        print(f"specjax serve --boost {args.output}")
