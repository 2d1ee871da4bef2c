"""Multi-token prediction: decoder layers trained with the target to say the tokens after the next (DeepSeek-V3, 2412.19437, section 2.2).

Of D modules, h^0 being the target's features, module k says in row i the token t_(i + k + 1):

    h'^k_i = M_k [RMSNorm(h^(k - 1)_i); RMSNorm(E(t_(i + k)))]        h^k = TRM_k(h'^k)        p^k_i = OutHead(h^k_i)

Each has keys and values of its own, in which row i is at position i. The last one is used again for tokens further on, on its own hidden
states, as is the only one of most checkpoints. Modules are numbered from 0 below.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from ..models.config import ModelConfig
from ..models.decoder import Decoder, Layer, Output, run_layers
from ..models.layers import linear, matrix, param, rms_norm
from .base import AfterLastLayer
from .eagle import embeddings


@dataclasses.dataclass(frozen=True)
class MtpConfig(AfterLastLayer):
    """Modules that predict further tokens.

    Attributes:
      layers: the decoder layers of each module, as wide as the target.
      target_layers: how many the target has.
      normed_features: whether the first reads the target's hidden state after the final norm.
      norm_output: whether they hand on their hidden states after their norm (GLM), rather than the raw ones (DeepSeek).
      hidden_first: whether the joined input begins with the hidden state (the paper's formula, MiMo), rather than the embedding.
      own_embedding, own_head: whether the checkpoint brings them, for each module; else the target's serve.
      modules: how many there are.
    """

    layers: ModelConfig
    target_layers: int
    normed_features: bool = True
    norm_output: bool = False
    hidden_first: bool = False
    own_embedding: bool = False
    own_head: bool = False
    modules: int = 1
    kind: ClassVar[str] = "mtp"


class MtpHead(nnx.Module):
    """The modules, one after another."""

    def __init__(self, config: MtpConfig, key: jax.Array, dtype=None):
        self.config = config
        self.modules = nnx.List([MtpModule(config, i, k, dtype) for i, k in enumerate(jax.random.split(key, config.modules))])

    def fuse(self, target: Decoder, taps: tuple) -> jax.Array:
        return rms_norm(taps[0], target.norm[...], target.config.norm_eps) if self.config.normed_features else taps[0]


class MtpModule(nnx.Module):
    """Module number ``place``: ``join`` [E, 2E] of the normed embedding and the normed hidden state, decoder layers, a norm before the output."""

    def __init__(self, config: MtpConfig, place: int, key: jax.Array, dtype=None):
        layers, E = config.layers, config.layers.hidden_size
        dtype = jnp.dtype(dtype or layers.dtype)
        join, embed, head, *keys = jax.random.split(key, layers.num_layers + 3)
        self.config, self.place = config, place
        self.embedding_norm, self.hidden_norm, self.norm = (param(jnp.ones(E, dtype), ("embed",)) for _ in range(3))
        self.join = matrix(join, (E, 2 * E), ("embed", None), dtype)
        self.layers = nnx.List([Layer(layers, k, dtype) for k in keys])
        shape, axes = (layers.vocab_size, E), ("vocab", "embed")
        self.embed = matrix(embed, shape, axes, dtype) if config.own_embedding else None
        self.head = matrix(head, shape, axes, dtype) if config.own_head else None

    def __call__(self, target, tokens, features, positions, mask, cache=None, *, rows=None, row_positions=None) -> Output:
        config, eps = self.config.layers, self.config.layers.norm_eps
        embedded = rms_norm(embeddings(self.embed, target, tokens), self.embedding_norm[...], eps)
        hidden = rms_norm(features, self.hidden_norm[...], eps)
        x = linear(jnp.concatenate([hidden, embedded] if self.config.hidden_first else [embedded, hidden], -1), self.join[...])
        dtype = self.join[...].dtype
        if cache is not None:
            cache = cache.replace(layers=cache.layers[self.place * config.num_layers :][: config.num_layers])
            dtype = cache.layers[0][0].dtype
        x, new_rows, _ = run_layers(self.layers, config, x, positions, mask, cache, dtype, rows=rows, row_positions=row_positions)
        return Output(rms_norm(x, self.norm[...], eps) if self.config.norm_output else x, new_rows)

    def logits(self, target: Decoder, hidden: jax.Array) -> jax.Array:
        normed = hidden if self.config.norm_output else rms_norm(hidden, self.norm[...], self.config.layers.norm_eps)
        return target.logits(normed) if self.head is None else linear(normed, self.head[...])
