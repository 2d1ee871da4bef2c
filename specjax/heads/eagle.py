"""EAGLE heads: a decoder layer that continues the target's features (Li et al. 2024, 2401.15077; EAGLE-3, Li et al. 2025, 2503.01840).

Both are ``FeatureHead``s. EAGLE-1 and 2 share their weights: the feature is the target's last hidden state after the final norm, and so
is what the head says, which goes through the target's own output matrix. EAGLE-3 reads three layers, feeds back whatever is useful,
and has an output matrix over a draft vocabulary. P-EAGLE (2602.01469) is an EAGLE-3 head that reads masks in the place of what it would
draft and feed back, so that one pass says all places.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from ..models.config import ModelConfig
from ..models.decoder import Decoder, Layer, Output, run_layers
from ..models.layers import linear, lookup, matrix, param, rms_norm, value_of
from ..models.translated import LACKING
from .base import AfterLastLayer


@dataclasses.dataclass(frozen=True)
class EagleConfig(AfterLastLayer):
    """EAGLE-1 and 2.

    Attributes:
      layers: the head's decoder layers, as wide as the target.
      target_layers: how many the target has.
      bias: whether ``fc`` has one.
      own_embedding: whether the checkpoint brings token embeddings; else the target's serve.
      first_norm: whether the first layer norms its input; the published heads do not.
    """

    layers: ModelConfig
    target_layers: int
    bias: bool = True
    own_embedding: bool = False
    first_norm: bool = False
    kind: ClassVar[str] = "eagle"


class EagleHead(nnx.Module):
    """``fc`` [E, 2E] joins the next token's embedding and the feature, in this order; the layers follow."""

    def __init__(self, config: EagleConfig, key: jax.Array, dtype=None):
        layers, E = config.layers, config.layers.hidden_size
        dtype = jnp.dtype(dtype or layers.dtype)
        fc, embed, *keys = jax.random.split(key, layers.num_layers + 2)
        self.config = config
        self.fc = matrix(fc, (E, 2 * E), ("embed", None), dtype)
        self.fc_bias = param(jnp.zeros(E, dtype), ("embed",)) if config.bias else None
        self.layers = nnx.List([Layer(layers, k, dtype, normed=i > 0 or config.first_norm) for i, k in enumerate(keys)])
        self.embed = matrix(embed, (layers.vocab_size, E), ("vocab", "embed"), dtype) if config.own_embedding else None

    modules = property(lambda self: (self,))

    def fuse(self, target: Decoder, taps: tuple) -> jax.Array:
        return rms_norm(taps[0], target.norm[...], target.config.norm_eps)

    def __call__(self, target, tokens, features, positions, mask, cache=None, *, rows=None, row_positions=None) -> Output:
        embedded = embeddings(self.embed, target, tokens)
        x = linear(jnp.concatenate([embedded, features], -1), self.fc[...], value_of(self.fc_bias))
        dtype = self.fc[...].dtype if cache is None else cache.layers[0][0].dtype
        x, new_rows, _ = run_layers(
            self.layers, self.config.layers, x, positions, mask, cache, dtype, rows=rows, row_positions=row_positions
        )
        return Output(x, new_rows)

    def logits(self, target: Decoder, hidden: jax.Array) -> jax.Array:
        return target.logits(hidden)


@dataclasses.dataclass(frozen=True)
class Eagle3Config:
    """EAGLE-3 and 3.1.

    Attributes:
      layers: the head's decoder layers; ``vocab_size`` is the target's.
      target_size, target_layers: the target's width and depth.
      taps: layers of the target whose inputs are read; those of the paper are 2, L // 2 and L - 3.
      draft_vocab_size: tokens that the head knows.
      own_embedding: whether the checkpoint brings token embeddings; else the target's serve.
      norm_before_residual: whether the first layer's residual is the normed feature.
      fc_norm: whether each tap is normed before ``fc`` (3.1).
      norm_before_fc: whether all taps together are.
      norm_output: whether what is fed back is the normed hidden state (3.1), rather than the raw one.
      mask_token: P-EAGLE's, which stands in the place of drafted tokens; None for a head that drafts one after another.
    """

    layers: ModelConfig
    target_size: int
    target_layers: int
    taps: tuple[int, ...]
    draft_vocab_size: int
    own_embedding: bool = False
    norm_before_residual: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False
    mask_token: int | None = None
    kind: ClassVar[str] = "eagle3"

    @property
    def vocab_size(self) -> int:
        return self.layers.vocab_size


class FirstLayer(Layer):
    """The first layer of EAGLE-3: it reads embedding and feature side by side, each normed, and adds to the feature."""

    def __init__(self, config: ModelConfig, key: jax.Array, dtype, norm_before_residual: bool):
        super().__init__(config, key, dtype, inputs=2)
        self.hidden_norm = param(jnp.ones(config.hidden_size, dtype), ("embed",))
        self.norm_before_residual = norm_before_residual

    def __call__(self, x, config: ModelConfig, angles, positions, mask, past, length, rows, window, dtype, attention=True, mlp=True):
        """x float32 [B, N, 2E] to [B, N, E]; the rest as in ``Layer``."""
        embedded, feature = jnp.split(x, 2, -1)
        normed = rms_norm(feature, self.hidden_norm[...], config.norm_eps)
        read = jnp.concatenate([rms_norm(embedded, self.attention_norm[...], config.norm_eps), normed], -1)
        added, new_rows = self.attention(read, config, angles, positions, mask, past, length, rows, window, dtype)
        return self.mlp((normed if self.norm_before_residual else feature) + added, config), new_rows


class Eagle3Head(nnx.Module):
    """``fc`` [E, 3 * target's E] fuses the taps; ``head`` [Vd, E] scores the draft vocabulary.

    ``draft_to_target`` int32 [Vd] is, for each token of the draft vocabulary, the target's token minus its own number, as published.
    P-EAGLE's ``mask_hidden`` [1, 1, 3 * target's E] stands in the place of the taps of drafted tokens.
    """

    def __init__(self, config: Eagle3Config, key: jax.Array, dtype=None):
        layers, E, width = config.layers, config.layers.hidden_size, len(config.taps) * config.target_size
        dtype = jnp.dtype(dtype or layers.dtype)
        fc, embed, head, first, *keys = jax.random.split(key, layers.num_layers + 3)
        ones = lambda size: param(jnp.ones(size, dtype), ("embed",))
        self.config = config
        self.fc = matrix(fc, (E, width), ("embed", None), dtype)
        self.fc_norms = nnx.List([ones(config.target_size) for _ in config.taps] if config.fc_norm else [])
        self.input_norm = ones(width) if config.norm_before_fc else None
        self.layers = nnx.List([FirstLayer(layers, first, dtype, config.norm_before_residual)] + [Layer(layers, k, dtype) for k in keys])
        self.norm = ones(E)
        self.head = matrix(head, (config.draft_vocab_size, E), ("vocab", "embed"), dtype)
        self.embed = matrix(embed, (layers.vocab_size, E), ("vocab", "embed"), dtype) if config.own_embedding else None
        self.draft_to_target = nnx.Variable(jnp.zeros(config.draft_vocab_size, jnp.int32), axes=(None,))
        masked = config.mask_token is not None
        self.mask_hidden = param(0.02 * jax.random.normal(fc, (1, 1, width), dtype), (None,) * 3) if masked else None

    modules = property(lambda self: (self,))

    def mask(self, target: Decoder) -> tuple[int, jax.Array] | None:
        """P-EAGLE's token and feature float32 [1, 1, E] for places that are not known yet."""
        if self.mask_hidden is None:
            return None
        return self.config.mask_token, self.fuse(target, tuple(jnp.split(self.mask_hidden[...], len(self.config.taps), -1)))

    def fuse(self, target: Decoder, taps: tuple) -> jax.Array:
        eps = self.config.layers.norm_eps
        if self.config.fc_norm:
            taps = tuple(rms_norm(tap, norm[...], eps) for tap, norm in zip(taps, self.fc_norms))
        joined = jnp.concatenate(taps, -1)
        if self.input_norm is not None:
            joined = rms_norm(joined, self.input_norm[...], eps)
        return linear(joined, self.fc[...])

    def __call__(self, target, tokens, features, positions, mask, cache=None, *, rows=None, row_positions=None) -> Output:
        x = jnp.concatenate([embeddings(self.embed, target, tokens), features], -1)
        dtype = self.fc[...].dtype if cache is None else cache.layers[0][0].dtype
        x, new_rows, _ = run_layers(
            self.layers, self.config.layers, x, positions, mask, cache, dtype, rows=rows, row_positions=row_positions
        )
        return Output(self._normed(x) if self.config.norm_output else x, new_rows)

    def logits(self, target: Decoder, hidden: jax.Array) -> jax.Array:
        scores = self.draft_logits(hidden)
        if self.config.draft_vocab_size == self.config.vocab_size:
            return scores
        known = jnp.arange(self.config.draft_vocab_size) + self.draft_to_target[...]
        return jnp.full((*hidden.shape[:-1], self.config.vocab_size), LACKING, jnp.float32).at[..., known].set(scores)

    def draft_logits(self, hidden: jax.Array) -> jax.Array:
        """Float32 [..., Vd] over the draft vocabulary."""
        return linear(hidden if self.config.norm_output else self._normed(hidden), self.head[...])

    def _normed(self, x):
        return rms_norm(x, self.norm[...], self.config.layers.norm_eps)


def embeddings(own: nnx.Param | None, target: Decoder, tokens: jax.Array) -> jax.Array:
    """Float32 [B, N, E]: the head's own embeddings of tokens, or the target's."""
    return lookup((target.embed if own is None else own)[...], tokens).astype(jnp.float32)
