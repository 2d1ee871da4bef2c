"""The EAGLE-3 head (Li et al. 2025, 2503.01840), its version 3.1, and P-EAGLE (2602.01469).

An EAGLE-3 head reads three layers of the target. It feeds back its own hidden states, which need
not resemble features. Its output matrix covers a draft vocabulary. A P-EAGLE head reads masks in
place of the drafted tokens and their features, so one pass predicts all places.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from ..errors import ConfigError
from ..models.base import Output
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.draft_vocabulary import over_target_vocabulary
from ..models.kinds import LayerConfig
from ..models.layer import Layer
from ..models.layers import linear, matrix, param, rms_norm
from .base import HeadConfig, HeadModule, Kind, embeddings, run_own_layers


@dataclasses.dataclass(frozen=True)
class Eagle3Config(HeadConfig):
    """The configuration of an EAGLE-3 head.

    Attributes:
      layers: the head's decoder layers; ``vocab_size`` is the target's.
      target_size, target_layers: the target's width and depth.
      taps: the layers of the target whose inputs the head reads; in the paper 2, L // 2 and L - 3.
      draft_vocab_size: the number of tokens that the head knows.
      own_embedding: whether the head has token embeddings of its own; otherwise it uses the
        target's.
      norm_before_residual: whether the first layer adds to the normed feature, rather than to the
        raw one.
      fc_norm: whether each tap is normed before ``fc`` (3.1).
      norm_before_fc: whether all taps are normed together before ``fc``.
      norm_output: whether the head feeds back its normed hidden state (3.1), rather than the raw
        one.
      mask_token: P-EAGLE's mask; None for a head that drafts one token after another.
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

    def __post_init__(self):
        if self.layers.hidden_size != self.target_size and not self.own_embedding:
            raise ConfigError(
                f"the EAGLE-3 head is {self.layers.hidden_size} wide and brings no embeddings of its own, "
                f"and its target is {self.target_size} wide; use a head with embed_tokens.weight"
            )
        if not 0 < self.draft_vocab_size <= self.vocab_size:
            raise ConfigError(
                f"draft_vocab_size is {self.draft_vocab_size} and the vocabulary has {self.vocab_size} tokens; "
                f"it must be from 1 to {self.vocab_size}"
            )

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        norms = {"hidden_norm": ("norm",), "fc_norms": ("tap_norm",), "input_norm": ("tap_norm",)}
        return norms | {"fc": ("write", "taps"), "mask_hidden": ("same", "unknown_taps")}

    @property
    def vocab_size(self) -> int:
        return self.layers.vocab_size


class FirstLayer(Layer):
    """The first layer of EAGLE-3.

    Attention reads the normed embedding and the normed feature side by side. Its output is added to
    the feature.
    """

    def __init__(self, config: LayerConfig, key: jax.Array, dtype, norm_before_residual: bool):
        super().__init__(config, key, dtype, inputs=2)
        self.hidden_norm = param(jnp.ones(config.width, dtype), ("embed",))
        self.norm_before_residual = norm_before_residual

    def __call__(self, x, nodes, past=None, rows=None, number=0, *, mixer=True, mlp=True):
        """As ``Layer``, but from x float32 [B, N, 2E] to [B, N, E]. No sub-layer is skipped."""
        embedded, feature = jnp.split(x, 2, -1)
        normed = rms_norm(feature, self.hidden_norm[...], self.config.norm.eps)
        read = jnp.concatenate([self.before("mixer", embedded), normed], -1)
        added, new_rows = self.mixer(read, nodes, past, rows)
        x = (normed if self.norm_before_residual else feature) + added
        return self.add("mlp", x, self.mlp(self.before("mlp", x))), new_rows


class Eagle3Head(HeadModule):
    """An EAGLE-3 head.

    ``fc`` [E, len(taps) * target's E] fuses the taps, and ``head`` [Vd, E] scores the draft
    vocabulary. ``draft_to_target`` int32 [Vd] holds offsets, as published: token i of the draft
    vocabulary is the target's token ``i + draft_to_target[i]``. P-EAGLE's ``mask_hidden``
    [1, 1, len(taps) * target's E] replaces the taps of drafted tokens.
    """

    config: Eagle3Config

    def __init__(self, config: Eagle3Config, key: jax.Array, dtype=None):
        layers, E, width = config.layers, config.layers.hidden_size, len(config.taps) * config.target_size
        dtype = jnp.dtype(dtype or layers.dtype)
        fc, embed, head, first, *keys = jax.random.split(key, layers.num_layers + 3)
        ones = lambda size: param(jnp.ones(size, dtype), ("embed",))
        self.config = config
        self.fc = matrix(fc, (E, width), ("embed", None), dtype)
        self.fc_norms = nnx.List([ones(config.target_size) for _ in config.taps] if config.fc_norm else [])
        self.input_norm = ones(width) if config.norm_before_fc else None
        first_layer = FirstLayer(layers.layer(0), first, dtype, config.norm_before_residual)
        self.layers = nnx.List([first_layer, *(Layer(layers.layer(i), k, dtype) for i, k in enumerate(keys, 1))])
        self.norm = ones(E)
        self.head = matrix(head, (config.draft_vocab_size, E), ("vocab", "embed"), dtype)
        self.embed = matrix(embed, (layers.vocab_size, E), ("vocab", "embed"), dtype) if config.own_embedding else None
        self.draft_to_target = nnx.Variable(jnp.zeros(config.draft_vocab_size, jnp.int32), axes=(None,))
        masked = config.mask_token is not None
        self.mask_hidden = param(0.02 * jax.random.normal(fc, (1, 1, width), dtype), (None,) * 3) if masked else None

    def mask(self, target: Decoder) -> tuple[int, jax.Array] | None:
        if self.mask_hidden is None or self.config.mask_token is None:
            return None
        taps = tuple(jnp.split(self.mask_hidden[...], len(self.config.taps), -1))
        return self.config.mask_token, self.fuse(target, taps)

    def fuse(self, target: Decoder, taps: tuple) -> jax.Array:
        """The features float32 [B, N, E] of tokens with these taps [B, N, target's E]."""
        eps = self.config.layers.norm_eps
        if self.config.fc_norm:
            taps = tuple(rms_norm(tap, norm[...], eps) for tap, norm in zip(taps, self.fc_norms))
        joined = jnp.concatenate(taps, -1)
        if self.input_norm is not None:
            joined = rms_norm(joined, self.input_norm[...], eps)
        return linear(joined, self.fc[...])

    def __call__(
        self, target, tokens, features, positions, mask, cache=None, *, rows=None, row_positions=None
    ) -> Output:
        x = jnp.concatenate([embeddings(self.embed, target, tokens), features], -1)
        x, new_rows = run_own_layers(
            self.layers, x, positions, mask, cache, self.fc[...].dtype, rows=rows, row_positions=row_positions
        )
        return Output(self._apply_norm(x) if self.config.norm_output else x, new_rows)

    def logits(self, target: Decoder, hidden: jax.Array) -> jax.Array:
        scores = self.draft_logits(hidden)
        if self.config.draft_vocab_size == self.config.vocab_size:
            return scores
        return over_target_vocabulary(scores, self.draft_to_target[...], self.config.vocab_size)

    def draft_logits(self, hidden: jax.Array) -> jax.Array:
        """Logits float32 [..., Vd] over the draft vocabulary, of hidden states [..., E]."""
        return linear(hidden if self.config.norm_output else self._apply_norm(hidden), self.head[...])

    def _apply_norm(self, x):
        return rms_norm(x, self.norm[...], self.config.layers.norm_eps)


def usual(target: ModelConfig, layer: ModelConfig) -> Eagle3Config:
    """The taps of the paper, and the 32,000 likeliest tokens."""
    L = target.num_layers
    taps = min(2, L), L // 2, max(L - 3, 0)
    return Eagle3Config(layer, target.hidden_size, L, taps, draft_vocab_size=min(32000, target.vocab_size))


KIND = Kind(Eagle3Config, Eagle3Head, usual, tuned_trees=True, token_by_token=True)
