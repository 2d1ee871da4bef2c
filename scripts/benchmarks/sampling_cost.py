"""Measures the sampling pipeline at a real vocabulary, beside a pipeline with a sort and dense counts.

    python scripts/benchmarks/sampling_cost.py [--nodes 1 8 64] [--vocab 128256] [--repeats 5]

Both pipelines give the same distributions. Their runs alternate in one process. The baseline sorts
all logits for a truncation, and for a penalty it counts the tokens of every node's history in
arrays [nodes, vocabulary], as transformers does. The passes over the logits are counted in the
programs that the compilers for GPU and TPU make; no device is needed, only the CUDA plug-in and
libtpu. Writes the page sampling_cost.md.
"""

import argparse
import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from page import RANDOM, Result, arguments, measured, section, timed

from specjax.cli.parser import integer
from specjax.core.context import Context
from specjax.core.sampling import SamplingParams, probabilities, sampling_params
from specjax.tools.evaluate.report import markdown_table
from specjax.tools.plan import hlo
from specjax.tools.plan.devices import DEVICES, compile_only
from specjax.tools.tune.timers import alternate

TEXT = 1024
"""The number of tokens before the tree."""

OPTIONS: dict[str, dict] = {
    "greedy": dict(temperature=0.0),
    "temperature": dict(),
    "top-k 50": dict(top_k=50),
    "top-p 0.9": dict(top_p=0.9),
    "min-p 0.05": dict(min_p=0.05),
    "penalties": dict(repetition_penalty=1.1, frequency_penalty=0.2),
    "all": dict(top_k=50, top_p=0.9, min_p=0.05, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.2),
}


TITLE = "What sampling costs at a real vocabulary"
QUESTION = "How much of a round do penalties, temperature and truncation take at a real vocabulary?"
HEAD = """The function is `sampling.probabilities`: penalties, temperature and truncation for the nodes of one row, at a
vocabulary of {vocab:,} and after {text:,} tokens of text. *Sort* is the same pipeline with a sort for truncation and with
counts [nodes, vocabulary] for penalties.

On a CPU, milliseconds with the search, and in brackets the time with the sort divided by it. Medians of
{repeats} runs that alternate in one process, so other programs on the machine slow both alike.

"""
PASSES = """

On a GPU or TPU nothing was measured. The compilers' programs were read instead: passes over the logits [{nodes},
{vocab:,}] in float32, {size:.1f} MB each. A pass is one read or one write of all of them in the
device's memory by one kernel. Kernels that gather or scatter single entries do not count. The
bandwidth of the device gives the least time. The options were constants of the programs. In the
loop they are arguments, and without penalties a branch then copies the logits: two passes more.

A round of an 8B model in bfloat16 reads 16 GB of weights, which takes an H100 4.8 ms at least. A
chip of a TPU v5e has room for the logits and all that the search reads in its fast memory.

"""
FOLLOWS = """
- On GPUs and TPUs every option may be used freely: all together take well under a tenth of a round.
- On a CPU with a large vocabulary, penalties and truncation of many nodes cost; greedy and plain temperature do not.
"""


def main():
    args = parse_arguments()
    rows = []
    for name, options in OPTIONS.items():
        given = [make_input(options, nodes, args.vocab) for nodes in args.nodes]
        rows.append([name, *(time_options(one, args.repeats) for one in given)])
        print(*rows[-1], sep="  ", flush=True)
    head = HEAD.format(vocab=args.vocab, text=TEXT, repeats=args.repeats)
    times = markdown_table(["options", *(f"{n} nodes" for n in args.nodes)], rows)
    nodes = args.nodes[-1]
    passes = PASSES.format(nodes=nodes, vocab=args.vocab, size=nodes * args.vocab * 4 / 1e6)
    text = head + times + passes + count_passes(nodes, args.vocab)
    Result("sampling_cost").write(TITLE, QUESTION, [section(measured(note=RANDOM), text)], FOLLOWS)


def time_options(given: tuple, repeats: int) -> str:
    """Milliseconds of the pipeline, and the ratio of both pipelines. Checks that they agree."""
    pipelines = {"sort": jax.jit(probabilities_by_sort), "search": jax.jit(probabilities)}
    p, expected = (np.asarray(pipelines[name](*given)) for name in ("search", "sort"))
    np.testing.assert_array_equal(p > 0, expected > 0)
    np.testing.assert_allclose(p, expected, rtol=1e-4, atol=1e-7)
    samples = alternate({name: partial(timed, program, given) for name, program in pipelines.items()}, repeats)
    median = {name: np.median(seconds) for name, seconds in samples.items()}
    return f"{median['search'] * 1e3:.1f} ({median['sort'] / median['search']:.1f})"


def make_input(options: dict, nodes: int, vocab: int) -> tuple[jax.Array, SamplingParams, Context]:
    """Random logits of a chain of nodes after a random text, and the options of its row.

    The logits fall as those of language models do: a few tokens hold most of the mass.
    """
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (1, nodes, vocab)) + 4 * rng.standard_exponential((1, nodes, vocab)) ** 0.7
    text, tree = (jnp.asarray(rng.integers(0, vocab, (1, n)), jnp.int32) for n in (TEXT, nodes))
    context = Context(
        tokens=text,
        prompt_length=jnp.full(1, TEXT // 2, jnp.int32),
        length=jnp.full(1, TEXT, jnp.int32),
        limit=jnp.full(1, 2 * TEXT, jnp.int32),
        stop_ids=jnp.full((1, 8), -1, jnp.int32),
        nodes=tree,
        path=jnp.tril(jnp.ones((nodes, nodes), bool)).at[:, 0].set(False)[None],
        states=jnp.zeros((1, nodes), jnp.int32),
    )
    params = sampling_params(1, **{"temperature": 0.8} | options)
    return jnp.asarray(logits, jnp.float32), params, context


def probabilities_by_sort(logits: jax.Array, params: SamplingParams, context: Context) -> jax.Array:
    """``sampling.probabilities`` by a sort and dense counts, without bias and ``min_new_tokens``."""
    V, option = logits.shape[-1], lambda x: x[:, None, None]
    greedy = option(params.temperature == 0)

    def penalise(logits):
        rows, nodes = jnp.arange(logits.shape[0])[:, None, None], jnp.arange(logits.shape[1])[None, :, None]
        on_path = jnp.zeros(logits.shape).at[rows, nodes, context.nodes[:, None]].add(jnp.float32(context.path))
        text, output = (table[:, None] + on_path for table in context.text_counts(V))
        repetition = jnp.where(text > 0, option(params.repetition_penalty), 1)
        logits = jnp.where(logits < 0, logits * repetition, logits / repetition)
        presence = option(params.presence_penalty) * jnp.float32(output > 0)
        return logits - option(params.frequency_penalty) * output - presence

    def truncate(logits):
        ranked = -jnp.sort(-logits, axis=-1)
        last = jnp.where(option(params.top_k) == 0, V, jnp.minimum(option(params.top_k), V)) - 1
        ranked = jnp.where(ranked >= jnp.take_along_axis(ranked, last, -1), ranked, -jnp.inf)
        p = jax.nn.softmax(ranked)
        kept = ((jnp.cumsum(p, -1) - p < option(params.top_p)) | (option(params.top_p) >= 1)) & jnp.isfinite(ranked)
        kept &= p >= option(params.min_p) * p[..., :1]
        return jnp.where(logits >= jnp.min(jnp.where(kept, ranked, jnp.inf), -1, keepdims=True), logits, -jnp.inf)

    def sampled(logits):
        scaled = (logits - logits.max(-1, keepdims=True)) / jnp.where(greedy, 1, option(params.temperature))
        cut = jnp.any((params.top_k > 0) | (params.top_p < 1) | (params.min_p > 0))
        return jnp.where(greedy, one_hot(logits), jax.nn.softmax(jax.lax.cond(cut, truncate, lambda x: x, scaled)))

    one_hot = lambda logits: jax.nn.one_hot(jnp.argmax(logits, -1), V)
    penalties = (params.repetition_penalty != 1) | (params.presence_penalty != 0) | (params.frequency_penalty != 0)
    logits = jax.lax.cond(jnp.any(penalties), penalise, lambda x: x, logits)
    return jax.lax.cond(jnp.all(greedy), one_hot, sampled, logits)


def count_passes(nodes: int, vocab: int) -> str:
    """A table of passes for each option and each compiler, with the least milliseconds."""
    devices = {"NVIDIA H100": ("h100", (1,)), "TPU v5e": ("v5e", (1,))}
    chips = {
        title: (jax.sharding.SingleDeviceSharding(compile_only(name, shape)[0]), DEVICES[name].bandwidth)
        for title, (name, shape) in devices.items()
    }
    rows = []
    for name, options in OPTIONS.items():
        logits, params, context = make_input(options, nodes, vocab)
        cells = []
        for device, bandwidth in chips.values():
            placed = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device)
            # The options are constants of the program, so it has only the branches that they take.
            program = jax.jit(lambda logits, context: probabilities(logits, params, context))
            text = program.lower(placed(logits), jax.tree.map(placed, context)).compile().as_text()
            passes = find_passes(text, logits.size)
            cells += [f"{passes:.1f}", f"{passes * logits.nbytes / bandwidth * 1e3:.3f}"]
        rows.append([name, *cells])
    return markdown_table(
        ["options", *(f"{title}: {what}" for title in chips for what in ("passes", "least ms"))], rows
    )


def find_passes(text: str, size: int) -> float:
    """How often the kernels of a compiled program read or write ``size`` float32 entries in memory.

    A TPU's fast memory, S(1), is not counted.
    """
    found = hlo.computations(text)
    entry = re.search(r"^ENTRY %?([\w.\-]+)", text, re.MULTILINE)
    assert entry is not None

    def count_large(shapes: str) -> float:
        """The bytes of all arrays of at least ``size`` entries, in passes."""
        arrays = re.findall(r"[a-z](\d+|red)\[([\d,]+)\](\{[^}]*\})?", shapes)
        large = [(bits, n) for bits, dims, layout in arrays if (n := count(dims)) >= size and "S(1)" not in layout]
        return sum((1 if bits == "red" else int(bits) / 8) * n / 4 / size for bits, n in large)

    def passes_of(name: str) -> float:
        total, arrays = 0.0, {}
        for i in found[name]:
            result, _, rest = i.text.partition("= ")[2].partition(f" {i.opcode}(")
            arrays[i.name] = count_large(result)
            called = sum(map(passes_of, i.calls)) if i.opcode in ("while", "call", "conditional") else 0.0
            if called and i.opcode == "while":
                trips = re.search(r'known_trip_count":\{"n":"(\d+)"', i.text)
                assert trips, f"the number of trips is unknown: {i.text}"
                called *= int(trips[1])
            total += called
            if i.opcode in ("while", "call", "conditional", "parameter", "tuple", "get-tuple-element", "bitcast"):
                continue
            inside = {i.opcode} | {j.opcode for part in i.calls for j in found.get(part, ())}
            if i.opcode.endswith("-start"):  # its result names the source and the target
                total += arrays[i.name]
            elif not i.opcode.endswith("-done") and not {"gather", "scatter"} & inside:
                operands = set(re.findall(r"%([\w.\-]+)", rest.partition(")")[0]))
                total += arrays[i.name] + sum(arrays.get(operand, 0) for operand in operands)
        return total

    count = lambda dims: math.prod(map(int, dims.split(",")))
    return passes_of(entry[1])


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--nodes", type=integer(1), nargs="+", default=[1, 8, 64], help="nodes of the row's tree")
    parser.add_argument("--vocab", type=integer(1), default=128256)
    parser.add_argument("--repeats", type=integer(1), default=5, help="number of timed runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
