"""Texts with JSON schemas: greedy ones against plain decoding, and sampled ones against jsonschema.

    python scripts/benchmarks/structured_texts.py schemas.jsonl --methods ngram,tree,draft_model
    python scripts/benchmarks/structured_texts.py schemas.jsonl --model model.gguf --draft HEAD --methods ngram,eagle3

The file is that of structured.py. Writes structured_cpu_texts.json, or structured_cpu_real_texts.json for a model of
the user, and structured_cpu.md.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from greedy_equality import SMALL, disturbed, generators
from page import Result, arguments
from rich.progress import track
from structured import conditions_of, is_valid, write_page

from specjax import Generator, NumericsError, load
from specjax.drafters import METHODS, needs_of
from specjax.errors import RequestError
from specjax.loop.drafter import Models, TrainedHead
from specjax.requests.constraint import compile_constraint
from specjax.tools.evaluate.comparison import select_options

ROWS = 8
PROMPT = "x = "
GREEDY = dict(max_new_tokens=48)
SAMPLED = ("ngram", "draft_model", "tree", "dynamic_tree", "eagle3", "auto")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--methods", help="methods separated by commas; by default all for which there are drafts")
    parser.add_argument("--model", help="a model of your own; by default the embedded pair in float32")
    parser.add_argument("--draft", help="the drafter of this model")
    parser.add_argument("--schemas", type=int, default=100, help="schemas of greedy texts")
    parser.add_argument("--samples", type=int, default=2000, help="sampled texts, shared among methods")
    args = parser.parse_args()
    target = load(args.model or "tiny-python", dtype="float32")
    schemas = accepted_schemas(args.file, target)
    plain = decode(Generator(target, "none", capacity=256), schemas[: args.schemas], "none", GREEDY)
    result = Result("structured_cpu", "real_texts" if args.model else "texts")
    conditions = conditions_of(args.model or "tiny-python", args.draft, "float32")
    report = {"greedy": {}, "samples": {}} | result.read() | {"conditions": conditions}
    for method in args.methods.split(",") if args.methods else METHODS:
        for name, generator in own(method, target, args.draft) if args.model else embedded(method, target):
            found = decode(generator, schemas[: args.schemas], name, GREEDY)
            equal = sum(a.token_ids == b.token_ids for a, b in zip(found, plain, strict=True))
            calls = sum(r.stats.target_calls for r in found)
            rate = sum(r.stats.generated for r in found) / calls
            report["greedy"][name] = {"texts": len(plain), "equal": equal, "tokens_per_call": rate}
            if name in SAMPLED and args.samples:
                share = -(-args.samples // len(SAMPLED))
                report["samples"][name] = judge(generator, schemas, share)
            result.save(report)
            print(name, report["greedy"][name], report["samples"].get(name, ""), flush=True)
    write_page()
    wrong = [name for name, row in report["greedy"].items() if row["equal"] < row["texts"]]
    wrong += [name for name, row in report["samples"].items() if row["valid"] < row["ended"]]
    raise SystemExit(f"wrong: {', '.join(wrong)}" if wrong else 0)


def embedded(method: str, target) -> Iterator[tuple[str, Generator]]:
    """The generators of a method with the embedded drafts: its name with the kind of the draft, and the generator."""
    draft = load("tiny-python-draft", dtype="float32")
    drafts = [draft, dataclasses.replace(draft, model=disturbed(draft.model), name="disturbed")]
    texts = [target.tokenizer.encode(PROMPT)] * 64
    return ((name, generator) for name, _, generator in generators(method, target, drafts, texts))


def own(method: str, target, draft: str | None) -> Iterator[tuple[str, Generator]]:
    """The generator of a method with the user's drafter, where the method takes one."""
    takes = method == "auto" or isinstance(needs_of(method), Models | TrainedHead)
    yield method, Generator(target, method, draft if takes else None, capacity=256, **select_options(method, SMALL))


def accepted_schemas(file: Path, target) -> list:
    """The schemas of the file that specjax accepts, short ones of each kind first to last."""
    found = []
    for line in file.read_text().splitlines():
        schema = json.loads(line)["schema"]
        try:
            compile_constraint(
                target.tokenizer, target.config.eos_token_ids, target.config.vocab_size, json_schema=schema
            )
        except RequestError:
            continue
        found.append(schema)
    return found


def decode(generator: Generator, schemas: list, name: str, options: dict) -> list:
    """The results for each schema, in batches."""
    results = []
    for start in track(range(0, len(schemas), ROWS), f"{name}, {len(schemas)} schemas"):
        some = schemas[start : start + ROWS]
        results += generator([PROMPT] * len(some), json_schema=some, **options)
    return results


def judge(generator: Generator, schemas: list, count: int) -> dict:
    """Counts of sampled texts: all, those that ended, and of these the valid ones."""
    counts = {"texts": 0, "ended": 0, "valid": 0, "failed": 0}
    for start in track(range(0, count, ROWS), "samples"):
        some = [schemas[(start + i) * 7 % len(schemas)] for i in range(ROWS)]
        try:
            results = generator(
                [PROMPT] * ROWS, json_schema=some, temperature=1.0, top_p=0.95, max_new_tokens=160, seed=start
            )
        except NumericsError as error:
            counts["failed"] += 1
            print(error)
            continue
        ended = [(r.text, schema) for r, schema in zip(results, some) if r.finish_reason == "stop"]
        counts["texts"] += ROWS
        counts["ended"] += len(ended)
        counts["valid"] += sum(is_valid(*pair) for pair in ended)
    return counts


if __name__ == "__main__":
    main()
