"""Measures and draws the time of a round against batch, context and nodes, beside the roofline.

    python scripts/benchmarks/scaling.py --model DIR [--draft tiny-python-draft]

Prompts are random tokens. The speed-up is that of ``draft_model`` at the acceptance that held-out
code gives with short prompts. This acceptance is forced at every batch and context. Needs the extra
"plot". Writes scaling_<platform>.json, .md and .png.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from page import Result, arguments, measured, section

import specjax
from specjax.cli.parser import integer
from specjax.core.tree import Topology
from specjax.text.cache_dtype import cache_dtype
from specjax.tools.evaluate import compare, held_out_prompts, machine
from specjax.tools.evaluate.report import markdown_table
from specjax.tools.tune.cost import measure

BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (256, 512, 1024, 2048, 4096, 8192)
NODES = (1, 2, 4, 8, 16, 32, 64)
SHORT = 256
"""The context of the sweeps over batch and nodes."""

TITLE = "A round against batch, context and nodes"
QUESTION = (
    "How does the time of a round grow with rows, context and drafted tokens, and where is the limit of the machine?"
)
TEXT = """![time of a round]({picture})

{label}, with {draft}, {num_speculative_tokens} drafted tokens in a round. Times are medians over runs that alternate. The
roofline has {bytes:.1f} GB/s and {operations:.0f} GFLOP/s, both measured.
**The acceptance is forced**: {tokens_per_round:.2f} tokens a round, as measured on held-out code with short prompts."""
FOLLOWS = """
- On a CPU drafts pay for one to three rows; with more rows each drafted node costs nearly a row.
- The gain shrinks slowly with the context, because the draft reads a cache of its own.
"""


def main():
    args = parse_arguments()
    try:
        target, draft = specjax.load(args.model), specjax.load(args.draft)
    except specjax.SpecjaxError as error:
        print(f"scaling: error: {error}", file=sys.stderr)
        sys.exit(2)
    K = args.num_speculative_tokens
    result = Result(f"scaling_{jax.default_backend()}")
    names = {key: Path(getattr(args, key)).name for key in ("model", "draft")}  # no paths of this machine
    settings = vars(args) | names | {"label": args.label or names["model"]}
    conditions = measured((args.model, args.draft), machine(target)["dtype"])
    report = {"conditions": conditions, "settings": settings} | limits(target)
    report["tokens_per_round"] = acceptance(target, draft, args)
    sweep = lambda sizes, place: [point(target, draft, args, report, *place(size)) for size in sizes]
    report["batch"] = sweep(BATCHES, lambda batch: (batch, SHORT, (1, K + 1)))
    report["context"] = sweep(CONTEXTS, lambda context: (1, context, (1, K + 1)))
    report["nodes"] = point(target, draft, args, report, 1, SHORT, NODES)
    result.save(report)
    draw(report).savefig(result.picture(), dpi=150)
    text = describe(report, result.picture().name)
    result.write(TITLE, QUESTION, [section(conditions, text)], FOLLOWS)


def limits(target) -> dict:
    """Bytes a second that a sum reads, and operations a second of a large product of the weights' type."""
    memory = jnp.ones((8, 1 << 25))
    matrix = jnp.ones((4096, 4096), next(iter(jax.tree.leaves(target.model))).dtype)
    product = lambda a: jnp.einsum("ni,oi->no", a, a, preferred_element_type=jnp.float32)
    return {
        "bytes_per_second": memory.nbytes / least_seconds(lambda a: a.sum(1), memory),
        "operations_per_second": 2 * 4096**3 / least_seconds(product, matrix),
    }


def least_seconds(function, argument) -> float:
    """The shortest time of several calls, after a first call that compiles."""
    function, seconds = jax.jit(function), []
    for _ in range(6):
        began = time.perf_counter()
        jax.block_until_ready(function(argument))
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def acceptance(target, draft, args: argparse.Namespace) -> float:
    """Tokens of a round of ``draft_model`` on held-out code, greedy."""
    prompts = held_out_prompts(target.tokenizer, args.num_prompts, 128)
    options = dict(draft=draft, max_new_tokens=64, num_speculative_tokens=args.num_speculative_tokens)
    methods = compare(target, ["draft_model"], prompts, **options)["methods"]
    return next(found["mean_acceptance_length"] for found in methods if found["method"] == "draft_model")


def point(target, draft, args: argparse.Namespace, report: dict, batch: int, context: int, nodes: tuple) -> dict:
    """Milliseconds of rounds with trees of these ``nodes``, and the speed-up of ``draft_model``."""
    cost = measure(target, draft, length=context, batch=batch, nodes=nodes, widths=(1,), rounds=4, repeats=args.repeats)
    K = args.num_speculative_tokens
    drafted = cost.of_round(Topology((0, *range(K)), (0,) * (K + 1)))
    found = {
        "batch": batch,
        "context": context,
        "nodes": list(nodes),
        "verify_ms": (cost.verify.quartiles.T * 1e3).tolist(),
        "roofline_ms": [roofline(target, report, batch, context, n) * 1e3 for n in nodes],
        "draft_model_ms": drafted * 1e3,
        "speedup": report["tokens_per_round"] * cost.verify(1) / drafted,
    }
    print(json.dumps(found), file=sys.stderr)
    return found


def roofline(target, limits: dict, batch: int, context: int, nodes: int) -> float:
    """The least seconds of a forward: its weights and keys are read once, and its products computed."""
    config, width = target.config, cache_dtype(target).itemsize
    weights = jax.tree.leaves(target.model)
    keys = 2 * config.num_layers * config.num_kv_heads * config.head_dim * context * batch
    operations = 2 * sum(leaf.size for leaf in weights) * nodes * batch
    operations += 4 * config.num_layers * config.num_heads * config.head_dim * context * nodes * batch
    read = sum(leaf.nbytes for leaf in weights) + keys * width
    return max(read / limits["bytes_per_second"], operations / limits["operations_per_second"])


def describe(report: dict, picture: str) -> str:
    about = report["settings"] | report | {"picture": picture}
    about |= {"bytes": report["bytes_per_second"] / 1e9, "operations": report["operations_per_second"] / 1e9}
    lines = [TEXT.format(**about)]
    for axis in ("batch", "context"):
        head = [axis, "plain, ms", "roofline, ms", "drafted round, ms", "speed-up"]
        rows = [
            [p[axis], f"{p['verify_ms'][0][1]:.1f}", f"{p['roofline_ms'][0]:.1f}", f"{p['draft_model_ms']:.1f}"]
            + [f"{p['speedup']:.2f}"]
            for p in report[axis]
        ]
        lines += ["", markdown_table(head, rows)]
    p = report["nodes"]
    rows = [
        [n, f"{ms[1]:.1f}", f"{ms[1] / p['verify_ms'][0][1]:.2f}", f"{roof:.1f}"]
        for n, ms, roof in zip(p["nodes"], p["verify_ms"], p["roofline_ms"])
    ]
    head = ["nodes", "verify, ms", "over one node", "roofline, ms"]
    return "\n".join([*lines, "", markdown_table(head, rows)])


def draw(report: dict):
    """A matplotlib figure of milliseconds: against batch, context and nodes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    nodes = report["nodes"]
    for axes, axis in zip(figure.subplots(1, 3, sharey=True), ("batch", "context", "nodes")):
        if axis == "nodes":
            sizes, plain, roof = nodes["nodes"], np.array(nodes["verify_ms"]).T, nodes["roofline_ms"]
        else:
            points = report[axis]
            sizes, roof = [p[axis] for p in points], [p["roofline_ms"][0] for p in points]
            plain = np.array([p["verify_ms"][0] for p in points]).T
            axes.plot(sizes, [p["draft_model_ms"] for p in points], "s-", color="C0", label="round of draft_model")
        axes.errorbar(sizes, plain[1], np.abs(plain[[0, 2]] - plain[1]), fmt="o-", color="C1", label="target alone")
        axes.plot(sizes, roof, "k--", label="roofline of the target")
        axes.set_xscale("log", base=2)
        axes.set(xlabel=axis, yscale="log", xticks=sizes, xticklabels=map(str, sizes))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.supylabel("milliseconds")
    return figure


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="tiny-python", help="the target, such as a grown checkpoint")
    parser.add_argument("--label", help="words for the model on the page, such as its origin (default its name)")
    parser.add_argument("--draft", default="tiny-python-draft")
    parser.add_argument("--num-speculative-tokens", type=integer(1), default=5)
    parser.add_argument("--num-prompts", type=integer(1), default=8, help="prompts for the acceptance")
    parser.add_argument("--repeats", type=integer(1), default=5, help="timed runs of each program")
    return parser.parse_args()


if __name__ == "__main__":
    main()
