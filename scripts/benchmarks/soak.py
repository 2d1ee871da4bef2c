"""Decodes thousands of prompts with random options, and checks results, memory and compilations.

    python scripts/benchmarks/soak.py [--prompts 10000]

Every batch mixes greedy and sampled rows, penalties, biases, constraints, and stop strings that end
rows at random. Greedy rows must equal plain decoding, and memory must not grow. No program may be
compiled after the first tenth of the prompts; in a short run, after twelve batches. Writes
soak_<platform>.json and .md.
"""

import json
import time
from collections.abc import Sequence

import jax
import numpy as np
from page import Result, arguments, measured, resident_bytes, section
from rich.progress import track

from specjax import Generator, LanguageModel, load
from specjax.tools.evaluate import held_out_prompts
from specjax.tools.evaluate.report import markdown_table

SHORTEST, LONGEST, NEW = 8, 48, 16
STOPS = ["\n\n", "self", " = ", "return", "):", "None", "import", "if ", "in", "the", "['", "0", "def "]
REGEXES = [None, None, None, r"[a-z_ ]{4,60}", r"( |\n|[a-z]|[0-9]|[_.(),:=])+"]


TITLE = "A long run of random options"
QUESTION = "Do texts stay right and memory level over thousands of prompts with random options?"
FOLLOWS = """
- Options may be mixed in a batch at will; no program is compiled anew for them.
- A process may run for days: neither arrays nor resident memory grow.
"""


def main():
    parser = arguments(__doc__)
    parser.add_argument("--target", default="tiny-python")
    parser.add_argument("--draft", default="tiny-python-draft")
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=16, help="prompts in a batch")
    parser.add_argument("--method", default="draft_model", choices=("draft_model", "ngram"))
    args = parser.parse_args()
    target = load(args.target, dtype="float32")
    draft = load(args.draft, dtype="float32") if args.method == "draft_model" else None
    texts = held_out_prompts(target.tokenizer, 200, 64)
    encoded = [target.tokenizer.encode(text) for text in texts]
    report = soak(target, args.method, draft, encoded, args.prompts, args.rows)
    models = [args.target] if draft is None else [args.target, args.draft]
    conditions = measured(models, f"{args.method}, float32, {args.rows} rows a batch")
    result = Result(f"soak_{jax.default_backend()}")
    result.save(report | {"conditions": conditions})
    result.write(TITLE, QUESTION, [section(conditions, describe(report))], FOLLOWS)
    print(json.dumps(report, indent=1))
    raise SystemExit(not report["passed"])


def soak(
    target: LanguageModel, method: str, draft, texts: Sequence[list[int]], prompts: int, rows: int, watch=track
) -> dict:
    """Decodes ``prompts`` random pieces of ``texts``, ``rows`` at a time; returns the counts."""
    plain = Generator(target, "none", capacity=256)
    drafting = Generator(target, method, draft, capacity=256, num_speculative_tokens=4)
    batches = -(-prompts // rows)
    warm = max(-(-batches // 10), min(12, batches // 2))
    names = ("rounds", "tokens", "greedy", "different", "stop_string", "stop_token", "length", "broken")
    counts = dict.fromkeys(names, 0)
    compilations, programs, arrays, resident = [], [], [], []

    def listener(event: str, seconds: float, **_) -> None:
        if event.endswith("backend_compile_duration"):
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    began = time.perf_counter()
    for i in watch(range(batches), "soaking"):
        rng = np.random.default_rng(i)
        ids, options = random_prompts(rng, texts, rows), random_options(rng, rows, target.config.vocab_size, i)
        results = drafting(ids, **options)
        wanted = plain(ids, **options)
        for result, other, temperature, stop in zip(results, wanted, options["temperature"], options["stop"]):
            counts["rounds"] += result.stats.target_calls
            counts["tokens"] += len(result.token_ids)
            counts["greedy"] += temperature == 0
            counts["different"] += temperature == 0 and (result.token_ids, result.text) != (other.token_ids, other.text)
            counts["broken"] += any(s in result.text for s in stop)
            by_string = isinstance(result.stop_reason, str)
            counts["stop_string" if by_string else "stop_token" if result.finish_reason == "stop" else "length"] += 1
        programs.append(len(compilations))
        arrays.append(sum(array.nbytes for array in jax.live_arrays()))
        resident.append(resident_bytes())
    jax.monitoring.unregister_event_duration_listener(listener)
    report = {name: int(n) for name, n in counts.items()}
    middle = lambda part: int(np.median(part)) // 2**20
    report |= {
        "prompts": batches * rows,
        "compiled_after_warm_up": programs[-1] - programs[warm - 1],
        "programs": programs[-1],
    }
    report |= {"array_growth": arrays[-1] - arrays[warm - 1], "seconds": round(time.perf_counter() - began)}
    early, late = report["resident_mb"] = [middle(resident[warm : 2 * warm] or resident), middle(resident[-warm:])]
    wrong = report["different"] + report["broken"] + report["compiled_after_warm_up"] + max(report["array_growth"], 0)
    report["passed"] = not wrong and late <= 1.05 * early
    return report


def random_prompts(rng: np.random.Generator, texts: Sequence[list[int]], rows: int) -> list[list[int]]:
    prompts = []
    for text in (texts[j] for j in rng.integers(0, len(texts), rows)):
        length = min(len(text), int(rng.integers(SHORTEST, LONGEST + 1)))
        prompts.append(text[len(text) - length :])
    return prompts


def random_options(rng: np.random.Generator, rows: int, vocab_size: int, seed: int) -> dict:
    """The options of each row. Half of the rows are greedy, and each option is off in most rows.

    Every batch has a constraint and stop strings, so all batches run one program.
    """
    some = lambda values, off: [
        values[j] if on else off for j, on in zip(rng.integers(0, len(values), rows), rng.random(rows) < 0.3)
    ]
    tokens = lambda: rng.integers(1, vocab_size, 4).tolist()
    regex = [REGEXES[-1], *(REGEXES[j] for j in rng.integers(0, len(REGEXES), rows - 1))]
    return dict(
        max_new_tokens=rng.integers(NEW // 2, NEW + 1, rows).tolist(),
        temperature=rng.choice([0.0, 0.0, 0.0, 0.5, 1.0, 1.5], rows).tolist(),
        top_k=some([1, 5, 50], 0),
        top_p=some([0.5, 0.9, 0.99], 1.0),
        min_p=some([0.02, 0.2], 0.0),
        repetition_penalty=some([0.9, 1.1, 1.5], 1.0),
        presence_penalty=some([-0.5, 0.5], 0.0),
        frequency_penalty=some([-0.2, 0.4], 0.0),
        min_new_tokens=some([1, 4, 8], 0),
        logit_bias=some([{t: 2.0 for t in tokens()}, {t: -5.0 for t in tokens()}], None),
        suppressed_tokens=some([tokens()], None),
        stop_token_ids=some([tokens()], None),
        stop=[
            STOPS[:3],
            *([STOPS[j] for j in rng.choice(len(STOPS), rng.integers(0, 4), False)] for _ in range(rows - 1)),
        ],
        logprobs=some([0, 3], None)[:-1] + [1],
        seed=(seed * rows + np.arange(rows)).tolist(),
        regex=regex,
    )


def describe(report: dict) -> str:
    """The report as Markdown."""
    early, late = report["resident_mb"]
    rows = [
        ["rounds, tokens", f"{report['rounds']:,}, {report['tokens']:,}"],
        ["rows ended by a stop string, a stop token, their limit",
         f"{report['stop_string']:,}, {report['stop_token']:,}, {report['length']:,}"],
        ["greedy rows, of them different from plain decoding", f"{report['greedy']:,}, {report['different']}"],
        ["texts that show a stop string", report["broken"]],
        ["programs compiled, of them after the first tenth",
         f"{report['programs']}, {report['compiled_after_warm_up']}"],
        ["growth of device arrays after the first tenth", f"{report['array_growth']} bytes"],
        ["resident memory, median of the second tenth and of the last", f"{early:,} MB, {late:,} MB"],
    ]  # fmt: skip
    return f"{report['prompts']:,} prompts in {report['seconds']} s.\n\n{markdown_table(['count', 'figure'], rows)}"


if __name__ == "__main__":
    main()
