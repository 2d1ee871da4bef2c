"""Multi-token prediction: decoder layers trained with the target to say the tokens after the next (DeepSeek-V3, 2412.19437, section 2.2).

The module is a ``FeatureHead``: a checkpoint has one, which is used again and again, each time on its own hidden state. Several, of which
module k reads the hidden states of module k - 1 and the tokens k further on, are not supported.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from ..config import ModelConfig
from ..models.decoder import Decoder, Layer, Output, run_layers
from ..models.layers import linear, matrix, param, rms_norm
from .base import AfterLastLayer
from .eagle import embeddings


@dataclasses.dataclass(frozen=True)
class MtpConfig(AfterLastLayer):
    """A module that predicts further tokens.

    Attributes:
      layers: the decoder layers of the module, as wide as the target.
      target_layers: how many the target has.
      normed_features: whether it reads the target's hidden state after the final norm.
      norm_output: whether it hands on its hidden state after its norm (GLM), rather than the raw one (DeepSeek).
      hidden_first: whether the joined input begins with the hidden state (the paper's formula, MiMo), rather than the embedding.
      own_embedding, own_head: whether the checkpoint brings them; else the target's serve.
    """

    layers: ModelConfig
    target_layers: int
    normed_features: bool = True
    norm_output: bool = False
    hidden_first: bool = False
    own_embedding: bool = False
    own_head: bool = False
    kind: ClassVar[str] = "mtp"


class MtpHead(nnx.Module):
    """One module: ``join`` [E, 2E] of the normed embedding and the normed hidden state, decoder layers, a norm before the output."""

    def __init__(self, config: MtpConfig, key: jax.Array, dtype=None):
        layers, E = config.layers, config.layers.hidden_size
        dtype = jnp.dtype(dtype or layers.dtype)
        join, embed, head, *keys = jax.random.split(key, layers.num_layers + 3)
        self.config = config
        self.embedding_norm, self.hidden_norm, self.norm = (param(jnp.ones(E, dtype), ("embed",)) for _ in range(3))
        self.join = matrix(join, (E, 2 * E), ("embed", None), dtype)
        self.layers = nnx.List([Layer(layers, k, dtype) for k in keys])
        shape, axes = (layers.vocab_size, E), ("vocab", "embed")
        self.embed = matrix(embed, shape, axes, dtype) if config.own_embedding else None
        self.head = matrix(head, shape, axes, dtype) if config.own_head else None

    def fuse(self, target: Decoder, taps: tuple) -> jax.Array:
        return rms_norm(taps[0], target.norm[...], target.config.norm_eps) if self.config.normed_features else taps[0]

    def __call__(self, target, tokens, features, positions, mask, cache=None, *, rows=None, row_positions=None) -> Output:
        eps = self.config.layers.norm_eps
        embedded = rms_norm(embeddings(self.embed, target, tokens), self.embedding_norm[...], eps)
        hidden = rms_norm(features, self.hidden_norm[...], eps)
        x = linear(jnp.concatenate([hidden, embedded] if self.config.hidden_first else [embedded, hidden], -1), self.join[...])
        dtype = self.join[...].dtype if cache is None else cache.layers[0][0].dtype
        x, new_rows, _ = run_layers(
            self.layers, self.config.layers, x, positions, mask, cache, dtype, rows=rows, row_positions=row_positions
        )
        return Output(rms_norm(x, self.norm[...], eps) if self.config.norm_output else x, new_rows)

    def logits(self, target: Decoder, hidden: jax.Array) -> jax.Array:
        normed = hidden if self.config.norm_output else rms_norm(hidden, self.norm[...], self.config.layers.norm_eps)
        return target.logits(normed) if self.head is None else linear(normed, self.head[...])
