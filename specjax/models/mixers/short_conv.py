"""The gated short convolution of LFM2 (2511.23404): a mixer that reads the last few tokens."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

from ...core.recurrence import ConvRows, ConvState
from ..kinds import LayerConfig, MixerConfig
from ..layers import check_division, linear, matrix, param, value_of
from ..stacks import Stack, rows_of_sizes
from .convolution import as_mask, convolve

_MOST_GROUPS = 16
"""The largest number of groups in which channels lie."""


@dataclasses.dataclass(frozen=True)
class ShortConvConfig(MixerConfig):
    """A gated convolution of C channels.

    Attributes:
      channels: C.
      kernel: W, the tokens that the convolution reads, the newest included.
      bias: whether the projections and the convolution have biases.
    """

    channels: int
    kernel: int
    bias: bool = False

    @property
    def groups(self) -> int:
        """K, the number of groups of channels; it divides C."""
        return math.gcd(self.channels, _MOST_GROUPS)

    @property
    def stacks(self) -> dict[str, Stack]:
        size = self.channels // self.groups
        return dict.fromkeys(("gates", "gates_bias"), rows_of_sizes(self.groups, size, size, size))

    def empty(self, batch: int, capacity: int, dtype) -> ConvState:
        shape = batch, self.groups, self.kernel - 1, self.channels // self.groups
        return ConvState(jnp.zeros(shape, jnp.float32))

    def count_weights(self, width: int) -> int:
        return self.channels * (4 * width + self.kernel)

    def split_over(self, devices: int) -> "ShortConvConfig":
        check_division(devices, "groups of channels of the convolution", self.groups)
        return self


class ShortConv(nnx.Module):
    """The convolution ``out (c * conv (b * x))`` with gates b and c.

    ``gates`` [3 * C, E] stacks b, c and x of each group of channels, so that they stay on one
    device when the matrix is split. ``conv`` is [C, 1, W], ``out_proj`` [E, C].
    """

    def __init__(self, config: LayerConfig, keys: jax.Array, dtype):
        mixer, E = config.mixer, config.width
        assert isinstance(mixer, ShortConvConfig)
        C, W = mixer.channels, mixer.kernel
        self.config = mixer
        first, second = jax.random.split(keys[0])
        self.gates = matrix(first, (3 * C, E), ("heads", "embed"), dtype)
        self.conv = matrix(second, (C, 1, W), ("heads", None, None), dtype, W**-0.5)
        self.out_proj = matrix(keys[1], (E, C), ("embed", "heads"), dtype, 0.02 / (2 * config.depth) ** 0.5)
        self.gates_bias = param(jnp.zeros(3 * C, dtype), ("heads",)) if mixer.bias else None
        self.conv_bias = param(jnp.zeros(C, dtype), ("heads",)) if mixer.bias else None
        self.out_proj_bias = param(jnp.zeros(E, dtype), ("embed",)) if mixer.bias else None

    @jax.named_scope("short_conv")
    def __call__(self, normed, nodes, past: ConvState | None, rows: ConvRows | None):
        config = self.config
        B, N, _ = normed.shape
        past = config.empty(B, 0, nodes.dtype) if past is None else past
        rows = past.blank_rows(0) if rows is None else rows
        mask = as_mask(nodes.mask, B, N, rows.inputs.shape[2] + N)
        projected = linear(normed, self.gates[...], value_of(self.gates_bias))
        b, c, x = projected.reshape(B, N, config.groups, 3, -1).transpose(3, 0, 2, 1, 4)
        rows = ConvRows(jnp.concatenate([rows.inputs, b * x], 2))
        inputs = jnp.concatenate([past.inputs, rows.inputs], 2)
        y = convolve(inputs, mask, self.conv[...], value_of(self.conv_bias))
        y = jnp.moveaxis(c * y, 1, 2).reshape(B, N, -1)
        return linear(y, self.out_proj[...], value_of(self.out_proj_bias)), rows
