"""Measures layers of experts on a CPU: the weights that a round reads, and its time, by number of nodes.

    python scripts/benchmarks/experts.py [--nodes 1 2 4 8 16] [--count 32] [--chosen 4] [--width 1024] [--units 512]

"chosen" is the form that specjax takes, a loop over tiles of nodes with the same expert. "all" is a
product of all nodes with one expert after another, the fastest product of all experts. Weights and nodes are random, so each node chooses its
experts with equal chance. The forms alternate in one process. Writes docs/results/experts_cpu.md.
"""

import argparse
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from page import RANDOM, Result, arguments, measured, quartiles, section, timed

from specjax.cli.parser import integer
from specjax.models.feed_forwards import Experts, ExpertsConfig
from specjax.models.feed_forwards.expert_products import Weights, dense, make_tiles, tile_size
from specjax.models.feed_forwards.experts import route
from specjax.models.kinds import LayerConfig
from specjax.models.layers import Norm
from specjax.models.mixers import AttentionConfig
from specjax.tools.evaluate.report import markdown_table
from specjax.tools.plan import hlo
from specjax.tools.tune.timers import alternate

TITLE = "Experts on a CPU"
QUESTION = "What does a round of several nodes cost in a layer of experts, of which each node reads its own?"
TEXT = """{layers} layers of {count} experts, of which each node chooses {chosen}; {units} units in a stream of {width}. Nodes
are random. The expected number of different experts is X (1 - (1 - k / X)^n). "MB" are those of the weights of a layer's
experts: expected, and read by the compiled loop for these nodes. An expert with many nodes is read once for each of its
tiles, from the processor's cache. "All" is every node with every expert, one expert after another; XLA converts bfloat16
experts to float32 for it, and the loop over chosen experts does not. Times are medians of {repeats} runs that alternate in
one process, with quartiles.
"""
FOLLOWS = """
- Every node of a draft adds experts to read, so drafts for a mixture of experts must be accepted more often to pay.
- The loop over chosen experts is faster than the product of all experts at every number of nodes here.
"""
RESULT = Result("experts_cpu")
COLUMNS = (
    "weights", "nodes", "experts expected", "experts chosen", "MB expected", "MB compiled",
    "time of all / time of chosen", "time of n nodes / time of the first",
)  # fmt: skip


def main():
    args = parse_arguments()
    config = ExpertsConfig(args.count, args.chosen, args.units)
    cells = [row for dtype in ("bfloat16", "float32") for row in measure(dtype, config, args)]
    text = TEXT.format(**vars(args)) + "\n" + markdown_table(COLUMNS, cells)
    RESULT.write(TITLE, QUESTION, [section(measured(note=RANDOM), text)], FOLLOWS)


def measure(dtype: str, config: ExpertsConfig, args: argparse.Namespace) -> list[list]:
    """The rows of the table for weights of one type."""
    layers = [make_layer(config, args.width, dtype, seed) for seed in range(args.layers)]
    timers, rows = {}, {}
    for n in args.nodes:
        x = jax.random.normal(jax.random.key(n), (1, n, args.width))
        for name, form in {"chosen": lambda layer, x: layer(x), "all": multiply_all}.items():
            program = jax.jit(partial(through_layers, form))
            jax.block_until_ready(program(layers, x))
            timers[name, n] = partial(timed, program, layers, x)
        rows[n] = read_experts(layers[0], x)
    seconds = alternate(timers, args.repeats)
    size = 3 * config.width * args.width * jnp.dtype(dtype).itemsize / 1e6
    cells = []
    for n, (found, compiled) in rows.items():
        chosen, expected = seconds["chosen", n], config.expected_experts(n)
        figures = f"{expected:.1f}", found, f"{expected * size:.2f}", f"{compiled / 1e6:.2f}"
        against = quartiles(seconds["all", n] / chosen), quartiles(chosen / seconds["chosen", args.nodes[0]])
        cells.append([dtype, n, *figures, *against])
        print(*cells[-1], sep="  ", flush=True)
    return cells


def make_layer(config: ExpertsConfig, width: int, dtype: str, seed: int) -> Experts:
    layer = LayerConfig(width, 1, AttentionConfig(1, 1, 2), config, Norm())
    keys = jax.random.split(jax.random.key(seed))
    return jax.jit(lambda: Experts(layer, keys, jnp.dtype(dtype)))()


def through_layers(form, layers: list[Experts], x: jax.Array) -> jax.Array:
    for layer in layers:
        x = x + form(layer, x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True)))
    return x


def multiply_all(layer: Experts, x: jax.Array) -> jax.Array:
    """The layer as products of all nodes with all experts."""
    chosen, share = route(x, layer.router[...], None, layer.config)
    return dense(None, x[0], chosen[0], share[0], weights_of(layer))[None]


def weights_of(layer: Experts) -> Weights:
    return Weights(layer.gates[...], layer.ups[...], layer.downs[...])


def read_experts(layer: Experts, x: jax.Array) -> tuple[int, float]:
    """How many experts the nodes choose, and the bytes of weights that the compiled loop reads for them."""
    config, weights = layer.config, weights_of(layer)
    chosen = route(x, layer.router[...], None, config)[0][0]
    tiles = make_tiles(chosen, config.count, tile_size(len(chosen), config.chosen, config.count))
    text = jax.jit(lambda layer, x: layer(x)).lower(layer, x).compile().as_text()
    return len(np.unique(chosen)), int(tiles.count) * bytes_of_tile(text, weights)


def bytes_of_tile(text: str, weights: Weights) -> float:
    """The bytes of weights that one iteration of a compiled loop reads, by its slices and by its kernels."""
    named = {i.name: i for body in hlo.computations(text).values() for i in body}
    shape, itemsize, total = weights.gate.shape, weights.gate.dtype.itemsize, 0
    for i in hlo.in_loops(text):
        if i.opcode == "dynamic-slice" and i.size == shape[1] * shape[2]:
            total += i.size
        elif i.opcode == "custom-call" and "specjax_product" in i.text:
            rows = named[re.findall(r"%([\w.\-]+)", i.text.partition("custom-call(")[2])[0]]
            total += i.shape[1] * rows.shape[1]
    return total * itemsize


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--nodes", type=integer(1), nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--count", type=integer(1), default=32)
    parser.add_argument("--chosen", type=integer(1), default=4)
    parser.add_argument("--width", type=integer(1), default=1024)
    parser.add_argument("--units", type=integer(1), default=512)
    parser.add_argument("--layers", type=integer(1), default=2)
    parser.add_argument("--repeats", type=integer(1), default=5, help="number of timed runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
