"""Measures rollouts: new weights, sampling with drafts beside plain sampling, and a head that learns along.

    python scripts/benchmarks/rollouts.py

Three tables: a hundred swaps of weights in an engine, with compilations and memory; the time of one
batch with drafts over that without, both alternating in this process; and mean acceptance lengths while a
training moves the target to C headers. The embedded EAGLE-3 head drafts once unchanged, and once it learns
between calls. Both are measured on beginnings that the head never learns from. Writes the page
rollouts_<platform>.md.
"""

import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from page import Result, arguments, measured, quartiles, resident_bytes, section

from specjax import Engine, Generator, LanguageModel, load
from specjax.cli.parser import integer
from specjax.core.stats import total
from specjax.tools.evaluate import held_out_prompts
from specjax.tools.evaluate.report import markdown_table
from specjax.training.losses import scores
from specjax.training.online.head import OnlineHead
from specjax.training.recipe import make_recipe

NEW, PROMPT = 64, 24
"""New tokens of a text, and tokens of its beginning."""

TITLE = "Rollouts"
QUESTION = "Do drafts survive a policy whose weights change, and what do new weights cost?"
TEXT = """New weights in a running engine:

{swaps}

Sampling with drafts: tiny-python-draft with the rule `sample_and_walk`, equal texts. Time of a batch without drafts over
that with drafts at temperature {temperature}, median and quartiles of {runs} alternating runs.

{speed}

A head that learns along: the policy is trained on C headers, and tiny-python-eagle3 drafts for it. Before each row the
policy makes as many steps as the head. The head learns from texts that the policy writes at temperature 1 after one half
of the beginnings. Both heads are measured at temperature 1 on the other half: new tokens per target call.

{online}
"""
FOLLOWS = """
- New weights need no compilation and no memory; swap them as often as the training likes.
- A head that learns from the policy's texts keeps its acceptance while the policy moves; a fixed one loses it.
"""


def measure_swaps(target: LanguageModel, swaps: int) -> str:
    engine = Engine(target, draft="tiny-python-draft", slots=2, capacity=128)
    models = target.model, jax.tree.map(lambda x: x * 1.01, target.model)

    def swap(times: int) -> float:
        began = time.perf_counter()
        for i in range(times):
            engine.update(models[i % 2])
            engine.submit("import os\n", max_new_tokens=4).result()
        return time.perf_counter() - began

    swap(4)
    compiled, before = engine.programs.compile_seconds, (read_arrays(), resident_bytes())
    seconds = swap(swaps)
    rows = [
        ["seconds of compilation", f"{engine.programs.compile_seconds - compiled:.1f}"],
        ["growth of device arrays", f"{read_arrays() - before[0]:,} bytes"],
        ["growth of resident memory", f"{resident_bytes() - before[1]:,} bytes"],
        ["time of a swap and a text of 4 tokens", f"{1000 * seconds / swaps:.1f} ms"],
    ]
    return markdown_table([f"{swaps} swaps", "value"], rows)


def read_arrays() -> int:
    """The bytes of all arrays on the device."""
    return sum(array.nbytes for array in jax.live_arrays())


def measure_speed(target: LanguageModel, batches: list[int], runs: int, temperature: float) -> str:
    plain, rows = Generator(target, "none"), []
    options = dict(draft_temperature=0.1, rule="sample_and_walk", num_speculative_tokens=3)
    drafted = Generator(target, draft="tiny-python-draft", **options)
    prompts = [target.tokenizer.encode(text)[:PROMPT] for text in held_out_prompts(target.tokenizer, max(batches), 64)]
    for batch in batches:
        ratios, calls = [], []
        for seed in range(runs + 1):
            found = [
                g(prompts[:batch], max_new_tokens=NEW, ignore_eos=True, temperature=temperature, seed=seed)
                for g in (plain, drafted)
            ]
            assert [r.token_ids for r in found[0]] == [r.token_ids for r in found[1]]
            if seed:  # the first run compiles
                slow, fast = (results[0].stats.decode_seconds for results in found)
                ratios.append(slow / fast)
                calls.append(NEW / max(r.stats.target_calls for r in found[1]))
        rows.append([str(batch), quartiles(ratios), f"{np.mean(calls):.2f}"])
    return markdown_table(["rows", "speed-up", "tokens per round of the slowest row"], rows)


def measure_online(target: LanguageModel, rounds: int, steps: int) -> str:
    """The mean acceptance lengths of a fixed head and of a learning head, while a training moves the policy."""
    fixed, learning = (Generator(target, draft="tiny-python-eagle3", num_speculative_tokens=4) for _ in range(2))
    recipe = dict(kind="online", steps=rounds * steps, batch=8, length=64, loss={"steps": 4})
    head = OnlineHead(learning, make_recipe(recipe, "this script"))
    texts = [path.read_text(errors="replace") for path in sorted(Path(sysconfig.get_path("include")).rglob("*.h"))]
    texts = [target.tokenizer.encode(text[:20000]) for text in texts if len(text) > 3000]
    ids = [text[600 : 600 + PROMPT] for text in texts if len(text) > 600 + PROMPT]
    seen, unseen, corpus = ids[0:64:2], ids[1:64:2], np.concatenate(texts)
    options: dict[str, Any] = dict(max_new_tokens=NEW, ignore_eos=True, temperature=1.0, n=3)
    measure = lambda generator: total([r.stats for r in generator(unseen, seed=99, **options)]).mean_acceptance_length
    weights, rows = move_policy(target, corpus, rounds, steps), []
    for i in range(rounds + 1):
        rows.append([str(i * steps), *(f"{measure(generator):.2f}" for generator in (fixed, learning))])
        head.recorded.windows.clear()
        if i < rounds:
            new = next(weights)
            for generator in (fixed, learning):
                generator.update(new)
            learning(seen, seed=i, **options)
            head.learn(steps)
    return markdown_table(["steps", "fixed head", "head that learns"], rows)


def move_policy(target: LanguageModel, corpus: np.ndarray, rounds: int, steps: int) -> Iterator[Any]:
    """The weights after each ``steps`` steps of a training on windows of ``corpus``, by cross-entropy."""
    graph, weights = nnx.split(target.model, nnx.Param)
    optimizer, rng = optax.adam(3e-4), np.random.default_rng(0)

    @jax.jit
    def step(weights, memory, batch):
        def loss(weights):
            logits = scores(nnx.merge(graph, weights), batch[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()

        updates, memory = optimizer.update(jax.grad(loss)(weights), memory)
        return optax.apply_updates(weights, updates), memory

    memory = optimizer.init(weights)
    for _ in range(rounds):
        for _ in range(steps):
            starts = rng.integers(0, corpus.size - 97, 8)
            weights, memory = step(weights, memory, corpus[starts[:, None] + np.arange(97)])
        yield weights


def main():
    parser = arguments(__doc__)
    parser.add_argument("--swaps", type=integer(1), default=100)
    parser.add_argument("--runs", type=integer(1), default=9)
    parser.add_argument("--rows", type=integer(1), nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=integer(1), default=5, help="calls after which the head learns")
    parser.add_argument("--steps", type=integer(1), default=20, help="steps that it learns after each")
    parser.add_argument("--output", type=Path, help="the page (default rollouts_<platform>.md of the results)")
    args = parser.parse_args()
    target, temperature = load("tiny-python", dtype="float32"), 0.7
    text = TEXT.format(
        swaps=measure_swaps(target, args.swaps),
        temperature=temperature,
        runs=args.runs,
        speed=measure_speed(target, args.rows, args.runs, temperature),
        online=measure_online(target, args.rounds, args.steps),
    )
    conditions = measured(("tiny-python", "tiny-python-draft", "tiny-python-eagle3"), "float32")
    result = Result(f"rollouts_{jax.default_backend()}")
    if args.output:
        result = Result(args.output.stem, folder=args.output.parent)
    result.write(TITLE, QUESTION, [section(conditions, text)], FOLLOWS)
    print(text)


if __name__ == "__main__":
    main()
