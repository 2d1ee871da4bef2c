"""No mixer: the layer is a feed-forward alone, as some layers of Nemotron-H are."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from ..kinds import LayerConfig, MixerConfig


@dataclasses.dataclass(frozen=True)
class NoMixerConfig(MixerConfig):
    """The layer has no mixer, no norm before one, and nothing in the cache."""

    absent: ClassVar[bool] = True

    def count_weights(self, width: int) -> int:
        return 0

    def split_over(self, devices: int) -> "NoMixerConfig":
        return self


class NoMixer(nnx.Module):
    """Adds nothing to the stream."""

    def __init__(self, config: LayerConfig, keys: jax.Array, dtype):
        self.config = config.mixer

    def __call__(self, normed, nodes, past, rows):
        return jnp.zeros_like(normed), ()
