"""What drafting costs: the same rounds once as they are, and once with their trees given."""

import dataclasses
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from .. import decode
from ..generate import Generator
from ..options import Options


@dataclasses.dataclass(frozen=True)
class Given:
    """Drafts the trees that are passed as ``draft``, those of step i at [i]."""

    depth: int
    sampled: str
    taps: tuple[int, ...] = ()

    def draft(self, target, draft, state, key):
        return jax.tree.map(lambda leaf: leaf[state.step], draft), ()

    def commit(self, target, draft, state, tree, out, verdict):
        return ()


def drafting_share(generator: Generator, prompt: list[int], *, rounds: int = 16, repeats: int = 9) -> tuple[float, float, float]:
    """The share of a greedy round's time that the drafter takes, its ``commit`` included: quartiles, the median second.

    Whole and given rounds take turns; a share is that of two runs beside each other. A method that hands what it computed on to the
    target (early exit) is counted without that gain. Slightly below 0 is noise.
    """
    target, draft, drafter = generator.target.model, generator.parameters, generator.drafter
    path = drafter.depth + 1
    if generator.capacity is not None:
        rounds = max(1, min(rounds, (generator.capacity - len(prompt)) // path - 1))
    state, _, _ = generator._start([prompt], Options.of(dict(max_new_tokens=rounds * path, ignore_eos=True)))
    propose = jax.jit(lambda target, draft, state: drafter.draft(target, draft, state, decode.round_keys(state, 1)[0])[0])
    at, trees = _copied(state), []
    for i in range(rounds):
        trees.append(propose(target, draft, at))
        at = generator._run(at, i + 1, [0.0, 0.0, 0.0])
    trees = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    given = Given(drafter.depth, drafter.sampled, drafter.taps)
    replay = jax.jit(partial(decode.run, drafter=given, rule=generator.rule), donate_argnums=2)

    def whole() -> float:
        times, copy = [0.0, 0.0, 0.0], _copied(state)
        generator._run(copy, rounds, times)
        return times[1]

    def replayed() -> float:
        copy = _copied(state.replace(drafter=()))
        began = time.perf_counter()
        jax.block_until_ready(replay(target, trees, copy, jnp.int32(rounds)))
        return time.perf_counter() - began

    whole(), replayed()
    pairs = np.array([(whole(), replayed()) for _ in range(repeats)])
    return tuple(float(x) for x in np.percentile(1 - pairs[:, 1] / pairs[:, 0], [25, 50, 75]))


def _copied(state: decode.DecodeState) -> decode.DecodeState:
    """One that may be donated."""
    return jax.block_until_ready(jax.tree.map(lambda leaf: leaf.copy(), state))
