"""Multi-token prediction: modules trained with the target (DeepSeek-V3, 2412.19437, section 2.2).

The paper counts D modules from 1, and h^0 is the target's feature. In row i module k predicts token
t_(i + k + 1):

    h'^k_i = M_k [RMSNorm(h^(k - 1)_i); RMSNorm(E(t_(i + k)))]
    h^k = TRM_k(h'^k)
    p^k_i = OutHead(h^k_i)

Each module has keys and values of its own, in which row i is at position i. Tokens further on come
from the last module, which then reads its own hidden states. Most checkpoints have one module. The
code counts modules from 0.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from ..models.base import Output
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.layer import Layer
from ..models.layers import linear, matrix, normalize, param
from .base import HeadModule, Kind, LastLayerConfig, RowModule, embeddings, run_own_layers


@dataclasses.dataclass(frozen=True)
class MtpConfig(LastLayerConfig):
    """The configuration of modules for multi-token prediction.

    Attributes:
      layers: the decoder layers of each module, as wide as the target.
      target_layers: the target's number of layers.
      normed_features: whether module 0 reads the target's hidden state after the final norm, rather
        than before it.
      norm_output: whether a module passes on its hidden state after its norm (GLM), rather than
        before it (DeepSeek).
      hidden_first: whether the hidden state comes first in the joined input (the paper's formula,
        MiMo), rather than the embedding.
      own_embedding, own_head: whether each module has an embedding and an output matrix of its own;
        otherwise it uses the target's.
      modules: the number of modules.
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

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        return {"hidden_norm": ("norm",), "embedding_norm": ("norm",), "join": ("write", "read")}

    @property
    def passed_on(self) -> dict[str, int]:
        return {"join": 1 if self.hidden_first else 0}


class MtpHead(HeadModule):
    """The modules, one after another."""

    config: MtpConfig
    modules: Sequence["MtpModule"] = ()  # every head holds its own list

    def __init__(self, config: MtpConfig, key: jax.Array, dtype=None):
        self.config = config
        keys = jax.random.split(key, config.modules)
        self.modules = nnx.List([MtpModule(config, i, k, dtype) for i, k in enumerate(keys)])

    def fuse(self, target: Decoder, taps: tuple) -> jax.Array:
        return super().fuse(target, taps) if self.config.normed_features else taps[0]


class MtpModule(RowModule):
    """Module number ``place``, counted from 0.

    ``join`` [E, 2E] joins the normed embedding and the normed hidden state. Decoder layers and a
    norm follow.
    """

    def __init__(self, config: MtpConfig, place: int, key: jax.Array, dtype=None):
        layers, E = config.layers, config.layers.hidden_size
        dtype = jnp.dtype(dtype or layers.dtype)
        join, embed, head, *keys = jax.random.split(key, layers.num_layers + 3)
        self.config, self.place = config, place
        self.embedding_norm, self.hidden_norm, self.norm = (
            param(jnp.full(E, 1 - layers.norm_offset, dtype), ("embed",)) for _ in range(3)
        )
        self.join = matrix(join, (E, 2 * E), ("embed", None), dtype)
        self.layers = nnx.List([Layer(layer, k, dtype) for layer, k in zip(layers.layers, keys)])
        shape, axes = (layers.vocab_size, E), ("vocab", "embed")
        self.embed = matrix(embed, shape, axes, dtype) if config.own_embedding else None
        self.head = matrix(head, shape, axes, dtype) if config.own_head else None

    def __call__(
        self, target, tokens, features, positions, mask, cache=None, *, rows=None, row_positions=None
    ) -> Output:
        config, norms = self.config.layers, self.config.layers.norms
        embedded = normalize(embeddings(self.embed, target, tokens), norms, self.embedding_norm[...])
        hidden = normalize(features, norms, self.hidden_norm[...])
        parts = [hidden, embedded] if self.config.hidden_first else [embedded, hidden]
        x = linear(jnp.concatenate(parts, -1), self.join[...])
        if cache is not None:
            first = self.place * config.num_layers
            cache = cache.replace(layers=cache.layers[first : first + config.num_layers])
        x, new_rows = run_own_layers(
            self.layers, x, positions, mask, cache, self.join[...].dtype, rows=rows, row_positions=row_positions
        )
        return Output(normalize(x, norms, self.norm[...]) if self.config.norm_output else x, new_rows)

    def logits(self, target: Decoder, hidden: jax.Array) -> jax.Array:
        normed = hidden if self.config.norm_output else normalize(hidden, self.config.layers.norms, self.norm[...])
        return target.logits(normed) if self.head is None else linear(normed, self.head[...])


def usual(target: ModelConfig, layer: ModelConfig) -> MtpConfig:
    return MtpConfig(layer, target_layers=target.num_layers)


KIND = Kind(
    MtpConfig,
    MtpHead,
    usual,
    token_by_token=True,
    prefixes=(r"mtp\.", r"model\.mtp_layers\.", r"model\.layers\.\d+\.(?=eh_proj\.)"),
)
