"""Measures memory and time of one training step as its window grows.

    python scripts/benchmarks/training_cost.py [--lengths 1000 2000 4000 8000] [--timed eagle3]

The target is tiny-python, and a batch has one window. The step is that of `specjax train`, compiled
once for each length. The compiler reports the memory that the step needs beside its arguments. The
compiled program shows that no array is as large as a mask of all tokens by all tokens. The lengths
differ from all widths of the model, so an axis of the window is known by its size. Writes
training_cost_<platform>.json and .md.
"""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from page import ROOT, Result, arguments, measured, section
from rich.progress import track

from specjax import LanguageModel, load
from specjax.tools.evaluate.report import markdown_table
from specjax.tools.plan import hlo
from specjax.training.kinds import KINDS
from specjax.training.loop import make_step
from specjax.training.recipe import Recipe, read_recipe
from specjax.training.run import cast_target, make_loss

RECIPES = ("medusa", "eagle3", "mtp", "block")
TOKENS_PER_BLOCK = 8
"""A window has one block for this many tokens, as in the shipped recipe."""


TITLE = "Memory and time of a training step by the length of its window"
QUESTION = "How long may the texts of a training be?"
TEXT = f"""One window a batch, target tiny-python with a longer context, recipes `configs/tiny-python-*.toml` (with one
block for {TOKENS_PER_BLOCK} tokens), float32.

Temporary memory is the memory that the compiled step needs beside the parameters, the optimizer's state and the window.
Pairs are arrays with an entry for each pair of tokens, such as a full attention mask: arrays of the compiled program, inside
fusions too, with two axes of at least nine tenths of the window that are not widths of the model. Seconds are the median of
the timed steps, on a CPU summed over all cores.
"""
FOLLOWS = """
- Memory grows in proportion to the window, so a device that trains on 1,000 tokens trains on 8,000 with eight times the
  memory of a step.
- Attention computes scores for 128 rows at a time: one part of the time grows with the square of the window.
"""


def main():
    parser = arguments(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 2000, 4000, 8000], help="tokens of a window")
    parser.add_argument(
        "--kinds", nargs="+", default=RECIPES, choices=RECIPES, help="measure only these; keep the figures of others"
    )
    parser.add_argument(
        "--timed", nargs="*", default=("eagle3",), choices=RECIPES, help="also run the steps of these; minutes each"
    )
    parser.add_argument("--steps", type=int, default=2, help="number of timed steps, after an untimed one")
    args = parser.parse_args()
    target = long_context(load("tiny-python"), max(args.lengths) + 1)
    result = Result(f"training_cost_{jax.default_backend()}")
    conditions = measured(note="the shape of tiny-python; the cost does not depend on the weights")
    report = {"kinds": {}} | result.read() | {"conditions": conditions}
    for kind in args.kinds:
        report["kinds"][kind] = [
            figures(kind, length, target, args.steps if kind in args.timed else 0)
            for length in track(args.lengths, f"{kind}, lengths")
        ]
        result.save(report)
        write_page(result)
    raise SystemExit(any(row["pairs"] for rows in report["kinds"].values() for row in rows))


def long_context(target: LanguageModel, context: int) -> LanguageModel:
    """The target with a longer context. The cost of a step does not depend on the weights."""
    target.model.config = target.config.replace(max_position_embeddings=context)
    return dataclasses.replace(target, config=target.model.config)


def recipe_for(kind: str, length: int) -> Recipe:
    recipe = read_recipe(ROOT / f"configs/tiny-python-{kind}.toml", batch=1, length=length)
    if kind == "block":
        return dataclasses.replace(recipe, loss=dataclasses.replace(recipe.loss, anchors=length // TOKENS_PER_BLOCK))
    return recipe


def figures(kind: str, length: int, target: LanguageModel, steps: int) -> dict:
    """The cost of a step: bytes by the compiler, arrays of the program, seconds of ``steps`` steps.

    "pairs" are the arrays with two axes of the window.
    """
    recipe = recipe_for(kind, length)
    stream = np.random.default_rng(0).integers(0, target.config.vocab_size, length + 1).astype(np.int32)
    module = KINDS[kind].shape.make(recipe.head, target, stream, jax.random.key(0))
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    optimizer = recipe.optimizer.make(recipe.steps)
    learnt = jnp.ones((1, length + 2), bool)
    batch, extra = (jnp.asarray(stream[None]), learnt, jnp.uint32(0)), (cast_target(target.model),)
    state = jax.jit(optimizer.init)(params)
    compiled = make_step(graph, make_loss(recipe), optimizer).lower(params, state, rest, batch, extra).compile()
    text = compiled.as_text()
    widths = {size for leaf in jax.tree.leaves((params, rest, extra)) for size in leaf.shape}
    assert length not in widths
    array = hlo.largest(text)
    # On a CPU the clock counts the seconds of all cores. They hardly depend on other processes.
    clock, seconds = time.process_time if jax.default_backend() == "cpu" else time.perf_counter, []
    for _ in range(steps and 1 + steps):
        began = clock()
        params, state, *_ = jax.block_until_ready(compiled(params, state, rest, batch, extra))
        seconds.append(clock() - began)
    return {
        "length": length, "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "largest": f"{array.dtype}{list(array.shape)}", "elements": array.size,
        "pairs": sorted({f"{i.dtype}{list(i.shape)}" for i in hlo.squares(text, length * 9 // 10, widths)}),
        "seconds": [round(s, 2) for s in seconds[1:]],
    }  # fmt: skip


def write_page(result: Result) -> None:
    report, cells = result.read(), []
    for kind in filter(report["kinds"].__contains__, RECIPES):
        rows = report["kinds"][kind]
        for row in rows:
            n, size, seconds = row["length"], row["temporary_bytes"], float(np.median(row["seconds"] or 0))
            times = [f"{seconds:.2f}", f"{seconds / np.median(rows[0]['seconds']):.1f}"] if seconds else ["-", "-"]
            memory = [f"{size / 1e6:.0f} MB", f"{size / rows[0]['temporary_bytes']:.1f}"]
            largest = [f"`{row['largest']}`", f"{row['elements'] / n**2:.2f}"]
            cells.append([kind, n, *memory, *largest, ", ".join(row["pairs"]) or "none", *times])
    head = ["kind", "tokens", "temporary memory", "to the first", "largest array", "its elements to tokens²", "pairs",
            "seconds", "to the first"]  # fmt: skip
    text = f"{TEXT}\n{markdown_table(head, cells)}"
    result.write(TITLE, QUESTION, [section(report["conditions"], text)], FOLLOWS)


if __name__ == "__main__":
    main()
