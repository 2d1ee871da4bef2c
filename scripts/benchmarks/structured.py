"""Structured output on the schemas of JSONSchemaBench: the accepted share, the cost, and the speed.

    python scripts/benchmarks/structured.py schemas.jsonl --model model.gguf --draft HEAD --methods ngram,eagle3,auto

Each line of the file is an object with a "schema" and "tests", of which each has "valid" and "data".
Methods of an earlier run keep their rows. Writes structured_cpu_speed.json and structured_cpu.md.
"""

import json
import statistics
import time
from pathlib import Path

import jsonschema
import numpy as np
from page import ZOO, Result, arguments, measured, section

import specjax
from specjax.drafters import needs_of
from specjax.errors import NumericsError, RequestError
from specjax.loop.drafter import Models, TrainedHead
from specjax.requests.chat import render_chat
from specjax.requests.constraint import compile_constraint
from specjax.requests.grammar import Grammar
from specjax.text.machine import machine
from specjax.tools.evaluate.report import markdown_table

_PROMPT = "Write a JSON object for this schema.\n\n{schema}\n"
_SHOWN = 800
"""The characters of a schema in its prompt."""
_CHAIN = dict(num_speculative_tokens=3)
"""The drafts of a trained head. A CPU scores a paper's tree slowly."""
TITLE = "Structured output"
QUESTION = "Which JSON schemas can be enforced, what does a round cost with one, and what do drafts gain?"
EARLIER = "Methods that the command does not name were measured by an earlier run."
FOLLOWS = """
- A schema changes no greedy text between plain decoding and the methods above, and no sampled text that ended was wrong.
- A schema forces tokens, and forced tokens need no call of their own: plain decoding gains by them, too.
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="tiny-python")
    parser.add_argument("--draft", help="a drafter of the model")
    parser.add_argument("--methods", default="ngram,auto", help="methods separated by commas")
    parser.add_argument("--texts", type=int, default=30, help="schemas for which texts are decoded")
    parser.add_argument("--repeats", type=int, default=10, help="alternations that measure the cost of a round")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.file.read_text().splitlines()]
    target = specjax.load(args.model)
    result = Result("structured_cpu", "speed")
    conditions = conditions_of(args.model, args.draft, machine(target)["dtype"])
    report = {"cost": {}, "texts": {}} | result.read() | {"conditions": conditions}
    accepted, report["schemas"] = check_schemas(rows, target)
    step = max(len(accepted) // args.texts, 1)
    plain = None
    for method in ("none", *args.methods.split(",")):
        takes = method == "auto" or isinstance(needs_of(method), Models | TrainedHead)
        chain = _CHAIN if isinstance(needs_of(method), TrainedHead) else {}
        generator = specjax.Generator(target, method, args.draft if takes else None, **chain)
        report["cost"][method] = round_cost(generator, args.repeats)
        found = decode(generator, accepted[::step][: args.texts])
        plain = plain or found
        report["texts"][method] = compare(found, plain)
        print(method, report["cost"][method], report["texts"][method], flush=True)
        result.save(report)
    write_page()


def conditions_of(model: str, draft: str | None, dtype: str) -> dict:
    """The conditions of a measurement with these models."""
    embedded = [name for name in (model, draft) if name and (ZOO / name).is_dir()]
    return measured(embedded, note=dtype if model in embedded else f"{Path(model).name}, {dtype}")


def check_schemas(rows: list[dict], target) -> tuple[list[dict], dict]:
    """The rows with an accepted schema, and counts of schemas and of their instances."""
    size = target.config.vocab_size
    seconds, accepted = [], []
    right = {True: [0, 0], False: [0, 0]}
    for row in rows:
        began = time.perf_counter()
        try:
            grammar = compile_constraint(target.tokenizer, target.config.eos_token_ids, size, json_schema=row["schema"])
        except RequestError:
            continue
        seconds.append(time.perf_counter() - began)
        accepted.append(row)
        for test in row["tests"]:
            spelled = json.dumps(test["data"], ensure_ascii=False)
            right[test["valid"]][0] += allows(grammar, target.tokenizer, spelled) == test["valid"]
            right[test["valid"]][1] += 1
    low, high = np.percentile(seconds, [50, 99]) * 1e3
    return accepted, {
        "schemas": len(rows),
        "accepted": len(accepted),
        "alone": sum(accepted_alone(row["schema"]) for row in rows),
        "valid": right[True],
        "invalid": right[False],
        "compile_ms": [low, high, max(seconds) * 1e3],
    }


def allows(grammar: Grammar, tokenizer, text: str) -> bool:
    """Whether the grammar allows a text in full, token by token, as in decoding.

    llguidance bounds its work between two masks, so a mask is found before each token.
    """
    matcher = grammar.start.deep_copy()
    for token in tokenizer.encode(text, add_special_tokens=False):
        matcher.compute_bitmask()
        if not matcher.consume_token(token):
            return False
    return matcher.is_accepting()


def accepted_alone(schema) -> bool:
    """Whether llguidance accepts a schema, without a vocabulary and with its own limits."""
    from llguidance import LLMatcher

    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema)))


def round_cost(generator, repeats: int) -> dict:
    """Milliseconds of a round without a grammar and with one that allows every text."""
    prompt = [[5, 6, 7, 8] * 8]
    free = dict(max_new_tokens=64, ignore_eos=True)
    bound = dict(max_new_tokens=64, grammar="start: /(?s:.)*/")

    def time_of(options: dict) -> float:
        stats = generator(prompt, **options)[0].stats
        return stats.decode_seconds / stats.target_calls * 1e3

    times = [(time_of(free), time_of(bound)) for _ in range(repeats + 1)][1:]
    without, within = map(min, zip(*times))
    return {"free_ms": without, "grammar_ms": within, "median_ratio": statistics.median(b / a for a, b in times)}


def decode(generator, rows: list[dict]) -> list[dict]:
    """For each schema, figures of a text without it ("free") and of one with it ("schema")."""
    found = []
    for row in rows:
        prompt = prompt_of(generator.target.tokenizer, row["schema"])
        figures = {}
        for name, options in {"free": {}, "schema": dict(json_schema=row["schema"])}.items():
            try:
                generator(prompt, max_new_tokens=128, **options)  # compiles, and fills caches
                result = generator(prompt, max_new_tokens=128, **options)
            except NumericsError as error:
                figures[name] = {"failed": str(error)}
                continue
            figures[name] = {
                "tokens": len(result.token_ids), "calls": result.stats.target_calls,
                "seconds": result.stats.decode_seconds, "ids": result.token_ids,
                "ended": result.finish_reason == "stop", "valid": is_valid(result.text, row["schema"]),
            }  # fmt: skip
        found.append(figures)
    return found


def prompt_of(tokenizer, schema) -> list[int]:
    """The tokens of a prompt for a schema, a chat where the model has a template."""
    text = _PROMPT.format(schema=json.dumps(schema)[:_SHOWN])
    has_template = getattr(tokenizer, "chat_template", None)
    return render_chat(tokenizer, [{"role": "user", "content": text}]) if has_template else tokenizer.encode(text)


def compare(found: list[dict], plain: list[dict]) -> dict:
    """Tokens a call and the speed over plain decoding, without and with schemas; and what was wrong."""
    report = {}
    for name in ("free", "schema"):
        pairs = [(own[name], base[name]) for own, base in zip(found, plain) if "tokens" in own[name]]
        per_token = lambda one: one["seconds"] / one["tokens"]
        report[name] = {
            "tokens_per_call": sum(own["tokens"] for own, _ in pairs) / sum(own["calls"] for own, _ in pairs),
            "speed": statistics.geometric_mean(per_token(base) / per_token(own) for own, base in pairs),
            "equal": sum(own["ids"] == base["ids"] for own, base in pairs),
            "texts": len(pairs),
        }
    bound = [own["schema"] for own in found]
    report["ended"] = sum(one.get("ended", False) for one in bound)
    report["valid"] = sum(one.get("ended", False) and one["valid"] for one in bound)
    report["failed"] = sum("failed" in one for one in bound)
    return report


def is_valid(text: str, schema) -> bool:
    """Whether a text is JSON for the schema, by another library."""
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def write_page() -> None:
    """The page from the data of this script and of structured_texts.py."""
    sections = []
    speed, texts, real = (Result("structured_cpu", part) for part in ("speed", "texts", "real_texts"))
    if report := speed.read():
        sections.append(section(report["conditions"], _speed_tables(report), "Coverage, cost and speed"))
    for data, title in ((texts, "Texts of every method"), (real, "Texts of a real model")):
        if report := data.read():
            sections.append(section(report["conditions"], _text_tables(report), title))
    speed.write(TITLE, QUESTION, sections, FOLLOWS)


def _speed_tables(report: dict) -> str:
    of = report["schemas"]
    rows = []
    for method, texts in report["texts"].items():
        cost = report["cost"][method]
        free, bound = texts["free"], texts["schema"]
        rows.append([
            f"`{method}`", f"{cost['free_ms']:.2f}", f"{cost['grammar_ms']:.2f}", f"{cost['median_ratio']:.3f}",
            f"{free['tokens_per_call']:.2f}", f"{bound['tokens_per_call']:.2f}", f"{free['speed']:.2f}",
            f"{bound['speed']:.2f}", f"{bound['equal']} of {bound['texts']}", f"{texts['valid']} of {texts['ended']}",
        ])  # fmt: skip
    head = [
        "method", "ms a round", "with a grammar", "median ratio", "tokens a call", "with a schema", "speed over plain",
        "with a schema", "equal to plain", "valid of ended",
    ]  # fmt: skip
    low, high, most = of["compile_ms"]
    return f"""Of {of["schemas"]} schemas {of["accepted"]} are accepted, and {of["alone"]} by llguidance alone. Of their instances
{of["valid"][0]} of {of["valid"][1]} valid ones are accepted, and {of["invalid"][0]} of {of["invalid"][1]} invalid ones refused.
A schema takes {low:.1f} ms (median), {high:.1f} ms (99 %) and at most {most:.0f} ms to compile.

{markdown_table(head, rows)}

A round is the shortest of alternating runs. Each text has at most 128 tokens and was decoded twice, the second time
counts. {EARLIER}"""


def _text_tables(report: dict) -> str:
    greedy = [
        [f"`{name}`", f"{row['equal']} of {row['texts']}", f"{row['tokens_per_call']:.2f}"]
        for name, row in report["greedy"].items()
    ]
    samples = [[f"`{name}`", row["texts"], row["ended"], row["valid"]] for name, row in report["samples"].items()]
    return f"""{EARLIER}
Greedy texts with a schema each, up to 48 tokens, in batches of eight:

{markdown_table(["method", "equal to plain", "tokens a call"], greedy)}

Texts sampled at temperature 1 and top-p 0.95, up to 160 tokens, judged by jsonschema:

{markdown_table(["method", "sampled", "ended before the limit", "valid of these"], samples)}"""


if __name__ == "__main__":
    main()
