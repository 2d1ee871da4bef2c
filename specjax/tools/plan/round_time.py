"""Predicts the round of a method on a device.

Short models are compiled, their figures extend to all layers, and published figures of the device
give the time.
"""

import dataclasses
import functools
import math
from typing import Any

from jax.sharding import Mesh

from ...drafters.parts.self_chain import skips_layers
from ...loop.drafter import Drafter, TrainedHead
from ...models.config import ModelConfig
from ...models.quantised_weights import bits
from ..evaluate.products import stored_bytes
from .abstract_arguments import abstract
from .devices import Device
from .program import compile_loop, compile_prefill
from .program_figures import Figures, caches_of, figures_of, temporaries

_FILLED = 0.15e9
"""Bytes of a model's layers on a device that no TPU's fast memory holds."""

_STEP = 2
"""The layers by which two compiled depths differ."""


@dataclasses.dataclass(frozen=True)
class Round:
    """A round of one method with models of all their layers, on one device.

    Attributes:
      figures: see ``program_figures.Figures``.
      launches_a_layer: kernels of one more layer of the target.
      seconds: the predicted time.
    """

    figures: Figures
    launches_a_layer: float
    seconds: float


def plan_round(
    target: ModelConfig, drafter: Drafter, drafts: tuple[ModelConfig, ...], mesh: Mesh, device: Device, **sizes
) -> Round:
    """Compiles the loop of a method and predicts its round.

    Layers are alike, so a figure is linear in the number of layers of each model. Short models are
    compiled, and for each model once more with two layers less. They are deep enough that their
    weights do not all stay in a TPU's fast memory. A method that drafts with the target's own
    layers is compiled in full.

    ``sizes``: the further arguments of ``abstract_arguments.abstract``.
    """
    models = (target, *drafts)
    deep = _compiled_depths(target, drafter, drafts, mesh, **sizes)

    def compiled(depths: list[int]) -> Figures:
        return _figures(*_shorten(models, drafter, depths), mesh, **sizes)

    base = compiled(deep)
    whole = base
    launches_a_layer = 0.0
    for i, model in enumerate(models):
        step = min(_STEP, deep[i] - 1)
        if not step or skips_layers(drafter) or i and deep[i] == model.num_layers:
            continue
        slope = add(base, compiled([depth - step * (i == k) for k, depth in enumerate(deep)]), -1.0)
        whole = add(whole, slope, (model.num_layers - deep[i]) / step)
        launches_a_layer = launches_a_layer if i else slope.launches / step
    return Round(whole, launches_a_layer, predict(whole, device, mesh.size))


def prefill_memory(
    target: ModelConfig, drafter: Drafter, drafts: tuple[ModelConfig, ...], mesh: Mesh, cache: float, **sizes
) -> float:
    """Bytes that the prefill needs on a device beside weights and caches.

    Short models are compiled. Each further layer keeps the keys and values of one chunk of the
    prompt until they are written. ``cache``: the bytes of the caches of all layers.
    """
    models = (target, *drafts)
    deep = _compiled_depths(target, drafter, drafts, mesh, **sizes)
    short = abstract(*_shorten(models, drafter, deep), mesh, **sizes)
    further = cache - sum(map(stored_bytes, caches_of(short.state)))
    return temporaries(compile_prefill(short)) + further * short.chunk / sizes["capacity"]


def predict(figures: Figures, device: Device, devices: int) -> float:
    """The seconds of a round, from published figures of the device.

    Reads and products overlap, so the slower of the two counts. Launches and collectives add to
    it. An all-reduce among n devices sends 2 (n - 1) / n of its bytes, other collectives half of
    that. Each collective also takes ``device.hop``. Copies from the host's memory count as if they
    overlapped with nothing.
    """
    seconds = max(figures.moved / device.bandwidth, figures.operations / device.flops)
    seconds += figures.launches * device.launch + figures.streamed / device.host_link
    for (kind, size), count in figures.collectives.items():
        sent = (2 if kind == "all-reduce" else 1) * (devices - 1) / devices * size
        seconds += count * (device.hop + sent / device.link)
    return seconds


def add(a: Figures, b: Figures, times: float) -> Figures:
    """``a + times * b`` in each figure. Copies, and experts of a layer, are the larger number."""
    linear = {
        field.name: getattr(a, field.name) + times * getattr(b, field.name)
        for field in dataclasses.fields(Figures)
        if field.name not in ("collectives", "copies", "experts")
    }
    counts = {
        key: a.collectives.get(key, 0) + times * b.collectives.get(key, 0) for key in {**a.collectives, **b.collectives}
    }
    return Figures(**linear, collectives=counts, copies=max(a.copies, b.copies), experts=max(a.experts, b.experts))


@functools.cache
def _figures(target: ModelConfig, drafter: Drafter, drafts: tuple[ModelConfig, ...], mesh: Mesh, **sizes) -> Figures:
    """The figures of a compiled loop. Plans of several methods share those of plain decoding."""
    program = abstract(target, drafter, drafts, mesh, **sizes)
    return figures_of(program, *compile_loop(program))


def _compiled_depths(
    target: ModelConfig, drafter: Drafter, drafts, mesh: Mesh, *, dtype, quantize=None, draft_quantize=None, **sizes
) -> list[int]:
    """The depths to compile.

    Two layers less still have ``_FILLED`` bytes of weights on a device.
    """
    models = ((target, mesh.shape["model"], quantize), *((draft, 1, draft_quantize) for draft in drafts))
    if skips_layers(drafter):
        return [model.num_layers for model, *_ in models]
    return [
        min(
            max(math.ceil(_FILLED * parts * 8 / (model.layer_weights * bits(form, dtype))), _STEP) + _STEP,
            model.num_layers,
        )
        for model, parts, form in models
    ]


def _shorten(
    models: tuple[ModelConfig, ...], drafter: Drafter, depths: list[int]
) -> tuple[ModelConfig, Drafter, tuple[ModelConfig, ...]]:
    """Target, drafter and drafts for models of these depths."""
    pairs = zip(models, depths)
    target, *drafts = (model.with_layers(range(depth)) for model, depth in pairs)
    return target, _at_depth(drafter, depths[0]), tuple(drafts)


def _at_depth(drafter: Drafter, depth: int) -> Drafter:
    """The drafter for a target of ``depth`` layers: the taps of a head lie among them."""
    if not isinstance(drafter.needs, TrainedHead):
        return drafter
    head = drafter.head  # type: ignore[attr-defined]  # drafters with a trained head have its configuration
    changes: dict[str, Any] = {"target_layers": depth}
    if any(field.name == "taps" for field in dataclasses.fields(head)):
        changes["taps"] = tuple(min(tap, depth) for tap in head.taps)
    return dataclasses.replace(drafter, head=dataclasses.replace(head, **changes))  # type: ignore[call-arg]
