"""The time of a draft token as a function of the draft's shape, fitted to samples.

A token of a small model takes a time that hardly depends on its products: each layer starts many
operations. So the time has a part for each token, one for each layer, and parts for the weights and
the cache that the token reads (2402.01528, section 4).
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np

from ...drafters import Plain
from ...errors import RequestError
from ...models.config import ModelConfig
from ...models.decoder import Decoder
from ...parallel import make_mesh
from ..plan.devices import DEVICES, compile_only, parse_device
from ..plan.round_time import plan_round
from ..tune.timers import alternate, forward_timer

PARTS = ("token", "layer", "layer weight", "output weight", "cached number")
"""The units of which a token's time is the sum."""

_REPEATS = 9
"""The number of timed runs of each sample."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """The seconds of one token of a draft, after ``context`` tokens in each row of the batch."""

    config: ModelConfig
    context: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Latency:
    """The fitted seconds of a draft token.

    Attributes:
      seconds: the seconds of each unit of ``PARTS``.
      batch: the number of rows for which the fit holds.
      error: the median of the relative errors of samples that were left out of the fit.
      worst: the largest of these errors.
    """

    seconds: tuple[float, ...]
    batch: int
    error: float
    worst: float

    def __call__(self, config: ModelConfig, context: int) -> float:
        return float(_count(config, context, self.batch) @ np.array(self.seconds))


def fit(samples: Sequence[Sample], batch: int) -> Latency:
    """The latency with the least squared relative errors; no unit takes a negative time.

    Args:
      samples: more than five, of several depths, widths and contexts.
      batch: the number of rows of the samples.
    """
    counts = np.array([_count(sample.config, sample.context, batch) for sample in samples])
    relative = counts / np.array([sample.seconds for sample in samples])[:, None]
    every = np.arange(len(samples))
    errors = [abs(relative[i] @ _solve(relative[every != i]) - 1) for i in every]
    return Latency(tuple(_solve(relative).tolist()), batch, float(np.median(errors)), float(max(errors)))


def measure_samples(
    shapes: Iterable[tuple[ModelConfig, int]], batch: int, progress: Callable[[int, int], None] = lambda done, of: None
) -> list[Sample]:
    """Times one token of random models on this device. The models alternate.

    Args:
      shapes: configurations, and the number of tokens in each row of the cache.
      progress: called with the number of timed runs done and of all timed runs.
    """
    timers = {}
    for config, context in shapes:
        model = Decoder(config, jax.random.key(0))
        timers[config, context] = forward_timer(model, context, jnp.dtype(config.dtype), batch=batch)
    seconds = alternate(timers, _REPEATS, progress)
    return [Sample(*shape, seconds=float(np.median(times))) for shape, times in seconds.items()]


def plan_samples(
    shapes: Sequence[tuple[ModelConfig, int]],
    batch: int,
    device: str,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> list[Sample]:
    """Predicts one token of models on a device that is not at hand; see
    ``plan.round_time.plan_round``.

    A draft runs on one of the devices. ``progress`` is called with the number of compiled samples.
    Shapes that the compiler refuses are left out: XLA:GPU of jax 0.10.2 cannot compile the output
    matrix of a few widths.

    Raises RequestError for an unknown device, and for a compiler that is not installed or refuses
    most shapes.
    """
    name, topology = parse_device(device)
    mesh = make_mesh(devices=list(compile_only(name, topology)[:1]))
    samples = []
    for done, (config, context) in enumerate(shapes, 1):
        sizes = dict(batch=batch, capacity=context, dtype=jnp.dtype(config.dtype))
        with suppress(jax.errors.JaxRuntimeError):
            planned = plan_round(config, Plain(), (), mesh, DEVICES[name], **sizes)
            samples.append(Sample(config, context, planned.seconds))
        progress(done, len(shapes))
    if 2 * len(samples) < len(shapes):
        raise RequestError(f"the compiler for {device} refuses most draft shapes; use another device or version of jax")
    return samples


def _count(config: ModelConfig, context: int, batch: int) -> np.ndarray:
    """The number of units of each of ``PARTS`` in a token, float64 [5]."""
    cached = batch * context * config.token_rows
    output = config.vocab_size * config.hidden_size
    L = config.num_layers
    return np.array([1, L, L * config.layer_weights, output, cached], float)


def _solve(relative: np.ndarray) -> np.ndarray:
    from scipy import optimize  # a second of imports

    scale = relative.max(0)  # nnls needs columns of one magnitude
    return optimize.nnls(relative / scale, np.ones(len(relative)))[0] / scale
