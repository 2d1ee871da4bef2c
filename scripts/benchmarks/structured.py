"""Structured output on the schemas of JSONSchemaBench: the accepted share, and the cost.

    python scripts/benchmarks/structured.py schemas.jsonl --model model.gguf

Each line of the file is an object with a "schema" and "tests", of which each has "valid" and "data".
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jsonschema
import numpy as np

import specjax
from specjax.errors import NumericsError, RequestError
from specjax.requests.constraint import compile_constraint
from specjax.requests.grammar import Grammar

_PROMPT = "Write a JSON object for this schema.\n\n{schema}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="tiny-python")
    parser.add_argument("--draft", help="a draft model, for method draft_model")
    parser.add_argument("--texts", type=int, default=30, help="schemas for which texts are decoded")
    parser.add_argument("--repeats", type=int, default=10, help="alternations that measure the cost of a round")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.file.read_text().splitlines()]
    target = specjax.load(args.model)
    accepted = check_schemas(rows, target)
    for method in ("none", "ngram", *(["draft_model"] if args.draft else []), "auto"):
        draft = args.draft if method in ("draft_model", "auto") else None
        generator = specjax.Generator(target, method, draft)
        if args.repeats:
            print(f"{method}: {round_cost(generator, args.repeats)}", flush=True)
        if args.texts:
            step = max(len(accepted) // args.texts, 1)
            print(f"{method}: {decode(generator, accepted[::step][: args.texts])}", flush=True)


def check_schemas(rows: list[dict], target) -> list[dict]:
    """Prints the accepted share, and returns the rows with an accepted schema."""
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
    alone = sum(accepted_alone(row["schema"]) for row in rows)
    print(f"accepted: {len(accepted)} of {len(rows)} schemas; llguidance alone: {alone}")
    print(f"valid instances accepted: {right[True]}; invalid ones refused: {right[False]}")
    low, high = np.percentile(seconds, [50, 99]) * 1e3
    print(f"compilation: median {low:.1f} ms, 99 % {high:.1f} ms, longest {max(seconds) * 1e3:.0f} ms", flush=True)
    return accepted


def allows(grammar: Grammar, tokenizer, text: str) -> bool:
    """Whether the grammar allows a text in full."""
    matcher = grammar.start.deep_copy()
    tokens = tokenizer.encode(text, add_special_tokens=False)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def accepted_alone(schema) -> bool:
    """Whether llguidance accepts a schema, without a vocabulary and with its own limits."""
    from llguidance import LLMatcher

    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema)))


def round_cost(generator, repeats: int) -> str:
    """The time of a round with a grammar that allows every text, over that without one."""
    prompt = [[5, 6, 7, 8] * 8]
    free = dict(max_new_tokens=64, ignore_eos=True)
    bound = dict(max_new_tokens=64, grammar="start: /(?s:.)*/")

    def time_of(options: dict) -> float:
        stats = generator(prompt, **options)[0].stats
        return stats.decode_seconds / stats.target_calls * 1e3

    times = [(time_of(free), time_of(bound)) for _ in range(repeats + 1)][1:]
    without, within = map(min, zip(*times))
    ratio = statistics.median(b / a for a, b in times)
    return f"a round takes {without:.2f} ms, with a grammar {within:.2f} ms (shortest); median ratio {ratio:.3f}"


def decode(generator, rows: list[dict]) -> str:
    """Texts for the schemas with and without them: tokens a call, and whether texts are valid."""
    calls, tokens = [0, 0], [0, 0]
    ended = valid = failed = 0
    for row in rows:
        prompt = _PROMPT.format(schema=json.dumps(row["schema"])[:2000])
        for i, options in enumerate([{}, dict(json_schema=row["schema"])]):
            try:
                result = generator(prompt, max_new_tokens=128, **options)
            except NumericsError:
                failed += 1
                continue
            calls[i] += result.stats.target_calls
            tokens[i] += len(result.token_ids)
        if result.finish_reason == "stop":
            ended += 1
            valid += is_valid(result.text, row["schema"])
    rates = [tokens[i] / max(calls[i], 1) for i in (0, 1)]
    return (
        f"{rates[0]:.2f} tokens a call, with the schema {rates[1]:.2f}; of {len(rows)} texts {ended} ended before "
        f"the limit, {valid} of these are valid; {failed} failed"
    )


def is_valid(text: str, schema) -> bool:
    """Whether a text is JSON for the schema, by another library."""
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


if __name__ == "__main__":
    main()
