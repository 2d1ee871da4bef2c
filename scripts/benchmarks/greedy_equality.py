"""Compares the greedy texts of every method with plain decoding, at batch 1 and at batch 8.

    python scripts/benchmarks/greedy_equality.py [--methods ngram,tree] [--prompts 200]

The prompts are held-out code. The rows of a batch have different lengths. Writes
greedy_<platform>.json and .md.
"""

import dataclasses
from collections.abc import Iterator
from functools import partial

import jax
import numpy as np
from flax import nnx
from page import Result, arguments, measured, section
from rich.progress import track

from specjax import Generator, load
from specjax.drafters import METHODS, needs_of
from specjax.heads import Head
from specjax.loop.drafter import Models, TrainedHead
from specjax.tools.evaluate import held_out_prompts, left_out
from specjax.tools.evaluate.comparison import select_drafts, select_options
from specjax.tools.evaluate.fidelity import difference
from specjax.tools.evaluate.report import markdown_table
from specjax.training.kinds import KINDS

LONGEST, NEW, FEW = 96, 32, 8
"""Tokens of the longest prompt, new tokens, and new tokens with an untrained head.

An untrained head needs a target call for almost every token.
"""

SMALL = dict(tree_nodes=9, tree_depth=3, tree_top_k=2)
"""The options of dynamic trees and blocks. The papers' sizes take hours on a small machine."""

TITLE = "Greedy texts of every method against plain decoding"
QUESTION = "Does every method write the text of plain greedy decoding, alone and in a batch?"
TEXT = f"""{{dtype}}, prompts of 1 to {LONGEST} tokens, {NEW} new tokens each, {FEW} where a head is untrained. Rows of a batch
of eight have different lengths. Dynamic trees and blocks draft {SMALL["tree_nodes"]} nodes, the former
{SMALL["tree_depth"]} levels deep.
"""
FOLLOWS = """
- Drafts change the speed, not the text: in float32 every text is that of plain decoding, with any head, trained or not.
- In bfloat16 two tokens may tie, and a tie may fall differently when several tokens are scored at once.
"""


def main():
    parser = arguments(__doc__)
    parser.add_argument("--methods", help="methods separated by commas; by default all for which there are drafts")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    target, draft = (load(name, dtype=args.dtype) for name in ("tiny-python", "tiny-python-draft"))
    drafts = [draft, dataclasses.replace(draft, model=disturbed(draft.model), name="disturbed")]
    texts = [target.tokenizer.encode(text) for text in held_out_prompts(target.tokenizer, args.prompts, LONGEST)]
    prompts = [text[: 1 + (37 * i) % len(text)] for i, text in enumerate(texts)]  # of all lengths
    generator = Generator(target, "none", capacity=256)
    plain = {new: continued(generator, prompts, 1, new, "none") for new in (NEW, FEW)}
    result = Result(f"greedy_{jax.default_backend()}")
    names = [
        "tiny-python",
        "tiny-python-draft",
        *(f"tiny-python-{kind}" for kind in ("eagle3", "mtp", "medusa", "block")),
    ]
    report = {"methods": {}} | result.read() | {"conditions": measured(names), "dtype": args.dtype}
    for method in args.methods.split(",") if args.methods else METHODS:
        for name, new, generator in generators(method, target, drafts, texts):
            report["methods"][name] = {
                size: figures(continued(generator, prompts, int(size), new, name), plain[new], target)
                for size in ("1", "8")
            }
            result.save(report)
    write_page(result)
    raise SystemExit(any(row["no_ties"] for sizes in report["methods"].values() for row in sizes.values()))


def generators(method: str, target, drafts: list, texts: list) -> Iterator[tuple[str, int, Generator]]:
    """A method's generators: the name, the number of new tokens to compare, and the generator.

    A method that drafts with a head has two: with the embedded head, and with an untrained one.
    """
    needs, make = needs_of(method), partial(Generator, target, method, capacity=256, **select_options(method, SMALL))
    if reasons := left_out(target, [method], tuple(drafts), **SMALL):
        print(f"{method} is left out: {reasons[method]}")
    else:
        fit = select_drafts(method, tuple(drafts))
        yield method, NEW, make(fit[: needs.least] if isinstance(needs, Models) else fit)
    if isinstance(needs, TrainedHead):
        shape = KINDS[needs.kind].shape(**{"block_size": 8} if needs.kind == "block" else {})
        module = shape.make(target, np.concatenate(texts), jax.random.key(0))
        yield f"{method}, untrained", FEW, make(Head(module, module.config, "untrained"))


def disturbed(model):
    """A second draft for methods that take several: the model with 5 % noise on every weight."""
    graph, params = nnx.split(model)
    noise = lambda x: x + 0.05 * x.std() * jax.random.normal(jax.random.key(x.size), x.shape, x.dtype)
    return nnx.merge(graph, jax.tree.map(noise, params))


def continued(generator: Generator, prompts: list[list[int]], size: int, new: int, name: str) -> list:
    results = []
    for start in track(range(0, len(prompts), size), f"{name}, batch {size}"):
        results += generator(prompts[start : start + size], max_new_tokens=new, ignore_eos=True)
    return results


def figures(results: list, plain: list, target) -> dict:
    """Counts of equal texts, of differences at a tie and elsewhere; and tokens per target call."""
    parted = [d for i, pair in enumerate(zip(results, plain)) if (d := difference(i, *pair, target))]
    ties = sum(d["tie"] for d in parted)
    calls = sum(r.stats.target_calls for r in results)
    return {
        "prompts": len(plain), "equal": len(plain) - len(parted), "ties": ties, "no_ties": len(parted) - ties,
        "tokens_per_call": sum(r.stats.generated for r in results) / calls,
    }  # fmt: skip


def write_page(result: Result) -> None:
    report, rows = result.read(), []
    for method, (one, eight) in ((name, (sizes["1"], sizes["8"])) for name, sizes in report["methods"].items()):
        equal = [f"{row['equal']} of {row['prompts']}" for row in (one, eight)]
        ties = one["ties"] + eight["ties"]
        others = ties + one["no_ties"] + eight["no_ties"]
        rows.append([f"`{method}`", *equal, f"{ties} of {others}", f"{one['tokens_per_call']:.2f}"])
    head = ["method", "equal at batch 1", "equal at batch 8", "others part at a tie", "tokens a call"]
    text = f"{TEXT.format(dtype=report['dtype'])}\n{markdown_table(head, rows)}"
    result.write(TITLE, QUESTION, [section(report["conditions"], text)], FOLLOWS)


if __name__ == "__main__":
    main()
