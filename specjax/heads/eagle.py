"""The EAGLE head (Li et al. 2024, 2401.15077): a decoder layer continues the target's features.

The feature of a token is the target's last hidden state after the final norm. The head predicts the
next feature, and the target's own output matrix maps it to tokens. EAGLE-1 and EAGLE-2 use the same
heads.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from ..models.base import Output
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.layer import Layer
from ..models.layers import linear, matrix, param, value_of
from .base import HeadModule, Kind, LastLayerConfig, embeddings, run_own_layers


@dataclasses.dataclass(frozen=True)
class EagleConfig(LastLayerConfig):
    """The configuration of an EAGLE head.

    Attributes:
      layers: the head's decoder layers, as wide as the target.
      target_layers: the target's number of layers.
      bias: whether ``fc`` has a bias.
      own_embedding: whether the head has token embeddings of its own; otherwise it uses the
        target's.
      first_norm: whether the first layer norms its input. In published heads it does not.
    """

    layers: ModelConfig
    target_layers: int
    bias: bool = True
    own_embedding: bool = False
    first_norm: bool = False
    kind: ClassVar[str] = "eagle"

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        return {"fc": ("write", "taps"), "fc_bias": ("write",)}

    @property
    def passed_on(self) -> dict[str, int]:
        return {"fc": 1}


class EagleHead(HeadModule):
    """An EAGLE head. ``fc`` [E, 2E] joins the next token's embedding and the feature."""

    config: EagleConfig

    def __init__(self, config: EagleConfig, key: jax.Array, dtype=None):
        layers, E = config.layers, config.layers.hidden_size
        dtype = jnp.dtype(dtype or layers.dtype)
        fc, embed, *keys = jax.random.split(key, layers.num_layers + 2)
        self.config = config
        self.fc = matrix(fc, (E, 2 * E), ("embed", None), dtype)
        self.fc_bias = param(jnp.zeros(E, dtype), ("embed",)) if config.bias else None
        normed = [i > 0 or config.first_norm for i in range(layers.num_layers)]
        own = zip(layers.layers, keys, normed)
        self.layers = nnx.List([Layer(layer, k, dtype, first_norm=n) for layer, k, n in own])
        self.embed = matrix(embed, (layers.vocab_size, E), ("vocab", "embed"), dtype) if config.own_embedding else None

    def __call__(
        self, target, tokens, features, positions, mask, cache=None, *, rows=None, row_positions=None
    ) -> Output:
        joined = jnp.concatenate([embeddings(self.embed, target, tokens), features], -1)
        x = linear(joined, self.fc[...], value_of(self.fc_bias))
        x, new_rows = run_own_layers(
            self.layers, x, positions, mask, cache, self.fc[...].dtype, rows=rows, row_positions=row_positions
        )
        return Output(x, new_rows)

    def logits(self, target: Decoder, hidden: jax.Array) -> jax.Array:
        return target.logits(hidden)


def usual(target: ModelConfig, layer: ModelConfig) -> EagleConfig:
    return EagleConfig(layer, target_layers=target.num_layers)


KIND = Kind(EagleConfig, EagleHead, usual, tuned_trees=True, token_by_token=True)
