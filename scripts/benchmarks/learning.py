"""An engine whose head learns from its requests, when the requests change from chats to code.

    python scripts/benchmarks/learning.py --model model.gguf --head HEAD --chat question.jsonl --code HumanEval.jsonl

The lines of the files have "turns" or "prompt". The head drafts for the code of held-out prompts, and for chats, before
and after the engine has answered other prompts of code for some minutes. Prints a table for docs/boost.md: tokens a
round, and the time of a token before the head learns and meanwhile.
"""

import json
import statistics
import time
from pathlib import Path

from page import arguments, measured

import specjax
from specjax.engine import Engine
from specjax.engine.handle import Handle
from specjax.requests.chat import render_chat
from specjax.tools.evaluate.report import markdown_table
from specjax.training.online.learner import Learner

NEW, HELD_OUT, SLOTS, DRAFTED = 128, 24, 4, 3
CAPACITY = 640


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--head", required=True)
    parser.add_argument("--chat", type=Path, required=True)
    parser.add_argument("--code", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--share", type=float, default=0.3)
    args = parser.parse_args()
    target = specjax.load(args.model)
    longest = CAPACITY - NEW - DRAFTED - 2
    chats, code = (
        [prompt for prompt in prompts_of(file, target.tokenizer) if len(prompt) < longest]
        for file in (args.chat, args.code)
    )
    engine = Engine(target, "eagle3", args.head, slots=SLOTS, capacity=CAPACITY, num_speculative_tokens=DRAFTED)
    learner = Learner(engine, args.share, say=lambda line: print(line, flush=True))
    held_out = {"code": code[:HELD_OUT], "chat": chats[:HELD_OUT]}
    before = {name: answer(engine, prompts) for name, prompts in held_out.items()}
    times = []
    with learner:
        end = time.perf_counter() + 60 * args.minutes
        while time.perf_counter() < end:
            for first in range(HELD_OUT, len(code), HELD_OUT):
                times += answer(engine, code[first : first + HELD_OUT], temperature=0.7, seed=len(times))[1]
                if time.perf_counter() > end:
                    break
    after = {name: answer(engine, prompts) for name, prompts in held_out.items()}
    rows = [
        [name, f"{before[name][0]:.2f}", f"{after[name][0]:.2f}", f"{statistics.median(before[name][1]):.1f}"]
        for name in held_out
    ]
    print(markdown_table(["texts", "tokens a round", "after learning", "ms a token before"], rows))
    tokens = learner.steps * learner.recipe.batch * learner.recipe.length
    print(
        f"{learner.steps} steps, {tokens:,} tokens, {learner.swaps} swaps; {len(times)} requests of code meanwhile, "
        f"{statistics.median(times):.1f} ms a token (median)"
    )
    print(json.dumps(measured(note=Path(args.model).stem)))


def prompts_of(file: Path, tokenizer) -> list[list[int]]:
    """The first turns of a file as chats, token ids."""
    rows = map(json.loads, file.read_text().splitlines())
    texts = [row["turns"][0] if "turns" in row else f"Complete this program.\n\n{row['prompt']}" for row in rows]
    return [render_chat(tokenizer, [{"role": "user", "content": text}]) for text in texts]


def answer(engine: Engine, prompts: list[list[int]], **options) -> tuple[float, list[float]]:
    """The tokens a round of all answers, and for each answer the milliseconds a token."""
    ends: dict[Handle, float] = {}
    note = lambda handle: ends.setdefault(handle, time.perf_counter())
    engine.listeners.append(note)
    handles = [engine.submit(prompt, max_new_tokens=NEW, **options) for prompt in prompts]
    for handle in handles:
        handle.result()
    engine.listeners.remove(note)
    rounds = [emitted for handle in handles for _, _, emitted in handle.rounds]
    times = [1e3 * (ends[handle] - handle.begins["rounds"]) / len(handle.token_ids) for handle in handles]
    return statistics.mean(rounds), times


if __name__ == "__main__":
    main()
