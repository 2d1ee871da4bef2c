"""Measures quantised weights: perplexity, acceptance, bytes, and the speed of decoding.

    python scripts/benchmarks/quantised.py perplexity
    python scripts/benchmarks/quantised.py acceptance
    python scripts/benchmarks/quantised.py speed

Perplexities and acceptance are those of the embedded pair. Speeds are those of tiny-python grown to
0.5 B parameters (1.0 GB of memory and of disk in bfloat16), and its plain decoding alternates in one
process with that of its quantised copies and with quantized_self. Each part takes a few minutes on
two cores. Writes quantised_<platform>.json and .md; the page has the newest run of each part.
"""

import math
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
from page import Result, arguments, measured, section

import specjax
from specjax import Generator, LanguageModel
from specjax.core.stats import total
from specjax.drafters import Plain
from specjax.models.quantised_weights import SCHEMES, Quantised
from specjax.tools.evaluate.comparison import alternate_runs, encode_prompts, interval, rate, seconds_of
from specjax.tools.evaluate.datasets import held_out_prompts
from specjax.tools.evaluate.report import markdown_table, with_interval
from specjax.tools.grow.grow import grow_model
from specjax.tools.plan.abstract_arguments import abstract
from specjax.tools.plan.program import products_of
from specjax.training import data, losses

FORMS = (None, *SCHEMES)
PAIRS = ((None, None), (None, "int4"), ("int8", "int8"), ("int4", "int4"))
SHAPE = dict(
    hidden_size=2048, intermediate_size=7168, num_layers=8, num_heads=32, num_kv_heads=8, head_dim=64, vocab_size=32768
)
WINDOWS, LENGTH = 32, 256
PROMPTS, NEW, REPEATS = 8, 48, 1
LARGE_PROMPTS, LARGE_NEW, LARGE_REPEATS = 3, 16, 3

TITLE = "Quantised weights"
QUESTION = """What do int8, int4 and fp8 weights cost in quality and in acceptance, and what do they bring in speed?

int8 and int4 have a scale for each group of 32 inputs, and int4 has int8 tables of embeddings and output matrices; fp8
has a scale for each row. Weights and activations that are not quantised are bfloat16."""
FOLLOWS = """
- int8 costs hardly any quality and halves the bytes of the weights; int4 costs some.
- A quantised draft keeps nearly all of its acceptance.
"""


def main():
    parts = {"perplexity": perplexities, "acceptance": acceptance, "speed": speeds}
    parser = arguments(__doc__)
    parser.add_argument("part", choices=parts)
    part = parser.parse_args().part
    result = Result(f"quantised_{jax.default_backend()}")
    report = result.read()
    conditions = measured(("tiny-python", "tiny-python-draft"), "grown to 0.5 B" if part == "speed" else "")
    result.save(report | {part: {"conditions": conditions, "text": parts[part]()}})
    report = result.read()
    sections = [
        section(report[name]["conditions"], report[name]["text"], name.capitalize()) for name in parts if name in report
    ]
    result.write(TITLE, QUESTION, sections, FOLLOWS)


def load_all(name, forms=FORMS) -> dict[str | None, LanguageModel]:
    return {form: specjax.load(name, quantize=form) for form in forms}


PERPLEXITY = f"""Of `tiny-python` on {WINDOWS} windows of {LENGTH} tokens of held-out code."""


def perplexities() -> str:
    target = load_all("tiny-python")
    small = target[None]
    _, held_out = data.read_streams((), small.tokenizer, small.config.eos_token_ids[0])
    windows = jnp.asarray(held_out.cut(0, 0, WINDOWS, LENGTH)[0])
    found = {form: math.exp(losses.next_token(one.model, windows)) for form, one in target.items()}
    rows = [
        [form or "bfloat16", f"{value:.3f}", f"{100 * (value / found[None] - 1):+.2f} %"]
        for form, value in found.items()
    ]
    return f"{PERPLEXITY}\n\n{markdown_table(['weights', 'perplexity', 'over bfloat16'], rows)}"


ACCEPTANCE = f"""Of `tiny-python-draft` for `tiny-python`, both in several forms, greedy, with 5 drafted tokens, on {PROMPTS}
held-out prompts with {NEW} new tokens. "differ" counts texts that differ from plain decoding of the same quantised target;
in bfloat16 a tie may fall differently when several tokens are scored at once."""


def acceptance() -> str:
    target, draft = (load_all(name, (None, "int8", "int4")) for name in ("tiny-python", "tiny-python-draft"))
    prompts = encode_prompts(target[None], held_out_prompts(target[None].tokenizer, PROMPTS, 128))
    written = lambda runs: [list(results[0].token_ids) for results in runs]
    generators = {pair: Generator(target[pair[0]], "draft_model", draft[pair[1]]) for pair in PAIRS}
    generators |= {form: Generator(target[form], "none") for form, _ in PAIRS}
    runs = alternate_runs(generators, prompts, NEW, REPEATS, lambda done, of: None)
    rows = []
    for ours, theirs in PAIRS:
        stats = total([results[0].stats for results in runs[ours, theirs]])
        differ = sum(a != b for a, b in zip(written(runs[ours, theirs]), written(runs[ours])))
        names = [ours or "bfloat16", theirs or "bfloat16"]
        rows.append(
            [*names, f"{100 * stats.draft_acceptance_rate:.1f} %", f"{stats.mean_acceptance_length:.2f}", differ]
        )
    return f"{ACCEPTANCE}\n\n{markdown_table(['target', 'draft', 'accepted', 'tokens/call', 'differ'], rows)}"


SPEED = f"""`tiny-python` grown to {{weights:.2f}} B parameters, greedy at batch 1, on {LARGE_PROMPTS} prompts with {LARGE_NEW}
new tokens; all rows alternate in one process. "matrices" are the bytes that a plain token reads of the stored weights;
"planned" is the same by the planner, from the configuration alone. A speed-up is the median of {LARGE_REPEATS} runs of each
prompt over that of plain decoding in bfloat16, with its 95 % bootstrap interval over prompts. `quantized_self` drafts 4
tokens with the target's own int4 copy; a grown model's later layers add little, so its acceptance means nothing for other
models."""


def speeds() -> str:
    with tempfile.TemporaryDirectory() as directory:
        small = specjax.load("tiny-python")
        grow_model(small, small.config.replace(**SHAPE), Path(directory) / "grown")
        target = load_all(Path(directory) / "grown", (None, "int8", "int4"))
    generators = {form: Generator(one, "none") for form, one in target.items()}
    generators["self"] = Generator(target[None], "quantized_self", draft_scheme="int4")
    prompts = encode_prompts(target[None], held_out_prompts(target[None].tokenizer, LARGE_PROMPTS, 64))
    runs = alternate_runs(generators, prompts, LARGE_NEW, LARGE_REPEATS, lambda done, of: None)
    seconds, rows = {form: seconds_of(found) for form, found in runs.items()}, []
    for form in generators:
        stats, name = total([results[0].stats for results in runs[form]]), form or "bfloat16"
        ratio = with_interval(
            float(rate(seconds[None], seconds[form])), interval(rate, seconds[None], seconds[form]), ".2f"
        )
        speed = f"{stats.generated / seconds[form].sum():.1f}"
        sizes = (
            ["", ""]
            if form == "self"
            else [f"{size / 1e9:.3f} GB" for size in (stored(target[form]), planned(target[form], form))]
        )
        rows.append(["bfloat16, quantized_self" if form == "self" else name, *sizes, speed, ratio,
                     f"{stats.mean_acceptance_length:.2f}"])  # fmt: skip
    head = ["weights", "matrices", "planned", "tokens/s", "speed-up", "tokens/call"]
    return f"{SPEED.format(weights=target[None].config.num_weights / 1e9)}\n\n{markdown_table(head, rows)}"


def stored(model: LanguageModel) -> int:
    """Bytes of the numbers in the matrices that a token reads, without the table of embeddings and the scales."""
    is_weight = lambda leaf: isinstance(leaf, Quantised)
    layers = [*model.model.layers, model.model.head if model.model.head is not None else model.model.embed]
    leaves = [leaf.values if is_weight(leaf) else leaf for leaf in jax.tree.leaves(layers, is_leaf=is_weight)]
    return sum(leaf.nbytes for leaf in leaves if leaf.ndim == 2)


def planned(model: LanguageModel, form: str | None) -> float:
    """The same bytes by ``tools.plan.products``, without the cache."""
    config, mesh = model.config, specjax.make_mesh()
    sizes = dict(batch=1, capacity=256, dtype=jnp.dtype(config.dtype))
    cache = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 256 * jnp.dtype(config.dtype).itemsize
    return products_of(abstract(config, Plain(), (), mesh, quantize=form, **sizes)).bytes - cache


if __name__ == "__main__":
    main()
