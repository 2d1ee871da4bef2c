"""Measures the share of a round that drafting takes: times rounds with and without the target."""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...loop import decode
from ...parallel import use_mesh
from ...text.generator import Generator
from ...text.session import Decoding


def drafting_share(
    generator: Generator, prompt: list[int], *, rounds: int = 16, repeats: int = 9
) -> tuple[float, float, float]:
    """The drafter's share of a greedy round's time: first quartile, median, third quartile.

    The share includes the drafter's ``commit``. The rounds run once and are recorded. Then the
    drafter runs through them alone, with the recorded outputs of target and rule. Whole and partial
    runs alternate, and two neighbouring runs give a share. In early exit the target reuses the
    draft's layers; the share does not count this gain.
    """
    # 1. The recorded rounds, and the program of the drafter alone.
    target = generator.target.model
    draft = generator.session.parameters
    drafter = generator.drafter
    path = drafter.depth + 1
    if generator.session.capacity is not None:
        rounds = max(1, min(rounds, (generator.session.capacity - len(prompt)) // path - 1))
    decoding = generator.start([prompt], max_new_tokens=rounds * path, ignore_eos=True)
    state = decoding.state
    with use_mesh(generator.session.mesh):
        run = jax.jit(partial(_record, drafter=drafter, rule=generator.session.rule, rounds=rounds))
        record, last = run(target, draft, state)
    alone = jax.jit(partial(_draft_alone, drafter=drafter))

    def whole() -> float:
        copy = Decoding(jax.block_until_ready(jax.tree.map(jnp.copy, state)), decoding.batch)
        generator.session.advance(copy, rounds)
        return copy.decode_seconds

    def drafting() -> float:
        start = time.perf_counter()
        with use_mesh(generator.session.mesh):
            jax.block_until_ready(alone(target, draft, state.drafter, last, record))
        return time.perf_counter() - start

    # 2. Runs that alternate, after one of each that compiles.
    whole()
    drafting()
    pairs = np.array([(whole(), drafting()) for _ in range(repeats)])
    low, middle, high = np.percentile(pairs[:, 1] / pairs[:, 0], [25, 50, 75])
    return float(low), float(middle), float(high)


def _record(target, draft, state, drafter, rule, rounds: int):
    """The drafter's inputs in each round, leaves [rounds, ...], and the state after the rounds."""

    def play(state, _):
        propose_key, accept_keys = decode.round_keys(state, drafter.depth + 1)
        tree, drafted = decode.propose(target, draft, state, propose_key, drafter=drafter)
        scored = decode.score(target, tree, state, drafter.taps, drafted)
        p, verdict, failed = decode.accept(target, tree, scored, state, accept_keys, rule=rule)
        round = decode.Round(tree, drafted, scored, p, verdict, failed)
        inputs = (state.tokens, state.cache.length, state.round, scored, verdict)
        return decode.commit(target, draft, state, round, drafter=drafter), inputs

    last, inputs = lax.scan(play, state, None, rounds)
    return inputs, last


def _draft_alone(target, draft, drafting, state, inputs, drafter):
    """The drafter's state after the recorded rounds.

    ``state`` is the last state. Its cache holds all entries of the earlier ones.
    """

    def play(drafting, inputs):
        tokens, length, round, scored, verdict = inputs
        now = state.replace(tokens=tokens, cache=state.cache.replace(length=length), round=round, drafter=drafting)
        key, _ = decode.round_keys(now, 1)
        tree, pending = drafter.propose(target, draft, now, key)
        return drafter.commit(target, draft, now.replace(drafter=pending), tree, scored, verdict), tree.tokens

    return lax.scan(play, drafting, inputs)
