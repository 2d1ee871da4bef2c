"""Grown parameters, one at a time: of decoders, and of trained heads.

A matrix that reads the stream may have any numbers in its new columns, because the new part of the
stream is zero. A matrix that writes to the stream has zeros in its new rows and new columns, so new
query heads and new MLP units add nothing. A new layer is random except for its two output matrices,
which are zero.

**New tokens** must never be likely. If the vocabulary grows, one new entry of the stream, number E,
is a small constant for all tokens. No layer reads it. The output matrix has a large negative weight
there for new tokens, so their logits lie far below all others.
"""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from ...models.config import ModelConfig
from . import axes
from .axes import RANDOM, ZERO, Axis

_AXES: dict[str, tuple[str, ...]] = {
    "embed": ("same", "write"),
    "head": ("same", "read"),
    "norm": ("norm",),
    # decoder layers
    "mixer_norm": ("norm",),
    "mlp_norm": ("norm",),
    "qkv": ("qkv", "read"),
    "qkv_bias": ("qkv",),
    "q_norm": ("q_norm",),
    "k_norm": ("k_norm",),
    "out": ("write", "attended"),
    "out_bias": ("write",),
    "gate_up": ("gate_up", "read"),
    "gate_up_bias": ("gate_up",),
    "down": ("write", "units"),
    "down_bias": ("write",),
}
"""The axes of a decoder's parameters by the last name in their path, see ``Growth.axis``."""

_DEVIATION = 0.02
"""The standard deviation of random numbers."""

_CHUNK = 1 << 24
"""The number of entries that are made at a time, in float32."""

_CONSTANT = 2.0**-8
"""The constant in the stream, as a part of the typical entry of the embedding."""

_GAIN = 2.0**4
"""The weight of the last norm at the constant's place."""

_PENALTY = 2.0**24
"""Minus the weight of new tokens at the constant's place.

The largest float16 is smaller. The norm then has a larger weight.
"""


@dataclasses.dataclass(frozen=True)
class Growth:
    """The way from the parameters of a model or a head to the larger parameters.

    Attributes:
      old, new: the shapes, of the model or of the head's decoder layers.
      taps: the width of the target's stream, old and new.
      pass_on: for matrices of heads that make a stream, the number of the input vector whose
        constant they pass on. Other streams begin with embeddings, which have the constant.
      axes: the axes of the parameters that decoders do not have, see ``HeadConfig.axes``.
    """

    old: ModelConfig
    new: ModelConfig
    taps: tuple[int, int]
    pass_on: Mapping[str, int] = dataclasses.field(default_factory=dict)
    axes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def grow(self, path: str, old: np.ndarray | None, shape: tuple[int, ...], dtype, rng) -> np.ndarray:
        """The grown parameter at ``path``, of this shape and dtype.

        Args:
          old: the old parameter; None for a parameter of a new layer.
          rng: a numpy generator.
        """
        if jnp.issubdtype(dtype, jnp.integer):
            return np.asarray(old, dtype)
        name = [part for part in path.split(".") if not part.isdigit()][-1]
        kinds = self.axes[name] if name in self.axes else _AXES[name]
        row_kind, column_kind, *_ = (*kinds, "same")
        size = (shape[0], int(np.prod(shape[1:])))
        if old is None:
            rest = [ZERO if kind == "write" else RANDOM for kind in (*kinds, "same")]
            rows, columns = (Axis(np.full(n, kind)) for n, kind in zip(size, rest))
            flat = np.zeros((0, 0), np.float32)
        else:
            flat = old.astype(np.float32).reshape(len(old), -1)
            rows = self.axis(row_kind, len(flat), size[0])
            columns = self.axis(column_kind, flat.shape[1], size[1])
        value = place(flat, rows, columns, dtype, None if "norm" in row_kind else rng)
        if old is not None and self.new.vocab_size > self.old.vocab_size:
            self._set_constant(name, flat, value)
        return value.reshape(shape)

    def axis(self, kind: str, old: int, new: int) -> Axis:
        """The axis of a kind, with ``old`` entries before and ``new`` entries afterwards."""
        E, width = self.old.hidden_size, self.new.hidden_size
        match kind:
            case "qkv":
                return axes.queries_keys_values(self.old, self.new)
            case "attended":
                return Axis(axes.attended(self.old, self.new))
            case "q_norm":
                return Axis(axes.rotary(self.old, self.new))
            case "k_norm":
                return Axis(axes.rotary(self.old, self.new), (self.old.head_dim / self.new.head_dim) ** 0.5)
            case "norm":
                return Axis(axes.widen(old, new, RANDOM), (E / width) ** 0.5)
            case "tap_norm":
                return Axis(self._stream(*self.taps, old // self.taps[0]), (self.taps[0] / self.taps[1]) ** 0.5)
            case "taps":
                return Axis(self._stream(*self.taps, old // self.taps[0]))
            case "unknown_taps":
                source = self._stream(*self.taps, old // self.taps[0])
                return Axis(np.where(source == RANDOM, ZERO, source))
            case "read":
                return Axis(self._stream(E, width, old // E))
            case "read, same":
                return Axis(axes.join([(self._stream(E, width), E), (np.arange(old - E), old - E)]))
            case "same, read":
                return Axis(axes.join([(np.arange(old - E), old - E), (self._stream(E, width), E)]))
            case "gate_up":
                return Axis(axes.gate_up(self.old, self.new))
            case "write" | "units":
                return Axis(axes.widen(old, new, ZERO))
        return Axis(axes.widen(old, new, RANDOM))

    def _stream(self, old: int, new: int, count: int = 1) -> np.ndarray:
        """``count`` vectors of the stream side by side, for matrices that read them."""
        source = axes.widen(old, new, RANDOM)
        if self.new.vocab_size > self.old.vocab_size:
            source[old] = ZERO
        return axes.join([(source, old)] * count)

    def _set_constant(self, name: str, old: np.ndarray, value: np.ndarray) -> None:
        """Sets the entries of a grown parameter at the place of the constant."""
        E, width = self.old.hidden_size, self.new.hidden_size
        penalty = -min(_PENALTY, float(jnp.finfo(value.dtype).max) / 2)
        if name == "embed":
            value[: len(old), E] = _CONSTANT * 2.0 ** np.floor(np.log2(np.sqrt(np.mean(old**2))))
        if name in ("embed", "head"):
            value[len(old) :, E] = penalty
        if name == "norm":
            value[E] = max(_GAIN, -_PENALTY / penalty) * (E / width) ** 0.5
        if name in self.pass_on:
            value[E, self.pass_on[name] * width + E] = 1


def place(old: np.ndarray, rows: Axis, columns: Axis, dtype, rng) -> np.ndarray:
    """The grown matrix, in which old entries have the places of the axes.

    Args:
      old: float32 [old rows, old columns].
      rng: makes the random numbers; None for ones in their place.
    """
    out = np.empty((len(rows.source), len(columns.source)), dtype)
    scale = np.broadcast_to(rows.scale, len(out))
    step = max(_CHUNK // max(out.shape[1], 1), 1)
    for start in range(0, len(out), step):
        part = slice(start, start + step)
        out[part] = _chunk(old, rows.source[part], scale[part], columns.source, rng)
    return out


def _chunk(old: np.ndarray, rows: np.ndarray, scale: np.ndarray, columns: np.ndarray, rng) -> np.ndarray:
    """Some rows of the grown matrix, float32."""
    shape = (len(rows), len(columns))
    if rng is None:
        out = np.ones(shape, np.float32)
    elif RANDOM in rows or RANDOM in columns:
        out = _DEVIATION * rng.standard_normal(shape, np.float32)
    else:
        out = np.zeros(shape, np.float32)
    out[rows == ZERO] = 0
    out[:, columns == ZERO] = 0
    at = rows >= 0
    across = columns >= 0
    out[np.ix_(at, across)] = old[np.ix_(rows[at], columns[across])] * scale[at, None]
    return out
