"""Measures the cost of a round on this device.

The target's part depends on the number of scored nodes, the draft's part on the width of a level.
Each part is measured in the real loop, ``decode.run``, with drafters that leave the other part out.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from ...checkpoints.load import LanguageModel
from ...core.sampling import KEYS, sampling_params
from ...core.state import Requests
from ...core.stats import Counters
from ...core.tree import Topology, Tree, chain, from_paths
from ...drafters import Plain, TokenRecycling, make_drafter, own_options
from ...drafters.tree import level_order
from ...heads import Head
from ...loop import decode
from ...loop.drafter import Drafter, Models
from ...loop.prefill import prefill
from ...loop.wrapper import Wrapper
from ...models.base import Model, Output
from ...requests.shared_vocabulary import translate_draft
from ...rules.acceptance import Drawn, resolve
from ...text.cache_dtype import cache_dtype
from .timers import alternate

NODES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Sizes of the measured trees, the root included."""

WIDTHS = (1, 4, 16)
"""Widths of the measured draft levels, in nodes."""

_LEVELS = 4
"""The number of levels in a timed draft. One level counts as an equal share of its time."""


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """Seconds as a function of size: straight lines between the medians at the measured sizes.

    Attributes:
      sizes: the measured sizes.
      samples: float64 [sizes, repeats], the seconds of each run.
    """

    sizes: tuple[int, ...]
    samples: np.ndarray

    def __call__(self, size: int) -> float:
        return float(np.interp(size, self.sizes, np.median(self.samples, 1)))

    @property
    def quartiles(self) -> np.ndarray:
        """First quartile, median and third quartile: float64 [3, sizes]."""
        return np.percentile(self.samples, [25, 50, 75], axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Cost:
    """The cost of rounds.

    Attributes:
      verify: seconds of a round without its draft, by the number of nodes that the target scores.
      level: seconds of one level of the draft, by its width; None where no model drafts.
    """

    verify: Curve
    level: Curve | None = None

    def of_round(self, tree: Topology) -> float:
        """Expected seconds of a round: the target's pass, and every draft level at full width."""
        drafting = 0.0 if self.level is None else max(tree.depths) * self.level(level_order(tree).slots.shape[1])
        return self.verify(len(tree.parent)) + drafting


def measure(
    target: LanguageModel,
    draft: LanguageModel | Head | None = None,
    *,
    method: str = "tree",
    length: int = 256,
    batch: int = 1,
    temperature: float = 0.0,
    nodes: Sequence[int] = NODES,
    widths: Sequence[int] = WIDTHS,
    rounds: int = 8,
    repeats: int = 9,
) -> Cost:
    """Times rounds of trees by ``method`` with ``draft``; without a draft, of token recycling.

    All programs are compiled before the first is timed. They alternate in an order that rotates.
    Token recycling reads and rewrites its table in every round, so its real rounds are timed. The
    time of a draft's levels is the time of a drafted round less that of a plain round.

    Args:
      target: the model that scores the trees.
      draft: the model or head that drafts; None for token recycling.
      method: the method of the draft.
      length: the number of tokens in the cache when the rounds begin.
      batch: the number of rows.
      temperature: the temperature of later requests.
      nodes: sizes of trees. The first must be 1, plain decoding.
      widths: widths of draft levels.
      rounds: the number of rounds in a timed run.
      repeats: the number of timed runs of each program.
    """
    # 1. Drafters that leave out the draft, and drafters that leave out the target.
    drafters: dict[Any, Drafter]
    siblings = "top_k" if temperature == 0 else "without_replacement"
    if draft is None:
        drafters = {n: TokenRecycling(_bushy(n)) for n in nodes[1:]}
    else:
        drafters = {n: Blank(_bushy(n), Drawn.CHOSEN if siblings == "top_k" else Drawn(siblings)) for n in nodes[1:]}
        deep = min(_LEVELS, draft.config.num_heads or _LEVELS) if isinstance(draft, Head) else _LEVELS
        head = draft.config if isinstance(draft, Head) else None
        options = {"siblings": siblings} if "siblings" in own_options(method) else {}
        for width in widths:
            level = make_drafter(method, head=head, tree=_broom(width, deep), **options)
            drafters["level", width] = Unscored(level)
    # 2. Timed runs, and the curves that follow.
    timers = round_timers(
        target, draft, {1: Plain()} | drafters, length=length, batch=batch, temperature=temperature, rounds=rounds
    )
    samples = alternate(timers, repeats)
    verify = Curve(tuple(nodes), np.array([samples[n] for n in nodes]) / rounds)
    if draft is None:
        return Cost(verify)
    levels = np.array([samples["level", width] - samples[1] for width in widths]) / rounds / deep
    return Cost(verify, Curve(tuple(widths), np.maximum(levels, 0)))


@dataclasses.dataclass(frozen=True)
class Blank(Drafter):
    """Proposes a tree without drafting, so a round costs only the target's part."""

    tree: Topology
    way: Drawn = Drawn.CHOSEN

    @property
    def depth(self) -> int:
        return max(self.tree.depths)

    @property
    def drawn(self) -> Drawn:
        return self.way

    def propose(self, target, draft, state, key):
        B = state.root.size
        N = len(self.tree.parent)
        V = target.config.vocab_size
        tokens = (state.root[:, None] + jnp.arange(N)) % V
        parent = jnp.broadcast_to(jnp.array(self.tree.parent, jnp.int32), (B, N))
        q = None if self.way is Drawn.CHOSEN else jnp.full((B, N, V), 1 / V)
        return Tree(tokens, parent, jnp.ones((B, N), bool), q, max_depth=self.depth), ()


@dataclasses.dataclass(frozen=True)
class Unscored(Wrapper):
    """Drafts a tree with ``drafter``, but lets the target score only the root.

    A round costs as much as a plain round and a draft.
    """

    drafter: Drafter
    needs = Models()

    @property
    def drawn(self) -> Drawn:
        return Drawn.CHOSEN

    def propose(self, target, draft, state, key):
        tree, pending = self.drafter.propose(target, draft, state, key)
        is_negative = tree.tokens.max(1) < 0  # Always false. It uses the tokens, else XLA would drop the draft.
        return jax.vmap(chain)(jnp.where(is_negative, 0, state.root)[:, None]), pending

    def commit(self, target, draft, state, tree, scored, verdict):
        path = jnp.pad(verdict.path, ((0, 0), (0, self.depth)))  # padded to the length of a path in the draft's tree
        return self.drafter.commit(target, draft, state, tree, scored, verdict.replace(path=path))


class Unread(struct.PyTreeNode):
    """Stands for a model in ``prefill``: its outputs are random numbers of the model's shapes.

    They fill the caches of long texts in seconds, because no layer runs. The time of a round of
    attention does not depend on the numbers in its caches.
    """

    model: Model

    @property
    def config(self):
        return self.model.config

    def __call__(self, tokens, positions, mask, cache, **options) -> Output:
        shapes = jax.eval_shape(lambda tokens: self.model(tokens, positions, mask, cache, **options), tokens)
        leaves, structure = jax.tree.flatten(shapes)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), positions[0, 0]), len(leaves))

        def draw(key: jax.Array, leaf: jax.ShapeDtypeStruct) -> jax.Array:
            return jax.random.normal(key, leaf.shape).astype(leaf.dtype)

        return jax.tree.unflatten(structure, map(draw, keys, leaves))


def _bushy(nodes: int) -> Topology:
    """A binary tree of ``nodes`` nodes, filled level by level."""
    below = range(nodes - 1)
    return Topology((0, *(i // 2 for i in below)), (0, *(i % 2 for i in below)))


def _broom(width: int, levels: int) -> Topology:
    """A tree of ``width`` chains, so each of its levels has ``width`` nodes."""
    return from_paths((rank, *(0,) * below) for rank in range(width) for below in range(levels))


def round_timers(
    target: LanguageModel,
    draft: LanguageModel | Head | None,
    drafters: Mapping,
    *,
    length: int = 256,
    batch: int = 1,
    temperature: float = 0.0,
    rounds: int = 8,
    unread: bool = False,
) -> dict:
    """A function for each drafter, which runs ``rounds`` compiled rounds and returns their seconds.

    The other arguments are those of ``measure``. With ``unread`` the caches hold random keys and
    values, see ``Unread``; it is for models with attention alone, and for drafts that are no heads.
    """
    # 1. Requests whose texts have ``length`` tokens, with room for all rounds.
    model = target.model
    dtype = cache_dtype(target)
    draft_model = draft.module if isinstance(draft, Head) else draft and translate_draft(draft, target)
    deepest = max(drafter.depth for drafter in drafters.values())
    capacity = 1 << (length + (rounds + 1) * (deepest + 1)).bit_length()
    rows = lambda n: jnp.full(batch, n, jnp.int32)
    text = np.random.default_rng(0).integers(0, target.config.vocab_size, (batch, capacity))
    requests = Requests(
        tokens=jnp.asarray(np.where(np.arange(capacity) < length, text, 0), jnp.int32),
        lengths=rows(length),
        sampling=sampling_params(batch, temperature, bias=np.zeros((batch, target.config.vocab_size), np.float32)),
        keys=jax.random.split(jax.random.key(0, impl=KEYS), batch),
        limit=rows(capacity),
        stop_ids=jnp.full((batch, 1), -1, jnp.int32),
    )

    def stand_in(model: Any):
        return Unread(model) if unread and model is not None else model

    # 2. The state of each drafter after the prefill.
    chunk = min(128, capacity)
    first = {}
    states = {}
    for name, drafter in drafters.items():
        # Drafters of trees with the same ``init`` have the same first state, and a text is read
        # once for all.
        kind = drafter if unread else drafter.init.__func__
        if kind not in first:
            read = jax.jit(partial(prefill, drafter=drafter, chunk=chunk, dtype=dtype))
            first[kind] = read(stand_in(model), stand_in(draft_model), requests)
        states[name] = first[kind].replace(counters=Counters.zeros(batch, drafter.depth))
    return {name: _timer(model, draft_model, states[name], drafter, rounds) for name, drafter in drafters.items()}


def _timer(target, draft, state, drafter, rounds: int) -> Callable[[], float]:
    """A function that runs ``rounds`` compiled rounds, donates the state, and returns seconds."""

    def arguments() -> tuple:
        return target, draft, jax.tree.map(lambda x: x.copy(), state), jnp.int32(rounds)

    run = jax.jit(partial(decode.run, drafter=drafter, rule=resolve("auto", drafter.drawn)), donate_argnums=2)
    program = run.lower(*arguments()).compile()

    def timed() -> float:
        inputs = jax.block_until_ready(arguments())
        start = time.perf_counter()
        jax.block_until_ready(program(*inputs))
        return time.perf_counter() - start

    return timed
