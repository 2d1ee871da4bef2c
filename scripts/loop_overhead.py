"""Measures the overhead of the loop, in runs that alternate in one process.

    python scripts/loop_overhead.py                               a round and its parts
    python scripts/loop_overhead.py --capacity 256 4096           a small and a large cache
    python scripts/loop_overhead.py --options [--temperature 1]   all options and temperature alone

The goals: a round takes at most 1.05 times the time of one draft phase and one verify forward. At
equal content, the capacity of the cache changes the time per token by at most 5 %. Options at their
defaults add at most 3 %.

The parts run in loops of their own. Each iteration begins with a token that the iteration before
computed, so XLA can neither hoist nor overlap them. The start of a program does not count.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from specjax import Decoder, DecodeState, decode, load, make_requests, prefill
from specjax.drafters import make_drafter
from specjax.drafters.parts import chains
from specjax.planning.timers import alternate
from specjax.tree import chain
from specjax.verify import resolve


def main():
    args = parse_arguments()
    target, draft, prompt = models(args)
    drafter = make_drafter(args.method, num_speculative_tokens=args.num_speculative_tokens)
    if args.options:
        compare_options(target, draft, drafter, prompt, args)
    elif args.capacity:
        compare_capacities(target, draft, drafter, prompt, args)
    else:
        compare_parts(target, draft, drafter, prompt, args)


def compare_parts(target: Decoder, draft: Decoder, drafter, prompt: list[int], args) -> None:
    """Prints milliseconds of a round, of its draft phase and of its forward, and their ratio."""
    state = read_prompt(target, draft, drafter, prompt, room(prompt, drafter, args.rounds))
    loop = looped(target, draft, drafter, args.rounds)
    end = loop(state)[1]
    # The parts read the text that the loop wrote, and their rows grow as fast as in the loop.
    growth = (end.cache.length - state.cache.length) / args.rounds
    text = end.replace(cache=end.cache.replace(length=state.cache.length), drafter=rewound(end.drafter, state.drafter))
    time_part = lambda part: timed(part, target, draft, text, args.rounds, growth, drafter=drafter)
    drafting, scoring = time_part(draft_phases), time_part(forwards)
    samples = alternate({"round": lambda: loop(state)[0], "draft": drafting, "verify": scoring}, args.repeats)
    for name, seconds in samples.items():
        print(f"{name:7}{spread(seconds / args.rounds * 1e3)} ms")
    ratio = samples["round"] / (samples["draft"] + samples["verify"])
    print(f"round / (draft + verify){spread(ratio)}, goal at most 1.05")
    print(f"tokens per round {float(growth.mean()):.2f}, {args.rounds} rounds, {args.repeats} repeats")


def compare_capacities(target: Decoder, draft: Decoder, drafter, prompt: list[int], args) -> None:
    """Prints milliseconds per token for each capacity, and their ratio."""
    least = len(prompt) + args.rounds * (drafter.depth + 1) + drafter.depth + 1
    if min(args.capacity) < least:
        raise SystemExit(
            f"--capacity {min(args.capacity)} is too small: prompt and rounds need {least}; "
            "shorten --prompt-tokens or --rounds"
        )
    loop = looped(target, draft, drafter, args.rounds)
    states = {capacity: read_prompt(target, draft, drafter, prompt, capacity) for capacity in args.capacity}
    tokens = {capacity: int(loop(state)[1].cache.length.sum()) - len(prompt) + 1 for capacity, state in states.items()}
    runs = {capacity: lambda state=state: loop(state)[0] for capacity, state in states.items()}
    samples = alternate(runs, args.repeats)
    per_token = {capacity: samples[capacity] / tokens[capacity] * 1e3 for capacity in args.capacity}
    for capacity, ms in per_token.items():
        print(f"capacity {capacity:6}: {tokens[capacity]} tokens{spread(ms)} ms per token")
    small, large = args.capacity
    print(f"{large} / {small}{spread(per_token[large] / per_token[small])}, goal 0.95 to 1.05")


def compare_options(target: Decoder, draft: Decoder, drafter, prompt: list[int], args) -> None:
    """Prints milliseconds of a round with all options at their defaults, and with one option."""
    state = read_prompt(target, draft, drafter, prompt, room(prompt, drafter, args.rounds), args.temperature)
    whole, least = (looped(target, draft, drafter, args.rounds) for _ in range(2))
    with (
        mock.patch.object(decode, "probabilities", bare),
        mock.patch.multiple(chains, adjust=lambda logits, *_: logits, warp=bare),
    ):
        least(state)  # compiles it
    samples = alternate({"all options": lambda: whole(state)[0], "temperature": lambda: least(state)[0]}, args.repeats)
    for name, seconds in samples.items():
        print(f"{name:12}{spread(seconds / args.rounds * 1e3)} ms")
    print(f"all options / temperature{spread(samples['all options'] / samples['temperature'])}, goal at most 1.03")


def bare(logits: jax.Array, params, context=None) -> jax.Array:
    """``sampling.probabilities`` without any option but temperature."""
    greedy = lambda logits: jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1])
    sampled = lambda logits: jax.nn.softmax(logits / params.temperature[:, None, None])
    return lax.cond(jnp.all(params.temperature == 0), greedy, sampled, logits.astype(jnp.float32))


def looped(target, draft, drafter, rounds: int) -> Callable[[DecodeState], tuple[float, DecodeState]]:
    """A function that runs ``rounds`` rounds from a copy of a state: seconds and the last state."""
    program = jax.jit(partial(decode.run, drafter=drafter, rule=resolve("auto", drafter.drawn)), donate_argnums=2)

    def loop(state):
        state = jax.block_until_ready(jax.tree.map(lambda x: x.copy(), state))
        began = time.perf_counter()
        state = jax.block_until_ready(program(target, draft, state, jnp.int32(rounds)))
        seconds = time.perf_counter() - began
        assert int(state.round) == rounds, "the loop ended early"
        return seconds, state

    return loop


def draft_phases(target, draft, state: DecodeState, rounds, growth, *, drafter) -> DecodeState:
    def phase(i, state):
        at = grown(state, i * growth)
        tree, _ = drafter.propose(target, draft, at, jax.vmap(jax.random.fold_in, (0, None))(at.request.keys, i))
        return with_root(state, (i + 1) * growth, tree.tokens[:, -1])

    return lax.fori_loop(0, rounds, phase, state)


def forwards(target, draft, state: DecodeState, rounds, growth, *, drafter) -> DecodeState:
    def phase(i, state):
        at = grown(state, i * growth)
        tree = jax.vmap(chain)(at.root[:, None] + jnp.arange(drafter.depth + 1))
        logits = decode.score(target, tree, at, drafter.taps).logits
        return with_root(state, (i + 1) * growth, jnp.argmax(logits, -1).max(-1) // 2)

    return lax.fori_loop(0, rounds, phase, state)


def grown(state: DecodeState, by) -> DecodeState:
    """The state with ``by`` more tokens, which the caches already hold."""
    longer = lambda cache: cache.replace(length=cache.length + by.astype(jnp.int32))
    drafter = state.drafter
    if hasattr(drafter, "cache"):
        drafter = drafter.replace(cache=longer(drafter.cache))
    return state.replace(cache=longer(state.cache), drafter=drafter)


def with_root(state: DecodeState, by, tokens) -> DecodeState:
    """The state with the root ``tokens``, ``by`` tokens further on.

    The root makes an iteration depend on the iteration before.
    """
    at = (state.cache.length + by.astype(jnp.int32))[:, None]
    return state.replace(tokens=jax.vmap(lax.dynamic_update_slice)(state.tokens, tokens[:, None].astype(jnp.int32), at))


def rewound(drafter, start):
    """A drafter's state with the cache length of an earlier state."""
    if not hasattr(drafter, "cache"):
        return drafter
    return drafter.replace(cache=drafter.cache.replace(length=start.cache.length))


def timed(part, target, draft, state, rounds: int, growth, **setting) -> Callable[[], float]:
    """A function that runs a part and returns seconds."""
    program = jax.jit(partial(part, **setting))

    def run() -> float:
        began = time.perf_counter()
        jax.block_until_ready(program(target, draft, state, jnp.int32(rounds), growth).tokens)
        return time.perf_counter() - began

    return run


def spread(samples: np.ndarray) -> str:
    low, median, high = np.percentile(samples, [25, 50, 75])
    return f" {median:.3f} (quartiles {low:.3f} to {high:.3f}, least {samples.min():.3f})"


def read_prompt(target, draft, drafter, prompt: list[int], capacity: int, temperature: float = 0.0) -> DecodeState:
    """The state of one row after its prompt. The row ends where the capacity ends."""
    room = capacity - len(prompt) - drafter.depth - 1
    bias = np.zeros((1, target.config.vocab_size), np.float32)
    requests = make_requests(
        [prompt], drafter=drafter, max_new_tokens=room, temperature=temperature, capacity=capacity, bias=bias
    )
    dtype = "float32" if jax.default_backend() == "cpu" else target.embed[...].dtype
    return jax.jit(partial(prefill, drafter=drafter, chunk=32, dtype=dtype))(target, draft, requests)


def room(prompt: list[int], drafter, rounds: int) -> int:
    """The power of two that holds the prompt and all rounds, if every draft is accepted."""
    return 1 << (len(prompt) + (rounds + 1) * (drafter.depth + 1)).bit_length()


def models(args) -> tuple[Decoder, Decoder | None, list[int]]:
    """The target, the draft, and a prompt: real text, or random tokens for random weights."""
    if args.random:
        from train_zoo import DRAFT, TARGET  # beside this file

        make = lambda config, seed: jax.jit(lambda key: Decoder(config, key, "bfloat16"))(jax.random.key(seed))
        prompt = np.random.default_rng(0).integers(1, TARGET.vocab_size, args.prompt_tokens).tolist()
        return make(TARGET, 0), make(DRAFT, 1) if args.method == "draft_model" else None, prompt
    target = load(args.target)
    prompt = target.tokenizer.encode(Path(argparse.__file__).read_text())[: args.prompt_tokens]
    return target.model, load(args.draft).model if args.method == "draft_model" else None, prompt


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="tiny-python")
    parser.add_argument("--draft", default="tiny-python-draft")
    parser.add_argument("--random", action="store_true", help="random weights of the embedded pair's shapes")
    parser.add_argument("--method", default="draft_model", choices=("draft_model", "ngram", "none"))
    parser.add_argument("--num-speculative-tokens", type=int, default=5)
    parser.add_argument("--capacity", type=int, nargs=2, metavar=("A", "B"), help="compare two capacities instead")
    parser.add_argument("--options", action="store_true", help="compare with temperature as the only option instead")
    parser.add_argument("--temperature", type=float, default=0.0, help="the temperature for --options")
    parser.add_argument("--prompt-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=24, help="rounds of a timed run")
    parser.add_argument("--repeats", type=int, default=20, help="number of timed runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
