"""What drafting costs: a drafter's part of some rounds by itself, beside the whole of them."""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import decode
from ..generate import Generator
from ..session import Decoding


def drafting_share(generator: Generator, prompt: list[int], *, rounds: int = 16, repeats: int = 9) -> tuple[float, float, float]:
    """The share of a greedy round's time that the drafter takes, its ``commit`` included: quartiles, the median second.

    The rounds are run once and recorded; then the drafter goes through them alone, given what the target and the rule said. Both take
    turns, and a share is that of two runs beside each other. A method that hands what it computed on to the target (early exit) is
    counted without that gain.
    """
    target, draft, drafter = generator.target.model, generator.session.parameters, generator.drafter
    path = drafter.depth + 1
    if generator.session.capacity is not None:
        rounds = max(1, min(rounds, (generator.session.capacity - len(prompt)) // path - 1))
    decoding = generator.start([prompt], max_new_tokens=rounds * path, ignore_eos=True)
    state = decoding.state
    record, last = jax.jit(lambda *args: _recorded(*args, drafter, generator.session.rule, rounds))(target, draft, state)
    alone = jax.jit(lambda *args: _alone(*args, drafter))

    def whole() -> float:
        copy = Decoding(jax.block_until_ready(jax.tree.map(jnp.copy, state)), decoding.prompts, decoding.batch)
        generator.session.advance(copy, rounds)
        return copy.decode_seconds

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
        found = decode.propose_and_accept(target, draft, state, drafter=drafter, rule=rule)
        told = (state.tokens, state.cache.length, state.round, found.scored, found.verdict)
        return decode.commit(target, draft, state, found, drafter=drafter), told

    last, told = lax.scan(turn, state, None, rounds)
    return told, last


def _alone(target, draft, drafting, state, told, drafter):
    """The drafter's state after the recorded rounds. ``state`` is the last: its cache holds what those before it held, and more."""

    def turn(drafting, told):
        tokens, length, round, scored, verdict = told
        now = state.replace(tokens=tokens, cache=state.cache.replace(length=length), round=round, drafter=drafting)
        key, _ = decode.round_keys(now, 1)
        tree, pending = drafter.propose(target, draft, now, key)
        return drafter.commit(target, draft, now.replace(drafter=pending), tree, scored, verdict), tree.tokens

    return lax.scan(turn, drafting, told)
