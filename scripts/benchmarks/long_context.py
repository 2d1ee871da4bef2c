"""Measures and predicts drafting with a part of the cache at long contexts.

    python scripts/benchmarks/long_context.py [acceptance] [rounds] [plans]

- acceptance: of the embedded target on held-out code, for parts of several sizes. The context is
  at most 2,048 tokens, which is all that this target knows.
- rounds: seconds of a round after 8,192 tokens, beside its bytes by hand. The acceptance is forced.
  The caches hold random keys and values, so no prompt is read. For a target of a real size:
    specjax grow --model tiny-python --like configs/shapes/half_billion.json --output GROWN
    python scripts/benchmarks/long_context.py rounds --model GROWN
- plans: predictions of ``specjax plan`` for Llama-3.1-8B, beside the bytes by hand. They need the
  extras tpu and cuda for their compilers, and no device.

With names of parts it measures these. It writes long_context_<platform>.json and .md after each
figure, and keeps the figures that the first file has. Delete them to measure them anew.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from page import ROOT, Result, arguments, measured, section

import specjax
from specjax.cli.parser import integer
from specjax.drafters import DraftModel, PartialCache, PartialCascade, Plain
from specjax.parallel import make_mesh
from specjax.rules.acceptance import resolve
from specjax.text.cache_dtype import cache_dtype
from specjax.tools.evaluate import held_out_prompts
from specjax.tools.evaluate.report import markdown_table
from specjax.tools.plan.devices import DEVICES, compile_only, parse_device
from specjax.tools.plan.plan import capacity_for, tokens_a_round
from specjax.tools.plan.round_time import plan_round
from specjax.tools.plan.settings import read_shape
from specjax.tools.tune.cost import round_timers
from specjax.tools.tune.timers import alternate

MODELS = ROOT / "configs" / "plans" / "models"
K = 4
"""Drafted tokens of a round."""

CONTEXTS, ROWS, NEW = (1000, 1900), 8, 64
"""Tokens of the prompts at most, prompts of each length, and new tokens of each."""

PARTS = {
    **{f"window of {window}": dict(draft_window=window) for window in (32, 64, 128, 256, 512)},
    **{f"window of 32, {c} chunks of 16": dict(draft_window=32, cache_chunks=c) for c in (2, 6, 14)},
}
"""Options of ``PartialReader`` by the name of the part, all with four sinks."""

LENGTH, BATCHES, FORCED = 8192, (1, 4), 0.8
"""Tokens in the cache, rows, and the chance that a drafted token is accepted."""

ROUNDS = {
    "none": Plain(),
    "draft_model": DraftModel(K),
    "partial_cache, window of 256": PartialCache(num_speculative_tokens=K),
    "partial_cache, window of 64, 12 chunks": PartialCache(num_speculative_tokens=K, draft_window=64, cache_chunks=12),
}

PLANS = [("h100:1", 32768, 1), ("h100:1", 131072, 1), ("h100:8", 32768, 32), ("v5e:2x4", 131072, 1)]
"""Devices, context and batch. Weights and caches fit in the devices' memory."""

PLANNED = {
    "window of 512": (PartialCache(num_speculative_tokens=K, draft_window=512), ()),
    "window of 256, 16 chunks": (PartialCache(num_speculative_tokens=K, cache_chunks=16), ()),
    "Llama-3.2-1B": (DraftModel(K), ("llama-3.2-1b",)),
}
"""The drafter and the draft models of each planned row, by the name in the table."""


def main():
    parser = arguments(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(MEASURES)}; all without")
    parser.add_argument("--model", default="tiny-python", help="the target of the rounds, such as a grown checkpoint")
    parser.add_argument("--draft", default="tiny-python-draft")
    parser.add_argument(
        "--batches", type=integer(1), nargs="+", default=BATCHES, help="batches of the rounds (default 1 4)"
    )
    parser.add_argument("--repeats", type=integer(1), default=5, help="timed runs of each program (default 5)")
    parser.add_argument("--count", type=integer(1), default=16, help="rounds of a timed run (default 16)")
    args = parser.parse_args()
    if wrong := set(args.parts) - set(MEASURES):
        parser.error(f"{', '.join(wrong)}: no part of the page; use {', '.join(MEASURES)}")
    result = Result(f"long_context_{jax.default_backend()}")
    report = result.read()
    for part in args.parts or MEASURES:
        known = report.setdefault(part, {})
        for name, figures in MEASURES[part](args, known):
            known[name] = figures
            print(name, json.dumps(figures), sep="  ", file=sys.stderr, flush=True)
            result.save(report)
            write_page(result)


def measure_acceptance(args, known: dict) -> Iterator[tuple[str, dict]]:
    """Accepted drafts and tokens of a round on held-out code, greedy, in one batch of two contexts."""
    target, draft = specjax.load("tiny-python"), specjax.load("tiny-python-draft").model
    encode = lambda text: target.tokenizer.encode(text, add_special_tokens=False)
    prompts = [encode(text) for context in CONTEXTS for text in held_out_prompts(target.tokenizer, ROWS, context)]
    lengths = [len(prompt) for prompt in prompts]
    conditions = measured(("tiny-python", "tiny-python-draft"), "bfloat16")
    yield "about", {"conditions": conditions, "short": lengths[:ROWS], "long": lengths[ROWS:]}
    read = jax.jit(specjax.prefill, static_argnames=("drafter", "dtype"))
    run = jax.jit(specjax.run, static_argnames=("drafter", "rule"))
    for name, (drafter, given) in drafters_of(draft).items():
        if name in known:
            continue
        requests = specjax.make_requests(prompts, drafter=drafter, max_new_tokens=NEW, capacity=2048)
        state = read(target.model, given, requests, drafter=drafter, dtype=cache_dtype(target))
        rule = resolve("auto", drafter.drawn)
        state = run(target.model, given, state, np.int32(NEW), drafter=drafter, rule=rule)
        counted = jax.device_get(state.counters)
        passes = np.asarray(getattr(state.drafter, "calls", counted.calls * K))
        each = [rates(counted, passes, rows) for rows in (slice(0, ROWS), slice(ROWS, None))]
        yield name, {"positions": getattr(drafter, "most", None), "contexts": each}


def rates(counted, passes, rows: slice) -> dict:
    """The share of accepted drafts, and tokens and forwards of the draft in a round, of some rows."""
    rounds, accepted = counted.calls[rows].sum(), counted.accepted_at[rows].sum()
    return {
        "accepted": float(accepted / counted.drafted[rows].sum()),
        "tokens": float(accepted / rounds + 1),
        "passes": float(passes[rows].sum() / rounds),
    }


def drafters_of(draft) -> dict:
    """Drafters and what they draft with, by their name on the page."""
    found = {"draft_model": (DraftModel(K), draft)}
    found |= {name: (PartialCache(num_speculative_tokens=K, **part), None) for name, part in PARTS.items()}
    cascade = PartialCascade(num_speculative_tokens=K, draft_window=64)
    return found | {
        "window of 64, below it n-grams": (cascade, ()),
        "window of 64, below it the draft": (cascade, (draft,)),
    }


def measure_rounds(args, known: dict) -> Iterator[tuple[str, dict]]:
    """Milliseconds and bytes of a round, and the speed-up at the forced acceptance, by target and batch."""
    target, draft = specjax.load(args.model), specjax.load(args.draft)
    names = {key: Path(getattr(args, key)).name for key in ("model", "draft")}  # no paths of this machine
    conditions = measured((args.model, args.draft), "random keys and values")
    about = {"conditions": conditions, "count": args.count, "weights": target.config.num_weights} | names
    of_target = known.get(names["model"], {}) | {"about": about}
    for batch in args.batches:
        if str(batch) in of_target:
            continue
        shape = dict(length=LENGTH, batch=batch, rounds=args.count, unread=True)
        alone = {name: drafter for name, drafter in ROUNDS.items() if name != "draft_model"}
        timers = round_timers(target, None, alone, **shape)
        timers |= round_timers(target, draft, {"draft_model": ROUNDS["draft_model"]}, **shape)
        runs = {name: runs / args.count for name, runs in alternate(timers, args.repeats).items()}
        seconds = {name: np.median(each) for name, each in runs.items()}
        tokens = lambda name: tokens_a_round(FORCED, ROUNDS[name].depth)
        speedup = {name: tokens(name) * seconds["none"] / seconds[name] for name in ROUNDS}
        kept = cache_dtype(target).itemsize
        moved = {
            name: by_hand(target.config, drafter, (draft.config,) * drafts_of(name), LENGTH, batch, 1, kept)
            for name, drafter in ROUNDS.items()
        }
        ms = {name: (np.percentile(each, [50, 25, 75]) * 1e3).tolist() for name, each in runs.items()}
        of_target = of_target | {str(batch): {"ms": ms, "bytes": moved, "speedup": speedup}}
        yield names["model"], of_target


def drafts_of(method: str) -> int:
    """The number of draft models of a method in ``ROUNDS``."""
    return int(method == "draft_model")


def make_plans(args, known: dict) -> Iterator[tuple[str, dict]]:
    """Predicted rounds of ``PLANNED`` for each of ``PLANS``, with the bytes by hand."""
    yield "about", {"conditions": measured(note="none, shapes alone")}
    target = read_shape(str(MODELS / "llama-3.1-8b.json"))
    for device, context, batch in PLANS:
        kind, shape = parse_device(device)
        chips = compile_only(kind, shape)
        capacity = capacity_for(context, K)
        where = make_mesh(model=len(chips), devices=list(chips)), DEVICES[kind]
        sizes = dict(batch=batch, capacity=capacity, dtype=jnp.dtype("bfloat16"))
        for draft, (drafter, models) in PLANNED.items():
            name = f"{device}, {context} tokens, batch {batch}, {draft}"
            if name in known:
                continue
            drafts = tuple(read_shape(str(MODELS / f"{model}.json")) for model in models)
            plain, planned = (
                plan_round(target, Plain(), (), *where, **sizes),
                plan_round(target, drafter, drafts, *where, **sizes),
            )
            yield (
                name,
                {
                    **dict(device=device, context=context, batch=batch, draft=draft),
                    "bytes": planned.figures.moved,
                    "bytes_by_hand": by_hand(target, drafter, drafts, capacity, batch, len(chips)),
                    "copies": planned.figures.copies,
                    "ms": planned.seconds * 1e3,
                    "plain_ms": plain.seconds * 1e3,
                    "speedup": tokens_a_round(FORCED, K) * plain.seconds / planned.seconds,
                },
            )


def by_hand(target, drafter, drafts: tuple, context: int, batch: int, devices: int, kept: int = 2) -> float:
    """Bytes of a round on one device: K passes of the draft, and one of the target.

    ``kept``: bytes of a key's or value's number.
    """
    weights, row = sizes_of(target, devices, kept)
    verify = weights + batch * context * row
    if not drafter.depth:
        return verify
    if drafts:
        of_draft, row_of_draft = sizes_of(drafts[0], 1, kept)  # each device holds the whole draft
        return verify + K * (of_draft + batch * context * row_of_draft)
    part = batch * drafter.most * row
    means = batch * context / drafter.chunk_size * row / 2 if drafter.cache_chunks else 0
    return verify + K * (weights + part) + 2 * part + means


def sizes_of(config, devices: int, kept: int) -> tuple[float, float]:
    """Bytes of the weights that a token reads, and of the keys and values of a position, on one device."""
    table = 0 if config.tie_embeddings else config.vocab_size * config.hidden_size
    row = kept * 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return 2 * (config.num_weights - table) / devices, row / devices


MEASURES = {"acceptance": measure_acceptance, "rounds": measure_rounds, "plans": make_plans}

TITLE = "Long contexts"
QUESTION = f"""Does a target that drafts with a part of its own cache pay at long contexts, and with which part?

The methods are [`partial_cache`](../methods.md#partial_cache) and
[`partial_cascade`](../methods.md#partial_cascade). A round drafts {K} tokens. All parts have 4 attention sinks."""
FOLLOWS = """
- A window and a few chunks chosen by similarity are accepted more often than a longer window of as many positions.
- The method pays where a round is bound by the cache: many rows or a long context on a device with fast kernels.
- For short contexts a draft model is the better choice.
"""

ACCEPTANCE = """`tiny-python` on held-out code, greedy, {rows} prompts of {short[0]} to {short[1]} tokens and {rows} of {long[0]} to {long[1]}, {new} new
tokens each. *draft_model* is
`tiny-python-draft`, which was trained on texts of at most 512 tokens.

*S* is the number of positions that the draft sees. *accepted* is the share of drafted tokens,
*tokens* the number of tokens in a round, *passes* the number of the draft's forwards in a round.
Below a window n-grams or a smaller draft may draft for the target with the window
(`partial_cascade`). The columns name the longest prompt that was asked for.

"""

ROUND = """Medians of alternating runs, with their quartiles. The caches hold random keys and values, on whose
numbers the time of a round does not depend. The first round of a run also averages the keys of all
chunks. **The acceptance is forced**: each drafted token of every method is accepted with the
probability {forced}, so a round gives {tokens:.2f} tokens. *GB* are the bytes of a round by the sum
below, with the dtype of the cache. *by bytes* is the speed-up if time is in proportion to bytes.
"""

ROUNDS_OF = """
`{model}` ({millions:.0f} M weights) with `{draft}`, runs of {count} rounds.

"""

PLAN = """By the planner of [`specjax plan`](../plan.md), in bfloat16, with full caches. **All times are predictions** from
published figures of the devices; none has been measured. *speed-up* is for drafted tokens that are accepted with the
probability {forced}. *GB a round* is read from the compiled program, for one device. *by hand* is this sum:

    {K} (weights + S rows) + 2 S rows + mean keys + weights + cache

and for a draft model {K} (its weights + its cache) + weights + cache. It counts no scores of attention and
no other intermediate arrays; [GPUs](../gpu.md#long-caches) says where their bytes come from. All drafts get the
same acceptance here. The first table says how much it differs.

"""


def write_page(result: Result) -> None:
    result.write(TITLE, QUESTION, sections_of(result.read()), FOLLOWS)


def sections_of(report: dict) -> list[str]:
    """The sections for the measured parts."""
    parts = {
        "acceptance": lambda found: [
            section(found["about"]["conditions"], acceptance_table(found), "Acceptance, measured")
        ],
        "rounds": lambda found: [round_section(*item) for item in enumerate(found.values())],
        "plans": lambda found: [section(found["about"]["conditions"], plan_table(found), "Llama-3.1-8B, predicted")],
    }
    return [
        text for part, write in parts.items() if {*report.get(part, ())} - {"about"} for text in write(report[part])
    ]


def acceptance_table(found: dict) -> str:
    about = found["about"]
    ends = {key: (min(about[key]), max(about[key])) for key in ("short", "long")}
    text = ACCEPTANCE.format(rows=ROWS, new=NEW, **ends)
    each = lambda c: [f"{c['accepted']:.1%}", f"{c['tokens']:.2f}", f"{c['passes']:.2f}"]
    rows = [
        [name, one["positions"] or "", *(x for c in one["contexts"] for x in each(c))]
        for name, one in found.items()
        if name != "about"
    ]
    head = ["draft", "S"] + [f"{what}, {c}" for c in CONTEXTS for what in ("accepted", "tokens", "passes")]
    return text + markdown_table(head, rows) + "\n"


def round_section(place: int, found: dict) -> str:
    """The rounds of one target; the first one explains the columns."""
    about, batches = found["about"], [key for key in found if key != "about"]
    explained = ROUND.format(length=LENGTH, forced=FORCED, tokens=tokens_a_round(FORCED, K)) if place == 0 else ""
    text = explained + ROUNDS_OF.format(**about, millions=about["weights"] / 1e6)
    rows = [[batch, name, *round_cells(found[batch], name)] for batch in batches for name in ROUNDS]
    table = markdown_table(["batch", "method", "GB", "ms", "by bytes", "speed-up"], rows)
    return section(about["conditions"], text + table, f"A round of {about['model']} after {LENGTH:,} tokens, measured")


def round_cells(found: dict, name: str) -> list[str]:
    tokens, moved = tokens_a_round(FORCED, ROUNDS[name].depth), found["bytes"]
    middle, low, high = found["ms"][name]
    speedups = tokens * moved["none"] / moved[name], found["speedup"][name]
    figures = f"{moved[name] / 1e9:.2f}", f"{middle:.1f} ({low:.1f} to {high:.1f})"
    return [*figures, *(f"{speedup:.2f}" for speedup in speedups)]


def plan_table(found: dict) -> str:
    rows = [
        [p["device"], f"{p['context']:,}", p["batch"], p["draft"]]
        + [f"{p[key] / 1e9:.1f}" for key in ("bytes", "bytes_by_hand")]
        + [f"{p[key]:.1f}" for key in ("ms", "plain_ms")]
        + [f"{p['speedup']:.2f}"]
        for name, p in found.items()
        if name != "about"
    ]
    head = ["devices", "context", "batch", "draft", "GB a round", "by hand", "ms a round", "ms plain", "speed-up"]
    return PLAN.format(K=K, forced=FORCED) + markdown_table(head, rows) + "\n"


if __name__ == "__main__":
    main()
