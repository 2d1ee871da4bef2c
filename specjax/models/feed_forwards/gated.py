"""The gated MLP (Shazeer 2020): an activation of one projection multiplies another."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

from ..kinds import FeedForwardConfig, LayerConfig
from ..layers import ACTIVATIONS, check_division, linear, matrix, param, value_of
from ..stacks import Stack, rows_of_sizes

MOST_PARTS = 16
"""The largest number of parts in which the weights of the gate and up projections lie."""


@dataclasses.dataclass(frozen=True)
class GatedMlpConfig(FeedForwardConfig):
    """A gated MLP of F units.

    Attributes:
      intermediate_size: F.
      activation: one of ``layers.ACTIVATIONS``.
      bias: whether the three projections have biases.
    """

    intermediate_size: int
    activation: str = "silu"
    bias: bool = False

    @property
    def parts(self) -> int:
        """The number of parts of ``GatedMlp.gate_up``; it divides F."""
        return math.gcd(self.intermediate_size, MOST_PARTS)

    @property
    def stacks(self) -> dict[str, Stack]:
        size = self.intermediate_size // self.parts
        return dict.fromkeys(("gate_up", "gate_up_bias"), rows_of_sizes(self.parts, size, size))

    def count_weights(self, width: int) -> int:
        return 3 * width * self.intermediate_size

    def split_over(self, devices: int) -> "GatedMlpConfig":
        check_division(devices, "MLP channels", self.intermediate_size)
        return self


class GatedMlp(nnx.Module):
    """The MLP ``down (act(gate x) * up x)``.

    Rows that are computed with one another lie together, so that they stay on one device when the
    matrix is split. ``gate_up`` [P * 2 * F / P, E] stacks a part of the gate and the same part of
    the up projection for each of P ``parts``.
    """

    gate_up: nnx.Param
    down: nnx.Param
    gate_up_bias: nnx.Param | None
    down_bias: nnx.Param | None

    def __init__(self, config: LayerConfig, keys: jax.Array, dtype):
        mlp, E = config.mlp, config.width
        assert isinstance(mlp, GatedMlpConfig)
        F = mlp.intermediate_size
        self.config = mlp
        self.gate_up = matrix(keys[0], (2 * F, E), ("mlp", "embed"), dtype)
        self.down = matrix(keys[1], (E, F), ("embed", "mlp"), dtype, 0.02 / (2 * config.depth) ** 0.5)
        self.gate_up_bias = param(jnp.zeros(2 * F, dtype), ("mlp",)) if mlp.bias else None
        self.down_bias = param(jnp.zeros(E, dtype), ("embed",)) if mlp.bias else None

    @jax.named_scope("mlp")
    def __call__(self, normed: jax.Array) -> jax.Array:
        return linear(self.units(normed), self.down[...], value_of(self.down_bias))

    def units(self, normed: jax.Array) -> jax.Array:
        """The gated units, float32 [B, N, F]."""
        parts = linear(normed, self.gate_up[...], value_of(self.gate_up_bias))
        parts = parts.reshape(*normed.shape[:-1], self.config.parts, 2, -1)
        gated = ACTIVATIONS[self.config.activation](parts[..., 0, :]) * parts[..., 1, :]
        return gated.reshape(*normed.shape[:-1], -1)
