"""The plain MLP of the first transformers: two projections with an activation between them."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from ..kinds import FeedForwardConfig, LayerConfig
from ..layers import ACTIVATIONS, check_division, linear, matrix, param, value_of


@dataclasses.dataclass(frozen=True)
class PlainMlpConfig(FeedForwardConfig):
    """An MLP of F units.

    Attributes:
      intermediate_size: F.
      activation: one of ``layers.ACTIVATIONS``.
      bias: whether the two projections have biases.
    """

    intermediate_size: int
    activation: str = "gelu_tanh"
    bias: bool = True

    def count_weights(self, width: int) -> int:
        return 2 * width * self.intermediate_size

    def split_over(self, devices: int) -> "PlainMlpConfig":
        check_division(devices, "MLP channels", self.intermediate_size)
        return self


class PlainMlp(nnx.Module):
    """The MLP ``down act(up x)``, with ``up`` [F, E] and ``down`` [E, F]."""

    up: nnx.Param
    down: nnx.Param
    up_bias: nnx.Param | None
    down_bias: nnx.Param | None

    def __init__(self, config: LayerConfig, keys: jax.Array, dtype):
        mlp, E = config.mlp, config.width
        assert isinstance(mlp, PlainMlpConfig)
        F = mlp.intermediate_size
        self.config = mlp
        self.up = matrix(keys[0], (F, E), ("mlp", "embed"), dtype)
        self.down = matrix(keys[1], (E, F), ("embed", "mlp"), dtype, 0.02 / (2 * config.depth) ** 0.5)
        self.up_bias = param(jnp.zeros(F, dtype), ("mlp",)) if mlp.bias else None
        self.down_bias = param(jnp.zeros(E, dtype), ("embed",)) if mlp.bias else None

    @jax.named_scope("mlp")
    def __call__(self, normed: jax.Array) -> jax.Array:
        units = ACTIVATIONS[self.config.activation](linear(normed, self.up[...], value_of(self.up_bias)))
        return linear(units, self.down[...], value_of(self.down_bias))
