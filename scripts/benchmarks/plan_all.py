"""Plans every setting in configs/plans/, and writes the table of predictions.

    python scripts/benchmarks/plan_all.py [NAME ...]

With names of settings it plans these and keeps the rows of the others. It needs the extras tpu and
cuda for their compilers, and no device. Writes plans.json and the page plans.md.
"""

from pathlib import Path

from page import ROOT, Result, arguments, measured, section

from specjax.tools.evaluate.report import markdown_table
from specjax.tools.plan.settings import make_plan, read_settings

SETTINGS = ROOT / "configs" / "plans"
TITLE = "Plans"
QUESTION = """Which pairs of models pay on which devices, before anything has run there?

`specjax plan` for each file in `configs/plans/`, batch 1, without any device. **All times are predictions.** They follow
from the devices' published figures, and none has been measured. [Plan](../plan.md) says how each figure comes about.

- *memory*: gigabytes on one device for weights, caches, draft and temporaries.
- *read*: bytes that a round moves on one device, divided by the bytes of weights and caches that its
  products must read at least; in brackets the same for plain decoding.
- *kernels*: launched in a round; a TPU runs the loop as one program.
- *ms*: predicted milliseconds of a round, and in brackets of a plain token.
- *speed-up*: predicted, if each drafted token is accepted with the probability 0.6, 0.7 or 0.8.
- *pays from*: the acceptance at which the method is as fast as plain decoding."""
FOLLOWS = """
- A draft must be many times cheaper than its target: an 8B draft for a 70B target pays only above 0.87.
- Plan your own pair before you rent devices: `specjax plan` needs none.
"""
COLUMNS = ("plan", "device", "memory", "read", "kernels", "ms", "speed-up", "pays from")


def main():
    parser = arguments(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="files in configs/plans/, without .toml; all without")
    known = sorted(file.stem for file in SETTINGS.glob("*.toml"))
    names = parser.parse_args().names or known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no setting {unknown[0]!r}; use {', '.join(known)}")
    result = Result("plans")
    report = {"plans": {}} | result.read() | {"conditions": measured(note="none, shapes alone")}
    for name in names:
        planned = make_plan(read_settings(SETTINGS / f"{name}.toml"))
        report["plans"][name] = planned | {key: _short(planned[key]) for key in ("model", "draft")}
        print(*row(name, report["plans"][name]), sep="  ", flush=True)
        result.save(report)
        write_page(result)


def write_page(result: Result) -> None:
    report = result.read()
    table = markdown_table(COLUMNS, [row(*item) for item in sorted(report["plans"].items())])
    result.write(TITLE, QUESTION, [section(report["conditions"], table)], FOLLOWS)


def row(name: str, plan: dict) -> list[str]:
    """The cells of a plan."""
    ratio = lambda key: plan[f"{key}bytes_per_round"] / plan[f"{key}minimum_bytes_per_round"]
    least = plan["break_even_acceptance"]
    memory = f"{plan['memory_bytes']['total'] / 1e9:.1f}" + ("" if plan["fits"] else ", does not fit")
    return [
        f"`{name}`",
        plan["device"],
        memory,
        f"{ratio(''):.2f} ({ratio('plain_'):.2f})",
        str(plan["launches_per_round"] or 1),
        f"{plan['seconds_per_round'] * 1e3:.1f} ({plan['plain_seconds_per_token'] * 1e3:.1f})",
        ", ".join(f"{speedup:.2f}" for speedup in plan["speedup"].values()),
        "never" if least is None else f"{least:.2f}",
    ]


def _short(names):
    """Names of configurations without their folders."""
    return [_short(name) for name in names] if isinstance(names, list) else Path(names).stem


if __name__ == "__main__":
    main()
