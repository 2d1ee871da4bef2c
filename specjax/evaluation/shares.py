"""What drafting costs: a drafter's part of some rounds by itself, beside the whole of them."""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import decode
from ..generate import Generator
from ..requests.options import Options


def drafting_share(generator: Generator, prompt: list[int], *, rounds: int = 16, repeats: int = 9) -> tuple[float, float, float]:
    """The share of a greedy round's time that the drafter takes, its ``commit`` included: quartiles, the median second.

    The rounds are run once and recorded; then the drafter goes through them alone, given what the target and the rule said. Both take
    turns, and a share is that of two runs beside each other. A method that hands what it computed on to the target (early exit) is
    counted without that gain.
    """
    target, draft, drafter = generator.target.model, generator.parameters, generator.drafter
    path = drafter.depth + 1
    if generator.capacity is not None:
        rounds = max(1, min(rounds, (generator.capacity - len(prompt)) // path - 1))
    state, _, _ = generator._start([prompt], Options.of(dict(max_new_tokens=rounds * path, ignore_eos=True)))
    record, last = jax.jit(lambda *args: _recorded(*args, drafter, generator.rule, rounds))(target, draft, state)
    alone = jax.jit(lambda *args: _alone(*args, drafter))

    def whole() -> float:
        times, copy = [0.0, 0.0, 0.0], jax.block_until_ready(jax.tree.map(jnp.copy, state))
        generator._run(copy, rounds, times)
        return times[1]

    def drafting() -> float:
        began = time.perf_counter()
        jax.block_until_ready(alone(target, draft, state.drafter, last, record))
        return time.perf_counter() - began

    whole(), drafting()
    pairs = np.array([(whole(), drafting()) for _ in range(repeats)])
    return tuple(float(x) for x in np.percentile(pairs[:, 1] / pairs[:, 0], [25, 50, 75]))


def _recorded(target, draft, state, drafter, rule, rounds: int):
    """What a drafter is told in each of so many rounds, leaves [rounds, ...], and the state after them."""

    def turn(state, _):
        found = decode.judge(target, draft, state, drafter=drafter, rule=rule)
        told = (state.tokens, state.cache.length, state.step, found.out, found.verdict)
        return decode.settle(target, draft, state, found, drafter=drafter), told

    last, told = lax.scan(turn, state, None, rounds)
    return told, last


def _alone(target, draft, drafting, state, told, drafter):
    """The drafter's state after the recorded rounds. ``state`` is the last: its cache holds what those before it held, and more."""

    def turn(drafting, told):
        tokens, length, step, out, verdict = told
        now = state.replace(tokens=tokens, cache=state.cache.replace(length=length), step=step, drafter=drafting)
        key, _ = decode.round_keys(now, 1)
        tree, pending = drafter.draft(target, draft, now, key)
        return drafter.commit(target, draft, now.replace(drafter=pending), tree, out, verdict), tree.tokens

    return lax.scan(turn, drafting, told)
