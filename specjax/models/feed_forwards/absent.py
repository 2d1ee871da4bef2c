"""No feed-forward: the layer is a mixer alone, as all layers of Mamba-2 are."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from ..kinds import FeedForwardConfig, LayerConfig


@dataclasses.dataclass(frozen=True)
class NoMlpConfig(FeedForwardConfig):
    """The layer has no feed-forward, and no norm before one."""

    absent: ClassVar[bool] = True

    def count_weights(self, width: int) -> int:
        return 0

    def split_over(self, devices: int) -> "NoMlpConfig":
        return self


class NoMlp(nnx.Module):
    """Adds nothing to the stream."""

    def __init__(self, config: LayerConfig, keys: jax.Array, dtype):
        self.config = config.mlp

    def __call__(self, normed: jax.Array) -> jax.Array:
        return jnp.zeros_like(normed)
