"""The plain MLP of the first transformers: two projections with an activation between them."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from ..kinds import FeedForwardConfig, LayerConfig
from ..layers import ACTIVATIONS, check_division, linear, matrix, param, value_of

XIELU_BETA = 0.5
"""The slope of the linear part of xIELU."""

XIELU_EPS = -1e-6
"""The largest number of which xIELU takes an exponential, as in transformers."""


@dataclasses.dataclass(frozen=True)
class PlainMlpConfig(FeedForwardConfig):
    """An MLP of F units.

    Attributes:
      intermediate_size: F.
      activation: one of ``layers.ACTIVATIONS``, or "xielu".
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
    """The MLP ``down act(up x)``, with ``up`` [F, E] and ``down`` [E, F].

    The activation "xielu" has two parameters of its own, ``alpha_p`` and ``alpha_n`` [1].
    """

    up: nnx.Param
    down: nnx.Param
    up_bias: nnx.Param | None
    down_bias: nnx.Param | None
    alpha_p: nnx.Param | None
    alpha_n: nnx.Param | None

    def __init__(self, config: LayerConfig, keys: jax.Array, dtype):
        mlp, E = config.mlp, config.width
        assert isinstance(mlp, PlainMlpConfig)
        F = mlp.intermediate_size
        self.config = mlp
        self.up = matrix(keys[0], (F, E), ("mlp", "embed"), dtype)
        self.down = matrix(keys[1], (E, F), ("embed", "mlp"), dtype, 0.02 / (2 * config.depth) ** 0.5)
        learned = mlp.activation == "xielu"
        self.alpha_p, self.alpha_n = (param(jnp.zeros(1, dtype), (None,)) if learned else None for _ in range(2))
        self.up_bias = param(jnp.zeros(F, dtype), ("mlp",)) if mlp.bias else None
        self.down_bias = param(jnp.zeros(E, dtype), ("embed",)) if mlp.bias else None

    @jax.named_scope("mlp")
    def __call__(self, normed: jax.Array) -> jax.Array:
        units = linear(normed, self.up[...], value_of(self.up_bias))
        if self.alpha_p is None or self.alpha_n is None:
            units = ACTIVATIONS[self.config.activation](units)
        else:
            units = xielu(units, self.alpha_p[...], self.alpha_n[...])
        return linear(units, self.down[...], value_of(self.down_bias))


def xielu(x: jax.Array, alpha_p: jax.Array, alpha_n: jax.Array) -> jax.Array:
    """The activation xIELU of x, float32 (Huang & Schlag 2024, arXiv 2411.13010).

    Softplus keeps the factors beside the linear part positive.
    """
    alpha_p, alpha_n = (jax.nn.softplus(alpha.astype(jnp.float32)) for alpha in (alpha_p, alpha_n))
    below = jnp.minimum(x, XIELU_EPS)
    curved = jnp.where(x > 0, alpha_p * x * x, (jnp.expm1(below) - x) * (XIELU_BETA + alpha_n))
    return XIELU_BETA * x + curved
