"""``specjax design``: the shapes of draft models that make decoding fastest, within a budget."""

import argparse
import json
from pathlib import Path

from ..errors import RequestError
from .arguments import add_dtype_argument, add_revision_argument
from .parser import fraction, integer, name, path
from .terminal import print_table, progress_bar, status


def add_command(commands) -> None:
    about = "find the shapes of draft models that make decoding fastest, within a number of weights or a time"
    command = commands.add_parser("design", help=about, description=about)
    command.set_defaults(handler=run)
    add = command.add_argument
    add(
        "--model",
        type=name,
        default="tiny-python",
        help="the target: an embedded name, a directory or a hub id; with --device a config.json will do "
        "(default tiny-python)",
    )
    add_revision_argument(command)
    add_dtype_argument(command)
    add(
        "--device",
        type=name,
        metavar="NAME:SHAPE",
        help="predict for devices that are not at hand, such as v5e:1 or h100:8; by default this device is measured",
    )
    add(
        "--budget",
        type=name,
        metavar="SIZE",
        help="the most weights of a draft (900K, 1.3B) or the longest time of a draft token (300us, 2ms); by default a "
        "tenth of the target's weights",
    )
    add("--batch", type=integer(1, 4096), default=1, metavar="N", help="rows of the batch (default 1)")
    add("--context", type=integer(1), default=256, metavar="N", help="tokens in the cache (default 256)")
    add(
        "--acceptance",
        type=fraction,
        default=0.7,
        metavar="X",
        help="the chance that a drafted token is accepted, for all shapes (default %(default)s)",
    )
    add("--output", type=path, metavar="DIR", help="write recipes of the first five shapes, design.json and a plot")
    add("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> None:
    """Times or plans drafts of several shapes, and prints the shapes within the budget."""
    from ..checkpoints.config import check_dtype, read_shape
    from ..checkpoints.load import load
    from ..planning import design_report
    from ..planning.design import Budget, design, measure_times, plan_times

    budget = args.budget and Budget.parse(args.budget)
    if args.output and args.output.exists():
        raise RequestError(f"--output {args.output} exists; name a new directory")
    sizes = dict(batch=args.batch, context=args.context)
    if args.device:
        config = read_shape(args.model).replace(dtype=check_dtype(args.dtype or "bfloat16"))  # as specjax plan
        with progress_bar("planning") as progress:
            times = plan_times(config, args.device, progress=progress, **sizes)
    else:
        with status("loading"):
            target = load(args.model, revision=args.revision, dtype=args.dtype)
        config = target.config
        with progress_bar("measuring") as progress:
            times = measure_times(target, progress=progress, **sizes)
    found = design(
        config,
        times,
        budget or Budget(config.num_weights / 10, False),
        acceptance=args.acceptance,
        context=args.context,
    )
    report = {"model": args.model, "device": args.device or "here"}
    report |= design_report.summary(found, times, acceptance=args.acceptance, context=args.context)
    if args.output:
        _write(report, times, args.output)
    if args.json:
        print(json.dumps(report))
    else:
        print_table(design_report.table(report), design_report.notes(report))


def _write(report: dict, times, directory: Path) -> None:
    from ..planning import design_report

    directory.mkdir(parents=True)
    (directory / "design.json").write_text(json.dumps(report, indent=1) + "\n")
    for rank in range(1, min(design_report.FIRST, len(report["shapes"])) + 1):
        file = directory / f"draft-{rank}.toml"
        file.write_text(design_report.recipe(report, rank, report["model"], file))
    design_report.plot(report, times, directory / "design.svg")
