"""``specjax design``: the shapes of draft models that make decoding fastest, within a budget."""

import argparse
import dataclasses
import json
from pathlib import Path

from ..core.checks import check_extra
from .arguments import Models
from .fields import flag, flags_of
from .output import check_new_directory
from .terminal import print_table, progress_bar, status


@dataclasses.dataclass(frozen=True)
class Design:
    """The flags of the command.

    Attributes:
      device: predict for devices that are not at hand, such as v5e:1 or h100:8, with a config.json
        as --model if you like; by default this device is measured.
      budget: the most weights of a draft (900K, 1.3B) or the longest time of a draft token (300us,
        2ms); by default a tenth of the target's weights.
      batch: rows of the batch.
      context: tokens in the cache.
      acceptance: the chance that a drafted token is accepted, for all shapes.
      output: write recipes of the first five shapes, design.json and a plot.
      json: print one JSON object.
    """

    device: str | None = flag(None, metavar="NAME:SHAPE")
    budget: str | None = flag(None, metavar="SIZE")
    batch: int = flag(1, least=1, most=4096)
    context: int = flag(256, least=1)
    acceptance: float = flag(0.7, least=0, most=1)
    output: Path | None = flag(None, metavar="DIR")
    json: bool = False


FLAGS = {"options": flags_of(Design), "models": flags_of(Models, "model", "revision", "dtype")}
COMMON = ("model", "device", "budget", "output", "json")


def run(args: argparse.Namespace) -> None:
    """Times or plans drafts of several shapes, and prints the shapes within the budget."""
    from ..checkpoints.config import check_dtype, read_shape
    from ..checkpoints.load import load
    from ..tools.design import report as design_report
    from ..tools.design.search import Budget, design, measure_times, plan_times
    from ..tools.plan.devices import compile_only, parse_device

    budget = args.budget and Budget.parse(args.budget)
    if args.output:
        check_new_directory(args.output)
        check_extra("plot", ("matplotlib",), "--output draws a plot, and it")
    if args.device:
        compile_only(*parse_device(args.device))
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
    candidates = design(
        config,
        times,
        budget or Budget(config.num_weights / 10, False),
        acceptance=args.acceptance,
        context=args.context,
    )
    report = {"model": args.model, "device": args.device or "here"}
    report |= design_report.summary(candidates, times, acceptance=args.acceptance, context=args.context)
    if args.output:
        _write(report, times, args.output)
    if args.json:
        print(json.dumps(report))
    else:
        print_table(design_report.table(report), design_report.notes(report))


def _write(report: dict, times, directory: Path) -> None:
    from ..tools.design import report as design_report

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "design.json").write_text(json.dumps(report, indent=1) + "\n")
    for rank in range(1, min(design_report.FIRST, len(report["shapes"])) + 1):
        file = directory / f"draft-{rank}.toml"
        file.write_text(design_report.recipe(report, rank, report["model"], file))
    design_report.plot(report, times, directory / "design.svg")
