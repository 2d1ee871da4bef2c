"""The options of rotary positions, from the metadata and the tensors of a GGUF file."""

import math
from typing import Any

import numpy as np

from ...errors import ConfigError
from ..json_fields import show
from .metadata import Metadata, shortest

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The options of all published models with this scaling. A file has the divisors only."""


def read_rope_options(keys: Metadata, head_dim: int) -> dict[str, Any]:
    """``rope_theta``, ``rope_scaling`` (None for none) and ``partial_rotary_factor``.

    Raises ConfigError for a kind of scaling that is not supported.
    """
    theta = keys.number("rope.freq_base")
    rotated = keys.count("rope.dimension_count") or head_dim
    scaling = _scaling(keys) or _divisors(keys, theta or 10000.0, rotated)
    return {"rope_theta": theta or None, "rope_scaling": scaling, "partial_rotary_factor": _fraction(rotated, head_dim)}


def _scaling(keys: Metadata) -> dict[str, Any] | None:
    """The scaling that the metadata name."""
    kind = keys.get("rope.scaling.type")
    factor = keys.number("rope.scaling.factor") or keys.number("rope.scale_linear") or 1.0
    trained = keys.count("rope.scaling.original_context_length")
    scale = keys.number("rope.scaling.attn_factor") or keys.number("rope.scaling.yarn_attn_factor")
    betas = {f"beta_{end}": keys.number(f"rope.scaling.yarn_beta_{end}") for end in ("fast", "slow")}
    weight = keys.number("rope.scaling.yarn_log_multiplier")
    if kind == "linear" or kind is None and factor != 1:
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        options = {"factor": factor, "original_max_position_embeddings": trained} | betas
        options |= dict.fromkeys(("mscale", "mscale_all_dim"), round(10 * weight, 6))
        options["attention_factor"] = scale * (0.1 * math.log(factor) + 1) if scale not in (0, 1) else 0
        return {"rope_type": "yarn"} | {name: value for name, value in options.items() if value}
    if kind not in (None, "", "none", "longrope"):
        raise ConfigError(
            f"{keys.where('rope.scaling.type')} is {show(kind)}; it must be one of none, linear, yarn, longrope"
        )
    if not keys.has("rope_factors_long.weight") or not keys.has("rope_factors_short.weight"):
        return None
    short, long = ([*map(shortest, keys.file.tensors[f"rope_factors_{name}.weight"][:])] for name in ("short", "long"))
    options = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    return options | ({"attention_factor": scale} if scale else {})


def _divisors(keys: Metadata, theta: float, rotated: int) -> dict[str, Any] | None:
    """The scaling that ``rope_freqs.weight`` gives, the divisor of each frequency."""
    if not keys.has("rope_freqs.weight"):
        return None
    divisors = keys.file.tensors["rope_freqs.weight"][:]
    if (divisors == 1).all():
        return None
    factor = round(float(divisors.max()), 4)
    turns = _LLAMA3["original_max_position_embeddings"] / (2 * math.pi * theta ** (np.arange(0, rotated, 2) / rotated))
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    blend = np.clip((turns - low) / (high - low), 0, 1)
    if len(divisors) == len(turns) and np.allclose(divisors, 1 / (blend + (1 - blend) / factor), 1e-4):
        return {"rope_type": "llama3", "factor": factor} | _LLAMA3
    # Any other divisors are those of LongRoPE for all lengths.
    both = [*map(shortest, divisors)]
    return {"rope_type": "longrope", "short_factor": both, "long_factor": both, "attention_factor": 1.0}


def _fraction(rotated: int, head_dim: int) -> float:
    """The part of ``head_dim`` that is rotated, also where their product is rounded down."""
    part = rotated / head_dim
    return part if int(head_dim * part) == rotated else math.nextafter(part, 1)
