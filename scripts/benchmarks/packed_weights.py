"""Measures weights of four and eight bits on a CPU: speed, rounds of several nodes, perplexity, memory.

    python scripts/benchmarks/packed_weights.py speed FILE.gguf
    XLA_FLAGS=--xla_cpu_max_isa=AVX2 python scripts/benchmarks/packed_weights.py rounds FILE.gguf

FILE.gguf is a packed model, such as SmolLM2-135M-Instruct in Q4_1. Parts are speed, rounds, texts,
quality and memory. The flag limits XLA and the kernels to the instructions of older processors. The
page packed_weights.md has the newest run of each part.
"""

import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from page import Result, arguments, measured, section

import specjax
from specjax import Generator, LanguageModel
from specjax.checkpoints.load import load_tokenizer
from specjax.core.unused_memory import return_unused
from specjax.tools.evaluate.report import markdown_table
from specjax.tools.tune.timers import alternate, forward_timer
from specjax.training import data, losses

FORMS = ("bfloat16", "int8", "int8:exact", "int4", "int4:exact", "stored", "stored:exact")
NODES = (1, 2, 4, 6, 8, 16)
REPEATS, CHAT_REPEATS, NEW = 8, 3, 48
WINDOWS, LENGTH = 8, 256
CHATS = (
    "Write a Python function that reverses a list.", "What is the capital of Italy?", "Explain gravity to a child.",
    "Name three fruits and a dish with each of them.", "Summarise in one sentence why people sleep.",
)  # fmt: skip

TITLE = "Packed weights on a CPU"
QUESTION = """How fast does a CPU decode with weights of four and eight bits, and what do they cost in quality?

`stored` keeps the numbers of the GGUF file. Other programs ran beside, so each time is the shortest of several runs,
which alternate in one process. "AVX2 as the newest instructions" stands for older processors: XLA's flag hides the
others on the same machine."""
FOLLOWS = """
- `int4` and `stored` decode fastest. `int8` hardly changes the perplexity.
- A round of up to four nodes costs little more than one, so drafts of a few tokens pay.
- Greedy texts of methods are those of plain decoding. `stored:exact` has the perplexity of float32.
- `int4` rounds the numbers of a packed file again, which costs a small model much. `stored` does not.
- A load keeps some tens of megabytes for the tokenizer and programs, whatever the model. They weigh most beside few bits.
"""


def load(name: str, form: str) -> LanguageModel:
    """A model in a form: of weights, or a dtype."""
    return specjax.load(name, **({"dtype": form} if form in ("bfloat16", "float32") else {"quantize": form}))


def best(timers: dict, repeats: int) -> dict:
    """The shortest time of each timer."""
    return {name: float(times.min()) for name, times in alternate(timers, repeats).items()}


def chats(generator: Generator, **options) -> list:
    return [
        generator(messages=[[{"role": "user", "content": text}]], max_new_tokens=NEW, **options)[0] for text in CHATS
    ]


def seconds_a_token(generator: Generator, **options) -> float:
    """The seconds of a token on the chats."""
    began = time.perf_counter()
    tokens = sum(len(result.token_ids) for result in chats(generator, **options))
    return (time.perf_counter() - began) / tokens


def speed(name: str) -> str:
    """Plain decoding in each form, and quantized_self."""
    models = {form: load(name, form) for form in FORMS}
    generators = {form: Generator(model, "none", capacity=256) for form, model in models.items()}
    drafting = {f"bfloat16, quantized_self {scheme}": Generator(models["bfloat16"], "quantized_self", capacity=256,
                draft_scheme=scheme) for scheme in ("int4", "int8")}  # fmt: skip
    rows = []
    for heat in (0.0, 0.7):
        times = best({form: (lambda one=one: seconds_a_token(one, temperature=heat, seed=0))
                      for form, one in (generators | drafting).items()}, CHAT_REPEATS)  # fmt: skip
        accepted = {form: chats(one, temperature=heat, seed=0) for form, one in drafting.items()}
        for form, least in times.items():
            calls = [result.stats.mean_acceptance_length for result in accepted.get(form, ())]
            length = f"{sum(calls) / len(calls):.2f}" if calls else "1"
            rows.append([f"{heat}", form, f"{1 / least:.1f}", f"{times['bfloat16'] / least:.2f}", length])
    head = ["temperature", "weights", "tokens/s", "over bfloat16", "tokens a round"]
    return f"Five chats at batch 1, {NEW} new tokens each.\n\n" + markdown_table(head, rows)


def rounds(name: str) -> str:
    timers = {}
    for form in FORMS:
        model = load(name, form).model
        timers |= {(form, nodes): forward_timer(model, 128, jnp.float32, nodes=nodes) for nodes in NODES}
    times = best(timers, REPEATS)
    rows = [
        [form, f"{1e3 * times[form, 1]:.2f}", *(f"{times[form, n] / times[form, 1]:.2f}" for n in NODES[1:])]
        for form in FORMS
    ]
    text = "Milliseconds of a forward of one node after 128 tokens, and how many times as long several nodes take."
    return f"{text}\n\n{markdown_table(['weights', '1, ms', *map(str, NODES[1:])], rows)}"


def texts(name: str) -> str:
    """How many texts are those of plain decoding."""
    rows = []
    for form in FORMS:
        model = load(name, form)
        plain = [result.token_ids for result in chats(Generator(model, "none", capacity=256))]
        own = {}
        for method in ("ngram", "token_recycling"):
            own[method] = [result.token_ids for result in chats(Generator(model, method, capacity=256))]
        messages = [[{"role": "user", "content": text}] for text in CHATS]
        batch = Generator(model, "none", capacity=256)(messages=messages, max_new_tokens=NEW)
        own["batch"] = [result.token_ids for result in batch]
        rows.append([form, *(f"{sum(a == b for a, b in zip(found, plain))} of {len(plain)}" for found in own.values())])
    text = f"Greedy texts of {NEW} tokens that are those of plain decoding at batch 1, by chains, by trees, and in a batch of five."
    return f"{text}\n\n{markdown_table(['weights', 'ngram', 'token_recycling', 'plain, batch of five'], rows)}"


def quality(name: str) -> str:
    """Perplexity on held-out code."""
    rows = []
    for model in ("tiny-python", name):
        found = {}
        for form in ("float32", *FORMS):
            if not form.startswith("stored") or model == name:
                one = load(model, form)
                _, held_out = data.read_streams((), one.tokenizer, one.config.eos_token_ids[0])
                windows = held_out.cut(0, 0, WINDOWS, LENGTH)[0]
                step = jax.jit(losses.next_token)
                found[form] = math.exp(sum(float(step(one.model, jnp.asarray(row)[None])) for row in windows) / WINDOWS)
                del one
        rows += [[os.path.basename(model), form, f"{value:.3f}", f"{100 * (value / found['float32'] - 1):+.2f} %"]
                 for form, value in found.items()]  # fmt: skip
    text = f"Perplexity on {WINDOWS} windows of {LENGTH} tokens of held-out code."
    return f"{text}\n\n{markdown_table(['model', 'weights', 'perplexity', 'over float32'], rows)}"


def memory(name: str) -> str:
    """Each form is loaded by a process of its own."""
    rows = []
    for form in FORMS:
        run = subprocess.run([sys.executable, __file__, "load", name, form], capture_output=True, text=True, check=True)
        stored, held, peak = map(int, run.stdout.split()[-3:])
        rows.append([form, f"{stored / 1e6:.0f} MB", f"{held / stored:.2f}", f"{peak / stored:.2f}"])
    head = ["weights", "in memory", "held after load", "peak of load"]
    return f"Held and peak are in units of the weights, beside the process before, without pages of files.\n\n{markdown_table(head, rows)}"


def print_memory(name: str, form: str) -> None:
    """Prints the bytes of the weights, and by how much the process's own memory grows after and during the load."""
    jnp.zeros(1).block_until_ready()
    load_tokenizer(name)
    return_unused()
    sizes = [own_bytes()]
    loaded = threading.Event()

    def watch():
        while not loaded.wait(0.002):
            sizes.append(own_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    model = jax.block_until_ready(load(name, form).model)
    loaded.set()
    watcher.join()
    print(sum(leaf.nbytes for leaf in jax.tree.leaves(model)), own_bytes() - sizes[0], max(sizes) - sizes[0])


def own_bytes() -> int:
    """The bytes that the process holds, without the pages of files, which the system drops when it needs them."""
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


PARTS: dict[str, Callable[[str], str]] = {
    "speed": speed, "rounds": rounds, "texts": texts, "quality": quality, "memory": memory,
}  # fmt: skip


def main():
    parser = arguments(__doc__)
    parser.add_argument("part", choices=[*PARTS, "load"])
    parser.add_argument("model")
    parser.add_argument("form", nargs="?")
    args = parser.parse_args()
    if args.part == "load":
        print_memory(args.model, args.form)
        return
    result = Result("packed_weights")
    limit = re.search(r"max_isa=(\w+)", os.environ.get("XLA_FLAGS", ""))
    title = args.part.capitalize() + (f", with {limit[1]} as the newest instructions" if limit else "")
    conditions = measured(("tiny-python",), os.path.basename(args.model))
    result.save(result.read() | {title: {"conditions": conditions, "text": PARTS[args.part](args.model)}})
    sections = [
        section(one["conditions"], one["text"], name) for name, one in sorted(result.read().items(), reverse=True)
    ]
    result.write(TITLE, QUESTION, sections, FOLLOWS)


if __name__ == "__main__":
    main()
