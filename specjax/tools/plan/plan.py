"""Predicts memory, traffic and time of a method on devices that are not at hand.

The predictions follow from configurations. The platform's own compiler makes the programs, and
published figures of the device give the times. Times are predictions, not measurements.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from ...checkpoints.config import check_dtype, check_scheme
from ...core.checks import check_names, field_names, whole
from ...drafters import Plain
from ...errors import RequestError
from ...loop.chooser import at_largest_shape
from ...loop.drafter import Drafter
from ...models.config import ModelConfig
from ...models.feed_forwards import ExpertsConfig
from ...models.quantised_weights import SCHEMES
from ...parallel import make_mesh
from .devices import DEVICES, Device, compile_only, parse_device
from .program_figures import Figures
from .round_time import Round, plan_round, prefill_memory

ACCEPTANCES = (0.6, 0.7, 0.8)
"""The chances that a drafted token is accepted, for which a plan predicts speeds."""

_PROMPT = 256
"""Tokens of a prompt that one forward reads; capacities are multiples of it."""

_PARTS = 512
"""Capacities of long texts are multiples of this number, see ``capacity_for``."""


@dataclasses.dataclass(frozen=True)
class PlanSettings:
    """Devices, sizes and forms of a plan.

    Attributes:
      device: name and topology, such as "v5e:2x4" or "h100:8".
      mesh: the sizes of the mesh's axes; by default all devices split the model.
      batch: the number of rows.
      max_length: tokens of a row, prompt and output. The caches have room for them, and are full.
      dtype: the type of weights and caches.
      quantize, draft_quantize: one of ``models.quantised_weights.SCHEMES``, the form of the weights
        of target and draft models; by default those of ``dtype``.
      offload: True to leave the target's layers in the host's memory, see ``models.offload``.

    Raises RequestError for values out of bounds.
    """

    device: str
    mesh: dict[str, int] | None = None
    batch: int = 1
    max_length: int = 1024
    dtype: str = "bfloat16"
    quantize: str | None = None
    draft_quantize: str | None = None
    offload: bool = False

    def __post_init__(self):
        whole("batch", self.batch)
        whole("max_length", self.max_length, 2)
        check_dtype(self.dtype)
        for name in ("quantize", "draft_quantize"):
            check_scheme(name, getattr(self, name), SCHEMES)


def plan(target: ModelConfig, drafter: Drafter, drafts: Sequence[ModelConfig] = (), **settings) -> dict:
    """The plan of one method beside plain decoding, an object for JSON.

    Of a method that chooses its drafts in each round, it is the plan of a round with its largest
    drafts.

    Bytes and launches are those of one device. The keys are those of ``specjax plan --json``, see
    ``docs/plan.md``. ``tokens_per_second`` and ``speedup`` have an entry for each of
    ``ACCEPTANCES``.

    Args:
      drafter: the method, see ``settings.make_planned_drafter``.
      settings: fields of ``PlanSettings``; ``device`` is needed.

    Raises RequestError for an unknown device, a topology that the compiler refuses, a compiler that
    is not installed, a mesh that does not divide devices or model, and ``offload`` on several
    devices.
    """
    # 1. Checks.
    check_names(settings, field_names(PlanSettings))
    options = PlanSettings(**settings)
    largest = at_largest_shape(drafter)
    _check_fit(target, largest, options)
    # 2. The mesh, and the sizes of programs.
    name, shape = parse_device(options.device)
    devices = compile_only(name, shape)
    grid = _make_mesh(options.mesh or {"model": len(devices)}, options.device, devices)
    sizes: dict[str, Any] = dict(batch=options.batch, capacity=capacity_for(options.max_length, largest.depth))
    sizes |= dict(dtype=jnp.dtype(options.dtype), offload=options.offload)
    sizes |= dict(quantize=options.quantize, draft_quantize=options.draft_quantize)
    # 3. Rounds of plain decoding and of the method, and the memory of the prefill.
    planned = partial(plan_round, target, mesh=grid, device=DEVICES[name], **sizes)
    with _explain_exhaustion(options.device):
        plain = planned(Plain(), ())
        drafted = planned(largest, tuple(drafts))
        prefill = prefill_memory(target, largest, tuple(drafts), grid, drafted.figures.cache, **sizes)
    # 4. The report.
    return {
        **dataclasses.asdict(options),
        "mesh": dict(grid.shape),
        "depth": largest.depth,
        "chooses_drafts": drafter.chooser is not None,
        **_memory(drafted.figures, prefill, DEVICES[name]),
        **_traffic(plain, drafted, DEVICES[name]),
        "experts_per_layer": _experts(target, plain.figures.experts, drafted.figures.experts),
        **_speed(plain.seconds, drafted.seconds, options.batch, largest.depth),
    }


def _check_fit(target: ModelConfig, drafter: Drafter, settings: PlanSettings) -> None:
    """Raises RequestError for a model or a method that does not fit the settings."""
    target.refuse_encoder("plan")
    name, shape = parse_device(settings.device)
    if settings.max_length > target.context:
        raise RequestError(
            f"max_length is {settings.max_length} and the model's context {target.context}; lower max_length"
        )
    if settings.offload and math.prod(shape) > 1:
        raise RequestError(f"offload copies layers to one device and {settings.device} has several; plan with {name}:1")
    if settings.offload and drafter.reads_target:
        raise RequestError(
            "the method drafts with the target's layers, which offload keeps in the host's memory; use another"
        )


def _memory(figures: Figures, prefill: float, device: Device) -> dict:
    """The bytes of a device's memory, and whether they fit."""
    memory = {kind: round(getattr(figures, kind)) for kind in ("weights", "cache", "draft")}
    memory |= {"temporaries": round(max(figures.temporaries, prefill))}
    total = sum(memory.values())
    return {
        "fits": total <= device.memory,
        "device_memory_bytes": round(device.memory),
        "memory_bytes": memory | {"total": total},
        "host_memory_bytes": round(figures.host),
    }


def _traffic(plain: Round, drafted: Round, device: Device) -> dict:
    """The bytes, launches and collectives of a round."""
    figures = drafted.figures
    is_gpu = device.platform == "cuda"
    return {
        "bytes_from_host_per_round": round(figures.streamed),
        "host_link_bytes_per_second": round(device.host_link),
        "bytes_per_round": round(figures.moved),
        "minimum_bytes_per_round": round(figures.least),
        "plain_bytes_per_round": round(plain.figures.moved),
        "plain_minimum_bytes_per_round": round(plain.figures.least),
        "launches_per_layer": drafted.launches_a_layer if is_gpu else None,
        "launches_per_round": round(figures.launches) if is_gpu else None,
        "collectives": [
            {"kind": kind, "bytes": size, "count": round(count)} for (kind, size), count in figures.collectives.items()
        ],
        "cache_copies": figures.copies,
    }


def _speed(plain: float, drafted: float, batch: int, depth: int) -> dict:
    """Times and speeds, from the seconds of a plain round and of one with drafts."""
    ratio = plain / drafted
    tokens = {str(alpha): tokens_a_round(alpha, depth) for alpha in ACCEPTANCES}
    return {
        "seconds_per_round": drafted,
        "plain_seconds_per_token": plain,
        "tokens_per_second": {alpha: batch * n / drafted for alpha, n in tokens.items()},
        "plain_tokens_per_second": batch / plain,
        "speedup": {alpha: n * ratio for alpha, n in tokens.items()},
        "break_even_acceptance": break_even(ratio, depth),
    }


def capacity_for(max_length: int, depth: int) -> int:
    """Positions of the caches of a plan: room for the text and a path of ``depth`` drafts.

    XLA:GPU splits the product of weights and values of a long cache into up to 64 parts of a
    multiple of 8 positions. Where the capacity does not divide so, it first copies all values into
    a padded array, in every layer and round. The capacities of sessions are powers of two, which
    divide.
    """
    need = max_length + depth + 1
    unit = _PROMPT if need < 16 * _PARTS else _PARTS
    return -(-need // unit) * unit


def tokens_a_round(alpha: float, depth: int) -> float:
    """Expected tokens of a round with a chain of ``depth`` drafts (Leviathan et al. 2023, eq. 1).

    ``alpha`` is the chance that a draft is accepted. Further branches of a tree do not count.
    """
    return sum(alpha**k for k in range(depth + 1))


def break_even(ratio: float, depth: int) -> float | None:
    """The acceptance at which a method is as fast as plain decoding; None if none suffices.

    ``ratio``: the time of a plain token over that of a round.
    """
    from scipy import optimize  # a second of imports

    def gain(alpha: float) -> float:
        return tokens_a_round(alpha, depth) * ratio - 1

    if gain(0.0) >= 0:
        return 0.0
    return float(optimize.root_scalar(gain, bracket=(0.0, 1.0)).root) if gain(1.0) >= 0 else None


def _experts(target: ModelConfig, plain: float, drafted: float) -> dict | None:
    """The experts of a layer, and those that a plain token and a round read, or None."""
    of = next((mlp.count for mlp in target.mlps if isinstance(mlp, ExpertsConfig)), None)
    return None if of is None else {"all": of, "plain": plain, "round": drafted}


def _make_mesh(sizes: dict[str, int], device: str, devices) -> Mesh:
    """The mesh of all devices. Raises RequestError if its size is another."""
    grid = make_mesh(**sizes, devices=list(devices))
    if grid.size != len(devices):
        raise RequestError(
            f"the mesh has {grid.size} devices and {device} has {len(devices)}; "
            f"use a mesh such as model={len(devices)}, or another topology"
        )
    return grid


@contextmanager
def _explain_exhaustion(device: str) -> Iterator[None]:
    """Raises RequestError where a compiler finds no room even for a part of the layers."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise RequestError(
            f"the plan does not fit: a part of the layers alone exceeds the memory of one of {device}; "
            "use more devices, a smaller batch or max-length, or quantised weights"
        ) from None
