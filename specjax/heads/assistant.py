"""Assistants: small decoders that read the target's own cache (Gemma 4's ``*-it-assistant``).

The layers of an assistant have queries alone. They attend to keys and values that the target
computed: layers with an attention window to those of the target's last layer with a window, the
others to those of its last layer without one. So an assistant reads no prompt and has no cache.

All drafts of a round are at the position of the root, because no keys of drafts exist. An assistant
reads the embedding of the newest token and a feature. The first feature of a round is the target's
last hidden state after the final norm, of the token before the root. Further features come from
the assistant.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from ..core.cache import KVCache
from ..core.stored_rows import full_dtype
from ..errors import ConfigError, RequestError
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.draft_vocabulary import LACKING
from ..models.layer import Layer, Nodes
from ..models.layers import linear, lookup, matrix, normalize, param
from ..models.mixers import AttentionConfig
from .base import HeadConfig, HeadModule, Kind


@dataclasses.dataclass(frozen=True)
class AssistantConfig(HeadConfig):
    """The configuration of an assistant.

    Attributes:
      layers: its decoder layers. Their attention has ``reads``, so it has no keys and values of its
        own; the number there is not read.
      target_size, target_layers: the target's width and depth.
      clusters: the number of clusters of tokens, of equal size; 0 for logits of all tokens.
      read_clusters: the number of clusters whose tokens get logits.
    """

    layers: ModelConfig
    target_size: int
    target_layers: int
    clusters: int = 0
    read_clusters: int = 32
    kind: ClassVar[str] = "assistant"
    reads_cache: ClassVar[bool] = True
    part_not_grown: ClassVar[str] = "an assistant's reading of the target's cache"

    def __post_init__(self):
        if len(self.mixers) < self.layers.num_layers:
            raise ConfigError("a layer of the assistant has keys of its own; every layer must read the target's")
        if self.clusters and (self.vocab_size % self.clusters or self.read_clusters > self.clusters):
            raise ConfigError(
                f"{self.clusters} clusters do not divide {self.vocab_size} tokens, or are fewer than the "
                f"{self.read_clusters} that are read; use a divisor of at least that number"
            )

    @property
    def vocab_size(self) -> int:
        return self.layers.vocab_size

    @property
    def mixers(self) -> list[AttentionConfig]:
        """The attention of each layer."""
        attention = (layer.mixer for layer in self.layers.layers if isinstance(layer.mixer, AttentionConfig))
        return [mixer for mixer in attention if mixer.reads is not None]

    @property
    def taps(self) -> tuple[int, ...]:
        return (self.target_layers,)


def sources(config: AssistantConfig, target: ModelConfig) -> list[tuple[int, AttentionConfig] | None]:
    """For each layer of an assistant the target's layer that it reads, and that layer's attention.

    An assistant's layer reads keys and values of the target's last layer that has keys and values
    of its own and, like the assistant's layer, an attention window or none. The entry is None where
    there is no such layer.
    """
    last = {}
    for i, layer in enumerate(target.layers):
        if isinstance(layer.mixer, AttentionConfig) and layer.mixer.reads is None:
            last[layer.mixer.scores.window is None] = i, layer.mixer
    return [last.get(mixer.scores.window is None) for mixer in config.mixers]


class Assistant(HeadModule):
    """An assistant.

    ``enter`` [W, 2E] maps an embedding and a feature to the assistant's width W, and ``leave``
    [E, W] a hidden state to the next feature. ``head`` is [V, W]. With clusters, ``centroids``
    [C, W] scores the clusters, and ``order`` int32 [V] lists the tokens cluster by cluster.
    """

    config: AssistantConfig

    def __init__(self, config: AssistantConfig, key: jax.Array, dtype=None):
        layers, W, E, V = config.layers, config.layers.hidden_size, config.target_size, config.vocab_size
        dtype = jnp.dtype(dtype or layers.dtype)
        enter, leave, head, centroids, *keys = jax.random.split(key, layers.num_layers + 4)
        self.config = config
        self.enter = matrix(enter, (W, 2 * E), ("embed", None), dtype)
        self.leave = matrix(leave, (E, W), (None, "embed"), dtype)
        self.layers = nnx.List([Layer(layer, k, dtype) for layer, k in zip(layers.layers, keys)])
        self.norm = param(jnp.full(W, 1 - layers.norm_offset, dtype), ("embed",))
        self.head = matrix(head, (V, W), ("vocab", "embed"), dtype)
        C = config.clusters
        self.centroids = matrix(centroids, (C, W), (None, "embed"), dtype) if C else None
        self.order = nnx.Variable(jnp.arange(V, dtype=jnp.int32), axes=(None,)) if C else None

    def __call__(self, target: Decoder, tokens: jax.Array, features: jax.Array, cache: KVCache) -> jax.Array:
        """The hidden states float32 [B, 1, W] after the final norm.

        Args:
          tokens: int32 [B, 1], the newest tokens.
          features: float32 [B, 1, E], see above.
          cache: the target's cache. Its length is the position of the root.
        """
        layers, dtype = self.config.layers, full_dtype(cache.dtype)
        x = linear(jnp.concatenate([target.token_embeddings(tokens), features], -1), self.enter[...])
        nodes = Nodes(cache.length[:, None], jnp.zeros((1, 1), bool), dtype, cache.held)
        for layer, source in zip(self.layers, sources(self.config, target.config)):
            assert source is not None  # the drafter has checked it
            past = cache.layers[source[0]]
            unseen = jnp.zeros((*past[0].shape[:2], 1, past[0].shape[3]), dtype)
            x, _ = layer(x, nodes, past, (unseen, unseen))
        return normalize(x, layers.norms, self.norm[...])

    def next_features(self, hidden: jax.Array) -> jax.Array:
        """The features float32 [B, 1, E] that follow hidden states [B, 1, W]."""
        return linear(hidden, self.leave[...])

    def logits(self, target: Decoder, hidden: jax.Array) -> jax.Array:
        """Logits float32 [..., V] of hidden states [..., W].

        Tokens of clusters that are not read have ``LACKING``.
        """
        if self.centroids is None or self.order is None:
            return linear(hidden, self.head[...])
        C = self.config.clusters
        _, best = lax.top_k(linear(hidden, self.centroids[...]), self.config.read_clusters)
        tokens = self.order[...].reshape(C, -1)[best].reshape(*best.shape[:-1], -1)
        rows = lookup(self.head[...], tokens).astype(jnp.float32)
        scores = jnp.einsum("...tw,...w->...t", rows, hidden)
        lacking = jnp.full((*hidden.shape[:-1], self.config.vocab_size), LACKING)
        return jnp.put_along_axis(lacking, tokens, scores, -1, inplace=False)


def usual(target: ModelConfig, layer: ModelConfig) -> AssistantConfig:
    """Four layers of a sixth of the target's width.

    Three read a layer with a window, if the target has any.

    Raises RequestError for a target without keys of heads.
    """
    last = {}
    for one in target.layers:
        if isinstance(one.mixer, AttentionConfig) and one.mixer.reads is None:
            last[one.mixer.scores.window is None] = dataclasses.replace(
                one.mixer, reads=0, sinks=False, output_gate=False
            )
    if not last:
        raise RequestError("the target has no keys of heads, which an assistant reads; plan another method")
    whole = last.get(True, last.get(False))
    width = max(target.hidden_size // 6, 1)
    sizes = dict(num_layers=4, hidden_size=width, intermediate_size=8 * width, windows=())
    layers = layer.replace(mixers=(last.get(False, whole),) * 3 + (whole,), **sizes)
    return AssistantConfig(layers, target.hidden_size, target.num_layers)


KIND = Kind(AssistantConfig, Assistant, usual)
