"""Searches the shape of a draft model that makes decoding fastest.

The rule is that of "Decoding Speculative Decoding" (2402.01528): tokens a second are
TAR / (gamma t_draft + t_target). TAR is the expected number of tokens of a round.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import jax.numpy as jnp
import numpy as np

from ...checkpoints.load import LanguageModel
from ...core.tree import from_paths
from ...drafters import Plain
from ...errors import RequestError
from ...models.config import ModelConfig
from ...parallel import make_mesh
from ..plan.devices import DEVICES, compile_only, parse_device
from ..plan.plan import tokens_a_round
from ..plan.round_time import plan_round
from ..tune.cost import Blank, round_timers
from ..tune.timers import alternate
from .draft_latency import Latency, fit, measure_samples, plan_samples

LAYERS = (1, 2, 3, 4, 6, 8)
"""The depths of the shapes. Deeper drafts are slow (2402.01528, section 4)."""

RATIOS = (2, 3, 4)
"""The widths of the MLPs, in widths of the stream."""

LONGEST = 12
"""The longest draft length to consider."""

_NODES = (2, 5, LONGEST + 1)
"""The numbers of nodes whose verification is timed."""

_SAMPLES = ((1, 4), (1, 2), (1, 1), (2, 4), (2, 1), (4, 4), (4, 2), (8, 4))
"""The depths of the timed models, each with the divisor of the target's width."""

_ROUNDS = 8
"""The number of rounds in a timed run."""

_REPEATS = 9
"""The number of timed runs of each program."""

_UNITS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclasses.dataclass(frozen=True)
class Budget:
    """The most weights, or the most seconds of a token, that a draft may have.

    Attributes:
      most: the limit.
      in_seconds: True if the limit is a time.
    """

    most: float
    in_seconds: bool

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """The budget in a text: weights such as "900K" or "1.3B", or a time such as "0.3ms".

        Raises RequestError for another text.
        """
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(K|M|B|us|ms|s|)", text.strip())
        if not match or not float(match[1]):
            raise RequestError(f"budget {text!r} is neither weights nor a time; write it as 900K, 1.3B, 300us or 2.5ms")
        return cls(float(match[1]) * _UNITS[match[2]], match[2].endswith("s"))


@dataclasses.dataclass(frozen=True)
class Times:
    """The times of a target and of its drafts on one device.

    Attributes:
      plain: seconds of a plain round.
      verify: seconds of a round without its draft, by the number of nodes.
      latency: seconds of a draft token by the draft's shape.
    """

    plain: float
    verify: Callable[[int], float]
    latency: Latency


@dataclasses.dataclass(frozen=True)
class Design:
    """A shape of a draft, and its expected speed.

    Attributes:
      config: the shape.
      seconds: the time of a draft token.
      drafted: gamma, the draft length with the highest speed.
      tokens_per_round: TAR at this length.
      speed: tokens a second and row.
      speedup: ``speed`` over that of plain decoding.
      pays_from: the acceptance from which the shape beats plain decoding; None if it never does.
    """

    config: ModelConfig
    seconds: float
    drafted: int
    tokens_per_round: float
    speed: float
    speedup: float
    pays_from: float | None


def design(target: ModelConfig, times: Times, budget: Budget, *, acceptance: float, context: int) -> list[Design]:
    """The shapes within a budget, the best first.

    For each depth and each ratio of the MLP there is the widest shape within the budget. All shapes
    get the same acceptance, because shapes of equal size are about equally accurate. Within a
    number of weights the fastest decoding comes first; within a time, the most weights.

    Args:
      acceptance: the chance that a drafted token is accepted.
      context: the number of tokens in the cache.

    Raises RequestError where no shape is within the budget.
    """

    def size(shape: ModelConfig) -> float:
        """The seconds of a token or the number of weights: the unit of the budget."""
        return times.latency(shape, context) if budget.in_seconds else shape.num_weights

    def merit(one: Design) -> float:
        return one.config.num_weights if budget.in_seconds else one.speed

    depths = [layers for layers in LAYERS if layers < target.num_layers]
    widest = [_widest(target, L, ratio, lambda shape: size(shape) <= budget.most) for L in depths for ratio in RATIOS]
    shapes = list(dict.fromkeys(filter(None, widest)))
    if not shapes:
        least = min(size(make_shape(target, L, target.head_dim // 2, ratio)) for L in depths or [1] for ratio in RATIOS)
        smallest = f"takes {least * 1e3:.3g} ms" if budget.in_seconds else f"has {least:.3g} weights"
        raise RequestError(f"no shape meets the budget; the smallest one {smallest}, so give at least that")
    designs = [judge(shape, times, acceptance, context) for shape in shapes]
    return sorted(designs, key=merit, reverse=True)


def judge(config: ModelConfig, times: Times, acceptance: float, context: int) -> Design:
    """The expected speed of a shape at an acceptance, with the best draft length."""
    seconds = times.latency(config, context)
    drafted, speed = best_length(seconds, times, acceptance)
    tokens = tokens_a_round(acceptance, drafted)
    pays_from = needed_acceptance(seconds, times, 1 / times.plain)
    return Design(config, seconds, drafted, tokens, speed, speed * times.plain, pays_from)


def best_length(seconds: float, times: Times, acceptance: float) -> tuple[int, float]:
    """The draft length with the most tokens a second, and these tokens (2402.01528, equation 1)."""

    def speed(gamma: int) -> float:
        return tokens_a_round(acceptance, gamma) / (gamma * seconds + times.verify(gamma + 1))

    best = max(range(1, LONGEST + 1), key=speed)
    return best, speed(best)


def needed_acceptance(seconds: float, times: Times, speed: float) -> float | None:
    """The acceptance at which a draft of ``seconds`` a token reaches ``speed``, or None."""
    from scipy import optimize  # a second of imports

    def gain(acceptance: float) -> float:
        return best_length(seconds, times, acceptance)[1] - speed

    if gain(0.0) >= 0:
        return 0.0
    return float(optimize.root_scalar(gain, bracket=(0.0, 1.0), xtol=1e-4).root) if gain(1.0) >= 0 else None


def make_shape(target: ModelConfig, layers: int, width: int, ratio: int) -> ModelConfig:
    """The configuration of a draft of ``width``, a multiple of half of the target's ``head_dim``.

    Heads have the target's size, or half of it, and fill the width. Queries share key heads as in
    the target. The embedding is tied.
    """
    D = math.gcd(width, target.head_dim)
    heads = width // D
    kv_heads = math.gcd(heads, max(1, heads * target.num_kv_heads // target.num_heads))
    return target.like_llama().replace(
        num_layers=layers, windows=(), hidden_size=width, intermediate_size=ratio * width, num_heads=heads,
        num_kv_heads=kv_heads, head_dim=D, kv_copies=1, tie_embeddings=True,
    )  # fmt: skip


def measure_times(
    target: LanguageModel, *, batch: int, context: int, progress: Callable[[int, int], None] = lambda done, of: None
) -> Times:
    """Times the target's rounds and models of several shapes on this device."""
    target.config.refuse_encoder("design")
    chains = {n: Blank(_chain(n)) for n in _NODES}
    timers = round_timers(target, None, {1: Plain()} | chains, length=context, batch=batch, rounds=_ROUNDS)
    seconds = {n: float(np.median(times)) / _ROUNDS for n, times in alternate(timers, _REPEATS).items()}
    samples = measure_samples(_sample_shapes(target.config, context), batch, progress)
    return Times(seconds[1], partial(_interpolate, seconds), fit(samples, batch))


def plan_times(
    target: ModelConfig,
    device: str,
    *,
    batch: int,
    context: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Times:
    """Predicts the times on devices that are not at hand; see ``tools.plan``.

    Drafts run on one of them.

    Raises RequestError for an unknown device, and for a compiler that is not installed.
    """
    target.refuse_encoder("design")
    name, topology = parse_device(device)
    devices = list(compile_only(name, topology))
    mesh = make_mesh(model=len(devices), devices=devices)
    sizes = dict(batch=batch, dtype=jnp.dtype(target.dtype))
    capacity = -(-(context + LONGEST + 2) // 256) * 256
    drafters = {1: Plain()} | {n: Blank(_chain(n)) for n in _NODES}
    seconds = {
        n: plan_round(target, drafter, (), mesh, DEVICES[name], capacity=capacity, **sizes).seconds
        for n, drafter in drafters.items()
    }
    samples = plan_samples(_sample_shapes(target, capacity), batch, device, progress)
    return Times(seconds[1], partial(_interpolate, seconds), fit(samples, batch))


def _sample_shapes(target: ModelConfig, context: int) -> list[tuple[ModelConfig, int]]:
    """The shapes to time. One of them also has a quarter of the context."""

    def width(divisor: int) -> int:
        return max(1, target.hidden_size // (divisor * target.head_dim)) * target.head_dim

    shapes = dict.fromkeys((make_shape(target, layers, width(divisor), 3), context) for layers, divisor in _SAMPLES)
    return [*shapes, (make_shape(target, 8, width(4), 3), max(context // 4, 1))]


def _widest(target: ModelConfig, layers: int, ratio: int, fits: Callable[[ModelConfig], bool]) -> ModelConfig | None:
    """The widest shape of this depth that fits, at most as wide as the target."""
    shapes = (make_shape(target, layers, width, ratio) for width in reversed(list(_widths(target))))
    return next(filter(fits, shapes), None)


def _widths(target: ModelConfig) -> Iterator[int]:
    """Widths up to the target's: multiples of half a head, of a head, then of a group of heads."""
    D = target.head_dim
    group = D * target.num_heads // target.num_kv_heads
    width = D // 2
    while width <= target.hidden_size:
        yield width
        width += D // 2 if width < 4 * D else D if width < 4 * group else group


def _chain(nodes: int):
    return from_paths((0,) * depth for depth in range(1, nodes))


def _interpolate(seconds: Mapping[int, float], nodes: int) -> float:
    return float(np.interp(nodes, list(seconds), list(seconds.values())))
