"""Measures the forms in which a CPU multiplies few rows by the weights of a layer.

    python scripts/benchmarks/product_speed.py [--rows 1 2 6 16 32 64] [--width 1024] [--inner 3072] [--layers 16]

Each form multiplies through the same layers, [inner, width] and [width, inner], which do not fit the
caches. The forms alternate in one process. Writes the page products_cpu.md.
"""

import argparse
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from page import RANDOM, Result, arguments, measured, section, timed

from specjax.cli.parser import integer
from specjax.kernels.cpu import product as product_kernel
from specjax.models.layers import linear, multiply, multiply_in_parts
from specjax.tools.evaluate.report import markdown_table
from specjax.tools.tune.timers import alternate

RESULT = Result("products_cpu")
PASSES = 4
"""How often a run goes through all layers."""

TITLE = "Products of few rows on a CPU"
QUESTION = "How near do products of a few rows come to the speed of the memory, and what does the kernel bring?"
TEXT = """Gigabytes of weights a second, for {layers} layers of [{inner}, {width}] and [{width}, {inner}]. Medians of {repeats}
runs that alternate in one process, with quartiles. `specjax` is the form that `layers.linear` takes.
"""
FOLLOWS = """
- With bfloat16 weights the kernel makes decoding on a CPU several times as fast; it is on where the processor has the
  instructions, see [CPU](../cpu.md).
- Up to six rows cost hardly more than one, so drafts of a few tokens pay. From 32 rows on each row costs.
"""
COLUMNS = ("weights", "rows", "XLA: one product", "XLA: outputs in parts", "kernel", "specjax")


def main():
    args = parse_arguments()
    cells = []
    for dtype in ("bfloat16", "float32"):
        for rows in args.rows:
            cells.append([dtype, rows, *measure(dtype, rows, args)])
            print(*cells[-1], sep="  ", flush=True)
    text = TEXT.format(**vars(args)) + "\n" + markdown_table(COLUMNS, cells)
    RESULT.write(TITLE, QUESTION, [section(measured(note=RANDOM), text)], FOLLOWS)


def measure(dtype: str, rows: int, args: argparse.Namespace) -> list[str]:
    """The speeds of all forms, in GB/s; "-" for a form that does not exist for the dtype."""
    keys = jax.random.split(jax.random.key(0), args.layers)
    random = lambda key, *shape: (jax.random.normal(key, shape) / shape[1] ** 0.5).astype(dtype)
    weights = [(random(key, args.inner, args.width), random(key, args.width, args.inner)) for key in keys]
    x = jax.random.normal(jax.random.key(1), (rows, args.width))
    forms: dict[str, Callable] = {"one": multiply, "parts": multiply_in_parts, "specjax": linear}
    if dtype == "bfloat16" and product_kernel.is_installed():
        forms["kernel"] = product_kernel.product
    programs = {name: jax.jit(partial(through_layers, form)) for name, form in forms.items()}
    for program in programs.values():
        jax.block_until_ready(program(x, weights))
    samples = alternate({name: partial(timed, program, x, weights) for name, program in programs.items()}, args.repeats)
    size = PASSES * sum(w.nbytes for pair in weights for w in pair) / 1e9
    cell = lambda low, median, high: f"{size / median:.1f} ({size / high:.1f} to {size / low:.1f})"
    quartiles = {name: np.percentile(seconds, [25, 50, 75]) for name, seconds in samples.items()}
    return [cell(*quartiles[name]) if name in quartiles else "-" for name in ("one", "parts", "kernel", "specjax")]


def through_layers(product: Callable, x: jax.Array, weights: list) -> jax.Array:
    def all_layers(_, x):
        for up, down in weights:
            x = product(jax.nn.silu(product(x.astype(up.dtype), up)).astype(down.dtype), down)
            x = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        return x

    return lax.fori_loop(0, PASSES, all_layers, x)


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=integer(1), nargs="+", default=[1, 2, 6, 16, 32, 64])
    parser.add_argument("--width", type=integer(1), default=1024)
    parser.add_argument("--inner", type=integer(1), default=3072)
    parser.add_argument("--layers", type=integer(1), default=16)
    parser.add_argument("--repeats", type=integer(1), default=7, help="number of timed runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
