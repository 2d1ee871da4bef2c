"""Plans LLaMA-65B with the published drafts of "Decoding Speculative Decoding" (2402.01528).

    python scripts/published_drafts.py [--devices a100:4 v5e:4x4]

It needs the extras tpu and cuda for their compilers, and no device. Writes
docs/results/published_drafts.md and .json.
"""

import argparse
import json
from pathlib import Path

import jax

from specjax.checkpoints.config import read_shape
from specjax.evaluation.report import markdown_table
from specjax.models.config import ModelConfig
from specjax.planning.design import Times, best_length, needed_acceptance, plan_times
from specjax.planning.draft_latency import plan_samples

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results" / "published_drafts.md"
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

HEAD = """# Published drafts for LLaMA-65B

`python scripts/published_drafts.py` writes this page, with the compilers of jax {jax} and without any device. **All
times are predictions**, see [Plan](../plan.md). The drafts are those of "Decoding Speculative Decoding" (2402.01528)
and run on one device; batch 1, {context} tokens in the cache.

- *ms a token*: of the draft, from its own compiled program; in brackets from the fit of `specjax design`.
- *speed-up*: over plain decoding, if each drafted token is accepted with this probability, at the best draft length up
  to 12, which stands in brackets.
- *as fast as {best}*: the acceptance at which the draft reaches the speed of {best} at 0.7.

The paper measured up to 111 % more tokens a second with {best} than with {deep}, on four
A100-80GB with the runtime of its authors. The acceptance of each draft is not among the files that its authors
publish, so this page compares drafts at equal acceptance.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", default=["a100:4", "v5e:4x4"], help="as in specjax plan")
    devices = parser.parse_args().devices
    target = read_shape(str(ROOT / "configs" / "plans" / "models" / "llama-65b.json")).replace(dtype="bfloat16")
    shapes = {name: target.replace(num_kv_heads=shape["num_heads"], **shape) for name, shape in SHAPES.items()}
    report = {device: figures(target, shapes, device) for device in devices}
    PAGE.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    PAGE.write_text(page(report))


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


def page(report: dict) -> str:
    """The page: a table for each device, and the gain beside the paper's."""
    parts = [HEAD.format(jax=jax.__version__, context=CONTEXT, best=BEST, deep=DEEP)]
    head = ["draft", "weights", "ms a token", *(f"speed-up at {a}" for a in ACCEPTANCES), f"as fast as {BEST}"]
    for device, found in report.items():
        rows = [cells(name, found["weights"][name], draft) for name, draft in found["drafts"].items()]
        wide, deep = (found["drafts"][name]["speedups"] for name in (BEST, DEEP))
        gains = ", ".join(f"{a / b - 1:.0%} at {rate}" for a, b, rate in zip(wide, deep, ACCEPTANCES))
        parts += [f"## {device}", "", f"A plain token takes {found['plain'] * 1e3:.1f} ms.", ""]
        parts += [markdown_table(head, rows), "", f"{BEST} is faster than {DEEP} by {gains}.", ""]
    return "\n".join(parts)


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
