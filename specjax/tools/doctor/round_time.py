"""The times of a method's rounds, whole and without the draft, and of plain rounds beside them.

They are measured here, or planned for a device that is not at hand.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...checkpoints.load import LanguageModel
from ...core.tree import Topology
from ...drafters import Plain
from ...drafters.parts.self_chain import stops_early
from ...loop.chooser import at_largest_shape
from ...models.quantised_weights import scheme_of
from ...parallel import use_mesh
from ...rules.acceptance import Drawn, resolve
from ...text.generator import Generator
from ...text.session import Decoding, Session
from ..plan.plan import plan
from ..tune.cost import Blank, alternate

_ROUNDS = 24
"""The most rounds in a timed run.

A run of plain rounds has as many more as the longest path has nodes.
"""

_LEAST = 3
"""The least rounds in a timed run."""

_REPEATS = 7
"""The timed runs of each program."""

_SECONDS = 0.25
"""The seconds of a timed run, if the least rounds do not take longer.

The first rounds of a run are slower: the weights are not yet in the processor's caches. In runs of
eight rounds a plain round of ``tiny-python`` seems a quarter slower than in a whole text.
"""

_TEXT_SECONDS = 3.0
"""The seconds of plain decoding in a timed run over whole texts. One batch may take longer."""


@dataclasses.dataclass(frozen=True, eq=False)
class RoundTimes:
    """Seconds of a round at one batch and temperature, float64 [repeats] each.

    Attributes:
      plain: a round of plain decoding.
      verify: a round that scores as many nodes as the method's, without drafting them.
      whole: a round of the method.
    """

    plain: np.ndarray
    verify: np.ndarray
    whole: np.ndarray


def room_for(generator: Generator, prompts: Sequence[Sequence[int]], new_tokens: int) -> int:
    """The positions of a cache for all runs of an examination, so that they share programs."""
    paths = generator.drafter.depth + 1
    most = max(map(len, prompts)) + new_tokens + (_ROUNDS + 3) * paths
    return min(most, generator.target.config.context + paths)


def count_nodes(generator: Generator, prompt: Sequence[int]) -> int:
    """The number of nodes that the target scores in a round of the method."""
    session = generator.session
    drafter = at_largest_shape(generator.drafter)
    state = generator.start([prompt], max_new_tokens=1).state

    def propose(target, draft, state) -> jax.Array:
        tree, _ = drafter.propose(target, draft, state, state.request.keys)
        return tree.tokens

    with use_mesh(session.mesh):
        return jax.eval_shape(propose, generator.target.model, session.parameters, state).shape[1]


def without_draft(generator: Generator, nodes: int) -> Generator:
    """A generator whose rounds score ``nodes`` nodes, which no model drafts.

    The nodes are chosen tokens for every method, because the target seldom accepts these. A rule
    that divides by q therefore counts as a part of the draft's time.
    """
    is_chain = generator.drafter.drawn is Drawn.CHAIN
    edges = range(nodes - 1)
    parents, ranks = zip((0, 0), *((i, 0) if is_chain else (i // 2, i % 2) for i in edges))
    blank = copy.copy(generator)
    session = generator.session
    drafter = Blank(Topology(parents, ranks)) if nodes > 1 else Plain()
    blank.session = Session(session.target, drafter, None, resolve("auto", Drawn.CHOSEN), session.capacity)
    return blank


def time_rounds(
    plain: Generator, blank: Generator, method: Generator, prompts: Sequence[Sequence[int]], batch: int,
    temperature: float, new_tokens: int, tokens: float,
) -> RoundTimes:  # fmt: skip
    """Times rounds of three generators at a batch. Runs alternate.

    They run from the middle of ``new_tokens`` of some prompts on, where caches have their mean
    length. If the work of a round varies, runs of the method and of plain decoding take whole
    texts, ``batch`` at a time: those of all prompts, or as many as plain decoding writes in
    ``_TEXT_SECONDS``. ``tokens``: the tokens of a round of the method, so that all runs begin at
    about the same place.
    """
    # 1. The lengths of runs.
    paths = method.drafter.depth + 1
    skip = new_tokens // 2
    room = method.target.config.context - max(map(len, prompts)) - skip
    most = max(1, min(_ROUNDS, room // paths - 1))
    options: dict[str, Any] = dict(temperature=temperature, ignore_eos=True)

    def start(generator: Generator, group: list[list[int]], length: int) -> Decoding:
        return generator.start(group, max_new_tokens=length, **options)

    # 2. Whole texts, if the work of a round varies.
    texts = _groups(prompts, batch) if method.drafter.chooser or stops_early(method.drafter) else []
    if texts:
        whole = start(plain, texts[0], new_tokens)
        seconds = min(_run(plain, [whole]) for _ in range(2)) * new_tokens  # the first run is slower
        texts = texts[: max(1, int(_TEXT_SECONDS / seconds))]
    # 3. A timer for each generator. Runs that are no whole texts begin in the middle of the new
    # tokens.
    timers: dict[object, Callable[[], float]] = {}
    for name, generator in (("plain", plain), ("verify", blank), ("whole", method)):
        if texts and name != "verify":
            timers[name] = partial(_run, generator, [start(generator, group, new_tokens) for group in texts])
            continue
        decoding = start(generator, _spread(prompts, batch), skip + (most + 1) * paths)
        generator.session.advance(decoding, max(int(skip / (tokens if name == "whole" else 1)), 1))
        timers[name] = _timer(generator, decoding, most * paths if name == "plain" else most)
    samples = alternate(timers, _REPEATS)
    return RoundTimes(samples["plain"], samples["verify"], samples["whole"])


def _timer(generator: Generator, decoding: Decoding, most: int) -> Callable[[], float]:
    """A function that runs some rounds and returns the seconds of one. Slow rounds are fewer."""
    rounds = int(np.clip(_SECONDS / _run(generator, [decoding], 1), min(_LEAST, most), most))
    return partial(_run, generator, [decoding], rounds)


def _run(generator: Generator, decodings: Sequence[Decoding], rounds: int | None = None) -> float:
    """The seconds of a round in runs of ``rounds`` rounds; None runs until every row has ended."""
    seconds = 0.0
    count = 0
    for decoding in decodings:
        state = jax.block_until_ready(jax.tree.map(jnp.copy, decoding.state))
        run = Decoding(state, decoding.batch)
        before = int(run.state.round)
        generator.session.advance(run, rounds)
        seconds += run.decode_seconds
        count += int(run.state.round) - before
    return seconds / count


def _spread(prompts: Sequence[Sequence[int]], batch: int) -> list[list[int]]:
    """``batch`` of the prompts with evenly spread lengths; one prompt has the median length."""
    order = sorted(prompts, key=len)
    places = (np.arange(batch) + 0.5) / batch * len(order)
    return [list(order[int(place)]) for place in places]


def _groups(prompts: Sequence[Sequence[int]], batch: int) -> list[list[list[int]]]:
    """The prompts, ``batch`` at a time, without the rest; if they are fewer, ``batch`` of them."""
    firsts = range(0, len(prompts) - batch + 1, batch)
    return [[list(prompt) for prompt in prompts[first : first + batch]] for first in firsts] or [
        _spread(prompts, batch)
    ]


def plan_rounds(generator: Generator, blank: Generator, device: str, batch: int, length: int) -> RoundTimes:
    """The planned seconds of rounds at one batch, one value each.

    Args:
      blank: the generator of rounds without a draft, see ``round_time.without_draft``.
      device: a device with its topology, see ``plan.devices.parse_device``.
      length: the tokens of a row, prompt and output.

    Raises RequestError as ``plan.plan.plan`` does.
    """
    target = generator.target
    drafts = [draft for draft in generator.drafts if isinstance(draft, LanguageModel)]
    sizes: dict[str, Any] = dict(
        device=device,
        batch=batch,
        max_length=length,
        dtype=str(target.model.embed[...].dtype),
        quantize=scheme_of(target.model),
        draft_quantize=scheme_of([draft.model for draft in drafts]),
    )
    whole = plan(target.config, generator.drafter, [draft.config for draft in drafts], **sizes)
    verify = plan(target.config, blank.drafter, **sizes)
    seconds = (whole["plain_seconds_per_token"], verify["seconds_per_round"], whole["seconds_per_round"])
    return RoundTimes(*(np.array([value]) for value in seconds))
