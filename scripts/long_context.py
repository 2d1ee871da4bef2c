"""Measures and predicts drafting with a part of the cache at long contexts.

    python scripts/long_context.py [acceptance] [rounds] [plans]

- acceptance: of the embedded target on held-out code, for parts of several sizes. The context is
  at most 2,048 tokens, which is all that this target knows.
- rounds: seconds of a round after 8,192 random tokens. The acceptance is forced.
- plans: predictions of ``specjax plan`` for Llama-3.1-8B, beside the bytes by hand. They need the
  extras tpu and cuda for their compilers, and no device.

With names of parts it measures these and keeps the figures of the others. Writes
docs/results/long_context_<platform>.json and .md.
"""

import argparse
import json
import sys
from pathlib import Path

import jax
import numpy as np

import specjax
from specjax.cli.parser import integer
from specjax.drafters import DraftModel, PartialCache, PartialCascade, Plain
from specjax.evaluation import held_out_prompts, machine
from specjax.evaluation.report import markdown_table
from specjax.planning.cost import round_timers
from specjax.planning.plan import tokens_a_round
from specjax.planning.plan_settings import make_plan, read_shape
from specjax.planning.timers import alternate
from specjax.session import cache_dtype
from specjax.verify import resolve

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
MODELS = ROOT / "configs" / "plans" / "models"
K = 4
"""Drafted tokens of a round."""

STATIC = ("drafter", "rule", "dtype")

CONTEXTS, ROWS, NEW = (1000, 1900), 8, 64
"""Tokens of the prompts at most, prompts of each length, and new tokens of each."""

PARTS = {
    **{f"window of {window}": dict(draft_window=window) for window in (32, 64, 128, 256, 512)},
    **{f"window of 32, {c} chunks of 16": dict(draft_window=32, cache_chunks=c) for c in (2, 6, 14)},
}
"""Options of ``PartialReader`` by the name of the part, all with four sinks."""

LENGTH, BATCHES, FORCED = 8192, (1, 8), 0.8
"""Tokens in the cache, rows, and the chance that a drafted token is accepted."""

ROUNDS = {
    "none": Plain(),
    "draft_model": DraftModel(K),
    "partial_cache, window of 256": PartialCache(num_speculative_tokens=K),
    "partial_cache, window of 64, 12 chunks": PartialCache(num_speculative_tokens=K, draft_window=64, cache_chunks=12),
}

PLANS = [
    ("h100:1", 32768, 1),
    ("h100:1", 131072, 1),
    ("h100:8", 32768, 32),
    ("v5e:2x4", 32768, 1),
    ("v5e:2x4", 131072, 1),
]
"""Devices, context and batch."""

PLANNED = {
    "window of 512": ("partial_cache", dict(draft_window=512), ()),
    "window of 256, 16 chunks": ("partial_cache", dict(draft_window=256, cache_chunks=16), ()),
    "Llama-3.2-1B": ("draft_model", {}, ("llama-3.2-1b",)),
}
"""Method, options and drafts, by the name of the draft."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(MEASURES)}; all without")
    parser.add_argument("--model", default="tiny-python", help="the target of the rounds, such as a grown checkpoint")
    parser.add_argument("--draft", default="tiny-python-draft")
    parser.add_argument("--repeats", type=integer(1), default=5, help="timed runs of each program")
    args = parser.parse_args()
    if wrong := set(args.parts) - set(MEASURES):
        parser.error(f"{', '.join(wrong)}: no part of the page; use {', '.join(MEASURES)}")
    path = RESULTS / f"long_context_{jax.default_backend()}.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    for part in args.parts or MEASURES:
        report[part] = MEASURES[part](args)
        path.write_text(json.dumps(report, indent=1) + "\n")
        path.with_suffix(".md").write_text(page(report))


def measure_acceptance(args) -> dict:
    """Accepted drafts and tokens of a round on held-out code, greedy, in one batch of two contexts."""
    target, draft = specjax.load("tiny-python"), specjax.load("tiny-python-draft").model
    encode = lambda text: target.tokenizer.encode(text, add_special_tokens=False)
    prompts = [encode(text) for context in CONTEXTS for text in held_out_prompts(target.tokenizer, ROWS, context)]
    read, run = jax.jit(specjax.prefill, static_argnames=STATIC), jax.jit(specjax.run, static_argnames=STATIC)
    found = {"machine": machine(target), "lengths": [len(prompt) for prompt in prompts], "settings": []}
    for name, (drafter, given) in drafters_of(draft).items():
        requests = specjax.make_requests(prompts, drafter=drafter, max_new_tokens=NEW, capacity=2048)
        state = read(target.model, given, requests, drafter=drafter, dtype=cache_dtype(target))
        rule = resolve("auto", drafter.drawn)
        state = run(target.model, given, state, np.int32(NEW), drafter=drafter, rule=rule)
        counted = jax.device_get(state.counters)
        of_part = getattr(state.drafter, "calls", counted.calls * K)  # the target's forwards with a part of the cache
        each = []
        for rows in (slice(0, ROWS), slice(ROWS, None)):
            rounds, accepted = counted.calls[rows].sum(), counted.accepted_at[rows].sum()
            drafted, passes = counted.drafted[rows].sum(), np.asarray(of_part)[rows].sum()
            each.append({"accepted": accepted / drafted, "tokens": accepted / rounds + 1, "passes": passes / rounds})
        each = [{key: float(value) for key, value in one.items()} for one in each]
        found["settings"].append({"draft": name, "positions": getattr(drafter, "most", None), "contexts": each})
        print(json.dumps(found["settings"][-1]), file=sys.stderr, flush=True)
    return found


def drafters_of(draft) -> dict:
    """Drafters and what they draft with, by their name on the page."""
    found = {"draft_model": (DraftModel(K), draft)}
    found |= {name: (PartialCache(num_speculative_tokens=K, **part), None) for name, part in PARTS.items()}
    cascade = PartialCascade(num_speculative_tokens=K, draft_window=64)
    return found | {
        "window of 64, below it n-grams": (cascade, ()),
        "window of 64, below it the draft": (cascade, (draft,)),
    }


def measure_rounds(args) -> dict:
    """Milliseconds of a round, and the speed-up at the forced acceptance."""
    target, draft = specjax.load(args.model), specjax.load(args.draft)
    found = {"machine": machine(target), "model": Path(args.model).name, "draft": Path(args.draft).name, "batches": []}
    for batch in BATCHES:
        timers = {}
        for name, drafter in ROUNDS.items():
            model = draft if name == "draft_model" else None
            timers |= round_timers(target, model, {name: drafter}, length=LENGTH, batch=batch, rounds=4)
        seconds = {name: np.median(runs) / 4 for name, runs in alternate(timers, args.repeats).items()}
        tokens = lambda name: tokens_a_round(FORCED, ROUNDS[name].depth)
        speedup = {name: tokens(name) * seconds["none"] / seconds[name] for name in ROUNDS}
        found["batches"].append({"batch": batch, "ms": {n: s * 1e3 for n, s in seconds.items()}, "speedup": speedup})
        print(json.dumps(found["batches"][-1]), file=sys.stderr, flush=True)
    return found


def make_plans(args) -> list[dict]:
    """Plans of ``PLANNED`` for each of ``PLANS``, with the bytes of a round by hand."""
    found = []
    for device, context, batch in PLANS:
        for name, (method, options, drafts) in PLANNED.items():
            files = [str(MODELS / f"{model}.json") for model in drafts]
            options = {"num_speculative_tokens": K} | options
            settings = dict(device=device, batch=batch, max_length=context, method=method, draft=files, options=options)
            planned = make_plan(settings | {"model": str(MODELS / "llama-3.1-8b.json")})
            keys = (
                "fits",
                "bytes_per_round",
                "seconds_per_round",
                "plain_seconds_per_token",
                "speedup",
                "cache_copies",
            )
            kept = {key: planned[key] for key in keys} | dict(device=device, context=context, batch=batch, draft=name)
            devices = int(np.prod(list(planned["mesh"].values())))
            found.append(kept | {"bytes_by_hand": by_hand(method, options, drafts, context, batch, devices)})
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def by_hand(method: str, options: dict, drafts: tuple, context: int, batch: int, devices: int) -> float:
    """Bytes of a round on one device: K passes of the draft, and one of the target."""
    target = sizes("llama-3.1-8b", devices)
    verify = target["weights"] + batch * context * target["row"]
    if method == "draft_model":
        (draft,) = (sizes(name, 1) for name in drafts)  # each device holds the whole draft
        return verify + K * (draft["weights"] + batch * context * draft["row"])
    part = PartialCache(**options)
    gathered = batch * part.most * target["row"]
    means = batch * context / part.chunk_size * target["row"] / 2 if part.cache_chunks else 0
    return verify + K * (target["weights"] + gathered) + 2 * gathered + means


def sizes(name: str, devices: int) -> dict:
    """Bytes of a model's weights that a token reads, and of the keys and values of a position, on one device."""
    config = read_shape(str(MODELS / f"{name}.json"))
    table = 0 if config.tie_embeddings else config.vocab_size * config.hidden_size
    row = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return {"weights": 2 * (config.num_weights - table) / devices, "row": 2 * row / devices}


MEASURES = {"acceptance": measure_acceptance, "rounds": measure_rounds, "plans": make_plans}

HEAD = """# Long contexts

`python scripts/long_context.py` writes this page. It is about [`partial_cache`](../methods.md#partial_cache) and
[`partial_cascade`](../methods.md#partial_cascade): the target drafts and reads a part of its cache. A round drafts
{K} tokens. All parts have 4 attention sinks.
"""

ACCEPTANCE = """
## Acceptance, measured

`tiny-python` on held-out code, greedy, {rows} prompts of {short[0]} to {short[1]} tokens and {rows} of {long[0]} to
{long[1]}, {new} new tokens each; {machine}. *S* is the number of positions that the draft sees. *accepted* is the
share of drafted tokens, *tokens* the number of tokens in a round, *passes* the number of the draft's forwards in a
round. Below a window n-grams or a smaller draft may draft for the target with the window (`partial_cascade`).

"""

ROUND = """
## A round after {length:,} tokens, measured

`{model}` with `{draft}`; {machine}. Medians of runs that alternate. The text is random. **The acceptance is forced**:
each drafted token of every method is accepted with the probability {forced}, so a round gives {tokens:.2f} tokens. The
model was trained on 2,048 positions, so an acceptance measured here would mean nothing.

"""

PLAN = """
## Llama-3.1-8B, predicted

`specjax plan` in bfloat16. **All times are predictions** from published figures of the devices; none has been
measured. *speed-up* is for drafted tokens that are accepted with the probability {forced}. *GB a round* is read from
the compiled program, for one device. *by hand* is the sum of weights, cache and part:

    {K} (weights + S rows) + 2 S rows + mean keys + weights + cache

"""


def page(report: dict) -> str:
    """The page for the measured parts."""
    text = HEAD.format(K=K)
    if "acceptance" in report:
        text += acceptance_table(report["acceptance"])
    if "rounds" in report:
        text += round_table(report["rounds"])
    if "plans" in report:
        text += plan_table(report["plans"])
    return text


def acceptance_table(found: dict) -> str:
    short, long = found["lengths"][:ROWS], found["lengths"][ROWS:]
    ends = lambda lengths: (min(lengths), max(lengths))
    text = ACCEPTANCE.format(rows=ROWS, short=ends(short), long=ends(long), new=NEW, machine=in_words(found["machine"]))
    each = lambda c: [f"{c['accepted']:.1%}", f"{c['tokens']:.2f}", f"{c['passes']:.2f}"]
    rows = [[s["draft"], s["positions"] or "", *(x for c in s["contexts"] for x in each(c))] for s in found["settings"]]
    head = ["draft", "S"] + [f"{what}, {c}" for c in CONTEXTS for what in ("accepted", "tokens", "passes")]
    return text + markdown_table(head, rows) + "\n"


def round_table(found: dict) -> str:
    text = ROUND.format(
        length=LENGTH,
        forced=FORCED,
        tokens=tokens_a_round(FORCED, K),
        **found | {"machine": in_words(found["machine"])},
    )
    head = ["method"] + [f"{what}, batch {b['batch']}" for b in found["batches"] for what in ("ms", "speed-up")]
    rows = [
        [name, *(x for b in found["batches"] for x in (f"{b['ms'][name]:.1f}", f"{b['speedup'][name]:.2f}"))]
        for name in ROUNDS
    ]
    return text + markdown_table(head, rows) + "\n"


def plan_table(plans: list[dict]) -> str:
    rows = [
        [p["device"], f"{p['context']:,}", p["batch"], p["draft"], "yes" if p["fits"] else "no"]
        + [f"{p[key] / 1e9:.1f}" for key in ("bytes_per_round", "bytes_by_hand")]
        + [f"{p[key] * 1e3:.1f}" for key in ("seconds_per_round", "plain_seconds_per_token")]
        + [f"{p['speedup'][str(FORCED)]:.2f}"]
        for p in plans
    ]
    head = [
        "devices",
        "context",
        "batch",
        "draft",
        "fits",
        "GB a round",
        "by hand",
        "ms a round",
        "ms plain",
        "speed-up",
    ]
    return PLAN.format(K=K, forced=FORCED) + markdown_table(head, rows) + "\n"


def in_words(machine: dict) -> str:
    return f"{machine['dtype']}, {machine['cpu']}, {machine['cores']} cores, jax {machine['jax']}"


if __name__ == "__main__":
    main()
