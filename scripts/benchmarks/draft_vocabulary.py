"""Measures draft models whose output matrix covers the most frequent tokens only (--draft-vocab).

    python scripts/benchmarks/draft_vocabulary.py --vocabulary 4096
    python scripts/benchmarks/draft_vocabulary.py --vocabulary 131072

The pair is embedded: tiny-python and its draft, and the same two grown to a vocabulary of 128k
tokens and a slightly larger width, which leaves the texts as they are. Plain decoding, the full
output matrix and the smaller ones alternate in one process. Each run takes a few minutes on two
cores. Writes draft_vocabulary_<platform>.json and .md; the page has the newest run of each
vocabulary.
"""

import math
import tempfile
from pathlib import Path

import jax
import numpy as np
from page import Result, arguments, measured, section

import specjax
from specjax import Generator, LanguageModel
from specjax.core.stats import total
from specjax.tools.evaluate.comparison import alternate_runs, encode_prompts, interval, rate, seconds_of
from specjax.tools.evaluate.datasets import held_out_prompts
from specjax.tools.evaluate.report import markdown_table, with_interval
from specjax.tools.grow.grow import grow_model
from specjax.training.frequency import frequent_tokens

SIZES = {4096: (512, 1024, 2048), 131072: (512, 2048)}
"""The draft vocabularies of each vocabulary."""
PROMPTS, NEW, REPEATS = 8, 48, 3

TITLE = "Draft vocabularies"
QUESTION = "Does a draft that knows only the most frequent tokens pay, and from which size of vocabulary on?"
TEXT = f"""The draft of `tiny-python` drafts the most frequent tokens of its training text only; its output matrix has only
their rows. "covered" is the share of the tokens that plain decoding writes which are in the draft vocabulary. Decoding is
greedy at batch 1, with 5 drafted tokens, on {PROMPTS} held-out prompts with {NEW} new tokens; all rows of a table
alternate in one process. A speed-up is the median of {REPEATS} runs of each prompt over that of the other row, with its
95 % bootstrap interval over prompts. "differ" counts texts that differ from those of plain decoding; in bfloat16 a tie
may fall differently.
"""
FOLLOWS = """
- Give `--draft-vocab` where the target has a large vocabulary: there the output matrix is most of a small draft.
- With a few thousand tokens leave it out.
"""


def main():
    parser = arguments(__doc__)
    parser.add_argument("--vocabulary", type=int, choices=SIZES, required=True)
    vocabulary = parser.parse_args().vocabulary
    result = Result(f"draft_vocabulary_{jax.default_backend()}")
    tables = result.read()
    pair = [specjax.load(name) for name in ("tiny-python", "tiny-python-draft")]
    conditions = measured([model.name for model in pair], "grown to the larger vocabulary")
    with tempfile.TemporaryDirectory() as directory:
        if vocabulary != pair[0].config.vocab_size:
            pair = [grow(model, Path(directory) / model.name, vocabulary) for model in pair]
        tables[str(vocabulary)] = {"conditions": conditions, "table": measure(*pair, SIZES[vocabulary])}
    result.save(tables)
    sections = [
        section(table["conditions"], table["table"], f"{int(size):,} tokens") for size, table in sorted(tables.items())
    ]
    result.write(TITLE, f"{QUESTION}\n\n{TEXT}", sections, FOLLOWS)


def grow(model: LanguageModel, directory: Path, vocabulary: int) -> LanguageModel:
    """The model with more tokens, which are never written.

    They need a further channel. Widths are kept divisible by the heads and by 32, as the kernel for products asks.
    """
    width = model.config.hidden_size + math.lcm(model.config.num_heads, 32)
    grow_model(model, model.config.replace(vocab_size=vocabulary, hidden_size=width), directory)
    return specjax.load(directory)


def measure(target: LanguageModel, draft: LanguageModel, sizes: tuple[int, ...]) -> str:
    """A table with a row for each draft vocabulary."""
    tokens = {size: frequent_tokens(target, size) for size in sizes}
    drafts = {size: specjax.restrict_draft(draft, target, known) for size, known in tokens.items()}
    generators = {"none": Generator(target, "none")} | {
        size: Generator(target, "draft_model", given) for size, given in ({"all": draft} | drafts).items()
    }
    prompts = encode_prompts(target, held_out_prompts(target.tokenizer, PROMPTS, 128))
    runs = alternate_runs(generators, prompts, NEW, REPEATS, lambda done, of: None)
    seconds, texts = {size: seconds_of(found) for size, found in runs.items()}, written(runs["none"])
    rows = []
    for size in ["all", *drafts]:
        stats = total([results[0].stats for results in runs[size]])
        ratio = lambda other: with_interval(
            float(rate(seconds[other], seconds[size])), interval(rate, seconds[other], seconds[size]), ".2f"
        )
        covered = "100 %" if size == "all" else f"{100 * np.isin(np.concatenate(texts), tokens[size]).mean():.1f} %"
        differ = sum(ours != theirs for ours, theirs in zip(written(runs[size]), texts))
        rows.append(
            [size, covered, f"{100 * stats.draft_acceptance_rate:.1f} %", f"{stats.mean_acceptance_length:.2f}",
             ratio("none"), ratio("all"), differ]
        )  # fmt: skip
    head = ["draft vocabulary", "covered", "accepted", "tokens/call", "speed-up", "over the full matrix", "differ"]
    return markdown_table(head, rows)


def written(runs: list) -> list[list[int]]:
    """The new tokens of each prompt."""
    return [list(results[0].token_ids) for results in runs]


if __name__ == "__main__":
    main()
