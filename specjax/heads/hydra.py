"""Hydra heads (Ankner et al. 2024, 2402.05109): Medusa heads that also read the tokens between.

Head k, counted from 0, reads the hidden state and the embeddings of the k + 1 tokens after it. In
Hydra++ the hidden states first pass through the prefix layer, a decoder layer with a cache of its
own.
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
from ..models.layers import matrix, param, rms_norm
from .base import HeadModule, Kind, embeddings, run_own_layers
from .medusa import MedusaConfig, MedusaHead


@dataclasses.dataclass(frozen=True)
class HydraConfig(MedusaConfig):
    """The configuration of Hydra heads.

    Attributes:
      head_bias: whether the output matrices have a bias, as in published heads.
      own_embedding: whether the heads have token embeddings of their own; otherwise they use the
        target's.
      layers: the prefix layers, as wide as the target; None for heads without them.

    The other attributes are as in ``MedusaConfig``.
    """

    head_bias: bool = False
    own_embedding: bool = False
    layers: ModelConfig | None = None
    kind: ClassVar[str] = "hydra"
    reads_tokens: ClassVar[bool] = True

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        own = {"residual": ("write", "read"), "residual_bias": ("write",), "head_bias": ("same",)}
        return super().axes | own

    @property
    def passed_on(self) -> dict[str, int]:
        return {"residual": 0}

    def with_dtype(self, dtype: str) -> "HydraConfig":
        return dataclasses.replace(self, dtype=dtype, layers=self.layers and self.layers.replace(dtype=dtype))


class HydraHeads(HeadModule):
    """The Hydra heads of a target. ``norm`` follows the prefix layers."""

    config: HydraConfig

    def __init__(self, config: HydraConfig, key: jax.Array, dtype=None):
        dtype, shape = jnp.dtype(dtype or config.dtype), (config.vocab_size, config.target_size)
        embed, prefix, *keys = jax.random.split(key, config.num_heads + 2)
        self.config = config
        self.heads = nnx.List([MedusaHead(config, key, dtype, k + 2, config.head_bias) for k, key in enumerate(keys)])
        self.embed = matrix(embed, shape, ("vocab", "embed"), dtype) if config.own_embedding else None
        own = config.layers
        keys_of_layers = jax.random.split(prefix, own.num_layers) if own else []
        layers = [Layer(own.layer(i), key, dtype) for i, key in enumerate(keys_of_layers)] if own else []
        self.layers = nnx.List(layers)
        self.norm = param(jnp.ones(config.target_size, dtype), ("embed",)) if config.layers else None

    def __call__(
        self, target, tokens, features, positions, mask, cache=None, *, rows=None, row_positions=None
    ) -> Output:
        """The hidden states that the heads read: the features after the prefix layers.

        Prefix layers ignore ``tokens``.
        """
        config = self.config.layers
        if config is None or self.norm is None:
            return Output(features, ())
        x, new_rows = run_own_layers(
            self.layers, features, positions, mask, cache, self.norm[...].dtype, rows=rows, row_positions=row_positions
        )
        return Output(rms_norm(x, self.norm[...], config.norm_eps), new_rows)

    def logits(self, target: Decoder, k: int, hidden: jax.Array, tokens: jax.Array) -> jax.Array:
        """Logits float32 [..., V], the prediction of head k.

        Args:
          hidden: float32 [..., E], the hidden state of the token before the root, the newest token
            that the target has read.
          tokens: int32 [..., k + 1], the root and the k tokens drafted after it. ``hidden`` is
            broadcast to their leading axes.
        """
        embedded = embeddings(self.embed, target, tokens).reshape(*tokens.shape[:-1], -1)
        hidden = jnp.broadcast_to(hidden, (*tokens.shape[:-1], hidden.shape[-1]))
        return self.heads[k](jnp.concatenate([hidden, embedded], -1))


def usual(target: ModelConfig, layer: ModelConfig) -> HydraConfig:
    return HydraConfig(target.hidden_size, target.num_layers, target.vocab_size, num_heads=4)


KIND = Kind(HydraConfig, HydraHeads, usual, tuned_trees=True, files=("hydra_lm_head.safetensors", "hydra_lm_head.pt"))
