"""Medusa heads (Cai et al. 2024, 2401.10774) predict tokens from one hidden state of the target.

The target itself predicts the next token from it. Head k, counted from 0, predicts the token k + 1
places after that one, without knowing the tokens between.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from ..models.base import Output
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.layers import linear, matrix, param, value_of
from .base import HeadConfig, HeadModule, Kind


@dataclasses.dataclass(frozen=True)
class MedusaConfig(HeadConfig):
    """The configuration of Medusa heads.

    Attributes:
      target_size, target_layers, vocab_size: the target's width, depth and vocabulary.
      num_heads: the number of heads, which is the number of drafted tokens.
      num_layers: the number of blocks in each head. In some published checkpoints all blocks after
        the first have the same weights.
      dtype: the type of the weights.
    """

    target_size: int
    target_layers: int
    vocab_size: int
    num_heads: int = 5
    num_layers: int = 1
    dtype: str = "float32"
    kind: ClassVar[str] = "medusa"
    layers: ClassVar[None] = None

    @property
    def taps(self) -> tuple[int, ...]:
        return (self.target_layers,)

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        return {"linear": ("write", "read"), "linear_bias": ("write",)}

    def with_dtype(self, dtype: str) -> "MedusaConfig":
        return dataclasses.replace(self, dtype=dtype)


class ResBlock(nnx.Module):
    """A residual block, ``x + silu(linear(x))``, from [..., inputs * E] to [..., E].

    With several inputs the residual path is a linear map too.
    """

    def __init__(self, size: int, inputs: int, key: jax.Array, dtype):
        first, rest = jax.random.split(key)
        shape = size, inputs * size
        axes = "embed", None
        self.linear = matrix(first, shape, axes, dtype, 0.0 if inputs == 1 else 0.02)
        self.linear_bias = param(jnp.zeros(size, dtype), ("embed",))
        self.residual = None if inputs == 1 else matrix(rest, shape, axes, dtype)
        self.residual_bias = None if inputs == 1 else param(jnp.zeros(size, dtype), ("embed",))

    def __call__(self, x: jax.Array) -> jax.Array:
        residual = x if self.residual is None else linear(x, self.residual[...], value_of(self.residual_bias))
        return residual + jax.nn.silu(linear(x, self.linear[...], value_of(self.linear_bias)))


class MedusaHead(nnx.Module):
    """One head: residual blocks and an output matrix.

    The first block reads ``inputs`` vectors of width E side by side.
    """

    def __init__(self, config: MedusaConfig, key: jax.Array, dtype, inputs: int = 1, bias: bool = False):
        head, *keys = jax.random.split(key, config.num_layers + 1)
        E, V = config.target_size, config.vocab_size
        self.blocks = nnx.List([ResBlock(E, 1 if j else inputs, key, dtype) for j, key in enumerate(keys)])
        self.head = matrix(head, (V, E), ("vocab", "embed"), dtype)
        self.head_bias = param(jnp.zeros(V, dtype), ("vocab",)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits float32 [..., V] of x float32 [..., inputs * E]."""
        for block in self.blocks:
            x = block(x)
        return linear(x, self.head[...], value_of(self.head_bias))


class MedusaHeads(HeadModule):
    """The Medusa heads of a target."""

    config: MedusaConfig

    def __init__(self, config: MedusaConfig, key: jax.Array, dtype=None):
        dtype = jnp.dtype(dtype or config.dtype)
        _, _, *keys = jax.random.split(key, config.num_heads + 2)  # Hydra has parameters for the first two
        self.config = config
        self.heads = nnx.List([MedusaHead(config, key, dtype) for key in keys])

    def __call__(
        self, target, tokens, features, positions, mask, cache=None, *, rows=None, row_positions=None
    ) -> Output:
        """The hidden states that the heads read: the features, unchanged."""
        return Output(features, ())

    def logits(self, target: Decoder, k: int, hidden: jax.Array, tokens: jax.Array | None = None) -> jax.Array:
        """Logits float32 [..., V], the prediction of head k.

        Args:
          hidden: float32 [..., E], the hidden state of the token before the root, the newest token
            that the target has read.
          tokens: int32 [..., k + 1], the root and the k tokens drafted after it. Medusa heads
            ignore them.
        """
        return self.heads[k](hidden)


def usual(target: ModelConfig, layer: ModelConfig) -> MedusaConfig:
    return MedusaConfig(target.hidden_size, target.num_layers, target.vocab_size, num_heads=4)


KIND = Kind(
    MedusaConfig,
    MedusaHeads,
    usual,
    tuned_trees=True,
    files=("medusa_lm_head.safetensors", "medusa_lm_head.pt"),
    prefixes=(r"medusa_head\.",),
)
