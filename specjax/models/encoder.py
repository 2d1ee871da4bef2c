"""The encoder of an encoder-decoder: layers in which tokens read one another in both directions."""

import jax
import jax.numpy as jnp
from flax import nnx

from .attention import Seen
from .config import ModelConfig
from .layer import Layer, Nodes
from .layers import lookup, matrix, normalize, param, value_of
from .relative_positions import Relative, RelativeBias


class Encoder(nnx.Module):
    """A stack of bidirectional layers. The table of tokens is the decoder's.

    Some families have ``positions`` [P, E], ``embed_norm`` on the embeddings, ``relative``, or a
    ``norm`` behind the last layer.
    """

    def __init__(self, config: ModelConfig, key: jax.Array, dtype):
        places, distances, *keys = jax.random.split(key, config.num_layers + 2)
        E = config.hidden_size
        offset = config.position_offset
        self.config = config
        self.layers = nnx.List([Layer(layer, k, dtype) for layer, k in zip(config.layers, keys)])
        rows = config.max_position_embeddings + (offset or 0)
        self.positions = None if offset is None else matrix(places, (rows, E), ("table", "width"), dtype)
        self.embed_norm = param(jnp.ones(E, dtype), ("embed",)) if config.embed_norm else None
        self.embed_norm_bias = param(jnp.zeros(E, dtype), ("embed",)) if config.embed_norm else None
        relative = config.relative
        learned = (
            RelativeBias(relative, True, config.num_heads, distances, dtype) if isinstance(relative, Relative) else None
        )
        self.relative = learned
        self.norm = param(jnp.ones(E, dtype), ("embed",)) if config.final_norm else None

    def __call__(self, embedded: jax.Array, lengths: jax.Array, dtype) -> jax.Array:
        """The outputs float32 [B, S, E]. Those from ``lengths`` on are void, and finite.

        Args:
          embedded: float32 [B, S, E], the embeddings of the tokens, without positions.
          lengths: int32 [B], the number of tokens in each row.
          dtype: the type of keys and values.
        """
        B, S, _ = embedded.shape
        x = embedded
        positions = jnp.broadcast_to(jnp.arange(S), (B, S))
        if self.positions is not None:
            x = x + lookup(self.positions[...], positions + (self.config.position_offset or 0)).astype(jnp.float32)
        if self.embed_norm is not None:
            x = normalize(x, self.config.norms, self.embed_norm[...], value_of(self.embed_norm_bias))
        bias = None if self.relative is None else self.relative(positions, positions)
        nodes = Nodes(positions, Seen(lengths[:, None]), dtype, jnp.zeros_like(lengths), bias=bias)
        for layer in self.layers:
            x, _ = layer(x, nodes)
        return x if self.norm is None else normalize(x, self.config.norms, self.norm[...])
