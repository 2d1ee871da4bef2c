"""Plans LLaMA-65B with the published drafts of "Decoding Speculative Decoding" (2402.01528).

    python scripts/benchmarks/published_drafts.py [--devices a100:4 v5e:4x4]

It needs the extras tpu and cuda for their compilers, and no device. Writes published_drafts.json and .md.
"""

from page import ROOT, Result, arguments, measured, section

from specjax.checkpoints.config import read_shape
from specjax.models.config import ModelConfig
from specjax.tools.design.draft_latency import plan_samples
from specjax.tools.design.search import Times, best_length, needed_acceptance, plan_times
from specjax.tools.evaluate.report import markdown_table

CONTEXT = 512
ACCEPTANCES = 0.6, 0.7, 0.8
BEST, DEEP = "Wide-Sheared-LLaMA-796M", "Sheared-LLaMA-1.3B"

SHAPES = {
    "Wide-Sheared-LLaMA-290M": dict(num_layers=1, hidden_size=2560, intermediate_size=11008, num_heads=32),
    "Wide-Sheared-LLaMA-543M": dict(num_layers=3, hidden_size=2560, intermediate_size=11008, num_heads=32),
    BEST: dict(num_layers=5, hidden_size=2560, intermediate_size=11008, num_heads=32),
    "Wide-Sheared-LLaMA-1.3B": dict(num_layers=9, hidden_size=2560, intermediate_size=11008, num_heads=32),
    DEEP: dict(num_layers=24, hidden_size=2048, intermediate_size=5504, num_heads=16),
}
"""Shapes by the published numbers of parameters. Nine layers of the wide 1.3B are the likelier of two solutions."""

TITLE = "Published drafts for LLaMA-65B"
QUESTION = f"""Does a wide and shallow draft beat a deep one of equal size on these devices?

**All times are predictions**, see [Plan](../plan.md). The drafts are those of "Decoding Speculative Decoding" (2402.01528)
and run on one device; batch 1, {CONTEXT} tokens in the cache.

- *ms a token*: of the draft, from its own compiled program; in brackets from the fit of `specjax design`.
- *speed-up*: over plain decoding, if each drafted token is accepted with this probability, at the best draft length up
  to 12, which stands in brackets.
- *as fast as {BEST}*: the acceptance at which the draft reaches the speed of {BEST} at 0.7.

The paper measured up to 111 % more tokens a second with {BEST} than with {DEEP}, on four
A100-80GB with the runtime of its authors. The acceptance of each draft is not among the files that its authors
publish, so this page compares drafts at equal acceptance."""
FOLLOWS = """
- At equal acceptance take the draft with fewer layers, on both kinds of device.
- `specjax design` makes this comparison for your own target.
"""


def main():
    parser = arguments(__doc__)
    parser.add_argument("--devices", nargs="+", default=["a100:4", "v5e:4x4"], help="as in specjax plan")
    devices = parser.parse_args().devices
    target = read_shape(str(ROOT / "configs" / "plans" / "models" / "llama-65b.json")).replace(dtype="bfloat16")
    shapes = {name: target.replace(num_kv_heads=shape["num_heads"], **shape) for name, shape in SHAPES.items()}
    report = {device: figures(target, shapes, device) for device in devices}
    result = Result("published_drafts")
    result.save({"conditions": measured(note="none, shapes alone"), "devices": report})
    write_page(result)


def figures(target: ModelConfig, shapes: dict[str, ModelConfig], device: str) -> dict:
    """The predicted figures of each draft on one device."""
    times = plan_times(target, device, batch=1, context=CONTEXT)
    samples = plan_samples([(shape, CONTEXT) for shape in shapes.values()], 1, device)
    seconds = {name: sample.seconds for name, sample in zip(shapes, samples, strict=True)}
    best = best_length(seconds[BEST], times, 0.7)[1]
    rows = {name: row(seconds[name], times.latency(shape, CONTEXT), times, best) for name, shape in shapes.items()}
    return dict(plain=times.plain, weights={name: shape.num_weights for name, shape in shapes.items()}, drafts=rows)


def row(seconds: float, fitted: float, times: Times, best: float) -> dict:
    """The figures of one draft; ``best`` is the speed to reach."""
    found = {acceptance: best_length(seconds, times, acceptance) for acceptance in ACCEPTANCES}
    return dict(
        seconds=seconds,
        fitted=fitted,
        drafted=[length for length, _ in found.values()],
        speedups=[speed * times.plain for _, speed in found.values()],
        as_fast=needed_acceptance(seconds, times, best),
    )


def write_page(result: Result) -> None:
    """The page: a table for each device, and the gain beside the paper's."""
    report, parts = result.read(), []
    head = ["draft", "weights", "ms a token", *(f"speed-up at {a}" for a in ACCEPTANCES), f"as fast as {BEST}"]
    for device, found in report["devices"].items():
        rows = [cells(name, found["weights"][name], draft) for name, draft in found["drafts"].items()]
        wide, deep = (found["drafts"][name]["speedups"] for name in (BEST, DEEP))
        gains = ", ".join(f"{a / b - 1:.0%} at {rate}" for a, b, rate in zip(wide, deep, ACCEPTANCES))
        parts += [f"On {device}: a plain token takes {found['plain'] * 1e3:.1f} ms.", ""]
        parts += [markdown_table(head, rows), "", f"{BEST} is faster than {DEEP} by {gains}.", ""]
    result.write(TITLE, QUESTION, [section(report["conditions"], "\n".join(parts))], FOLLOWS)


def cells(name: str, weights: int, draft: dict) -> list[str]:
    speeds = [f"{speed:.2f} ({length})" for speed, length in zip(draft["speedups"], draft["drafted"])]
    as_fast = "never" if draft["as_fast"] is None else f"{draft['as_fast']:.2f}"
    return [
        name,
        f"{weights / 1e6:.0f} M",
        f"{draft['seconds'] * 1e3:.2f} ({draft['fitted'] * 1e3:.2f})",
        *speeds,
        as_fast,
    ]


if __name__ == "__main__":
    main()
