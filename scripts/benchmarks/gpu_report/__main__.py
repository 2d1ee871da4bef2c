"""Measures how close specjax comes to the limits of a GPU, in one call under ten minutes.

    python scripts/benchmarks/gpu_report                               on a GPU, at real size
    python scripts/benchmarks/gpu_report --toy --output /tmp/report    on any machine, at toy size
    python scripts/benchmarks/gpu_report --empty                       only the table, without figures

The weights are random and have real shapes, in bfloat16 at batch 1. The report is
gpu_report_<device>.json, and the page gpu_report.md has all devices. Every column has a share of the time. A measurement that fails
leaves its error in its cell. A measurement without time left is "not measured". Finished figures
are on disk at once. Columns of other models stay, if the same device and version of jax measured them.
"""

import dataclasses
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of page.py

from bench import Bench
from gpu_page import blank, column, write_page
from page import Result, arguments
from plan import FULL, TOY, Plan
from timing import copy_bandwidth, failure

from specjax import ModelConfig
from specjax.cli.parser import integer


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        help="path of the two files, without suffix (default: those of the results)",
    )
    parser.add_argument(
        "--models", nargs="+", choices=list(FULL.models), default=list(FULL.models), help="the columns of the table"
    )
    parser.add_argument(
        "--seconds", type=integer(1), default=FULL.seconds, help="the time of all columns (default %(default)s)"
    )
    parser.add_argument("--toy", action="store_true", help="tiny models and few repeats, on any machine")
    parser.add_argument("--empty", action="store_true", help="write the Markdown table without figures")
    args = parser.parse_args(argv)
    models = {name: FULL.models[name] for name in args.models}
    plan = TOY if args.toy else dataclasses.replace(FULL, models=models, seconds=args.seconds)
    result = Result(args.output.name, folder=args.output.parent) if args.output else Result("gpu_report", device_name())
    if args.empty:
        write_page(result, [blank(plan)])
    elif args.toy or jax.default_backend() == "gpu":
        measure(plan, result)
    else:
        print("gpu_report: no GPU here; run it on a GPU host, or with --toy to try the program", file=sys.stderr)
        return 2
    return 0


def device_name() -> str:
    """The device in one word, such as "h100"."""
    return jax.devices()[0].device_kind.removeprefix("NVIDIA ").split()[0].lower()


def measure(plan: Plan, result: Result) -> None:
    """Fills a report column by column. Each column gets an equal share of the remaining time."""
    finish = time.monotonic() + plan.seconds
    report, before = blank(plan), result.read()
    if before and all(before["conditions"][key] == report["conditions"][key] for key in ("device", "jax")):
        report["columns"] = before["columns"] | report["columns"]
    keep(report, "copy_gb_s", lambda: {"copy_gb_s": copy_bandwidth(plan)})
    wanted = [(name, context) for name in plan.models for context in plan.contexts]
    for i, (name, context) in enumerate(wanted):
        deadline = time.monotonic() + (finish - time.monotonic()) / (len(wanted) - i)
        figures = report["columns"][column(name, context)]

        def save_group(group):
            print(f"{column(name, context)}: {group}", file=sys.stderr, flush=True)
            result.save(report)

        fill = partial(measure_column, plan.models[name], context, plan, report.get("copy_gb_s", {}))
        keep(figures, "all", lambda: fill(figures, deadline, save_group))
    result.save(report)
    write_page(result, result.read_all() if result.part else [report])


def measure_column(
    config: ModelConfig, context: int, plan: Plan, copying: dict, figures: dict, deadline: float, save_group: Callable
) -> dict:
    """Adds the figures of one model at one context, until ``deadline``, and returns them."""
    bench = Bench(config, context, plan)
    groups = {
        "compile": bench.compile_times,
        "plain": lambda: bench.plain(copying.get("median")),
        "copies": bench.copies,
        "kernel": bench.kernel,
        "round": bench.rounds,
        "dispatch": bench.dispatch,
        "variant": bench.variants,
        "int8": partial(bench.packed, "int8"),
        "int4": partial(bench.packed, "int4"),
        "offload": bench.offload,
        "launches": bench.launches,
    }
    groups |= {f"attention{nodes}": partial(bench.attention, nodes) for nodes in plan.attended}
    groups["forward"] = bench.forwards
    for group, function in groups.items():
        if time.monotonic() < deadline:
            keep(figures, group, function)
            save_group(group)
    return figures


def keep(figures: dict, group: str, function: Callable[[], dict]) -> None:
    """Adds the figures of a measurement, or its error under the name of its group."""
    try:
        figures |= function()
    except Exception as error:  # The other figures are kept.
        figures[group] = failure(error)


if __name__ == "__main__":
    sys.exit(main())
