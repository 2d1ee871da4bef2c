"""Inputs of their own for each layer, made from the tokens (Gemma 3n and 4)."""

import jax
import jax.numpy as jnp
from flax import nnx

from .kinds import LayerConfig
from .layers import ACTIVATIONS, linear, lookup, matrix, normalize, param


class PerLayerInputs(nnx.Module):
    """The inputs of all layers: P numbers for each token and layer.

    ``embed`` [Vp, L * P] is a table of tokens. ``project`` [L * P, E] reads the token's embedding,
    and ``norm`` [P] norms the result.
    """

    def __init__(self, config: LayerConfig, vocab_size: int, key: jax.Array, dtype):
        embed, project = jax.random.split(key)
        L, P, E = config.depth, config.per_layer_size, config.width
        self.config = config
        self.embed = matrix(embed, (vocab_size, L * P), ("table", "width"), dtype)
        self.project = matrix(project, (L * P, E), (None, "embed"), dtype)
        self.norm = param(jnp.ones(P, dtype), (None,))

    def __call__(self, tokens: jax.Array, embedded: jax.Array) -> jax.Array:
        """Float32 [B, N, L, P] of tokens int32 [B, N] with embeddings [B, N, E]."""
        L, P, table = self.config.depth, self.config.per_layer_size, self.embed[...]
        scale = jnp.asarray(P**0.5, table.dtype).astype(jnp.float32)
        own = lookup(table, tokens).astype(jnp.float32) * scale
        projected = linear(embedded, self.project[...]) * self.config.width**-0.5
        shape = (*tokens.shape, L, P)
        projected = normalize(projected.reshape(shape), self.config.norm, self.norm[...])
        return (projected + own.reshape(shape)) * 2**-0.5


class PerLayerInput(nnx.Module):
    """The third sub-layer: the layer's input, gated by the stream, is added to the stream."""

    def __init__(self, config: LayerConfig, keys: jax.Array, dtype):
        P, E = config.per_layer_size, config.width
        self.config = config
        self.gate = matrix(keys[0], (P, E), (None, "embed"), dtype)
        self.project = matrix(keys[1], (E, P), ("embed", None), dtype)
        self.norm = param(jnp.ones(E, dtype), ("embed",))

    def __call__(self, x: jax.Array, layer_input: jax.Array) -> jax.Array:
        """The stream x float32 [B, N, E] with ``layer_input`` [B, N, P], this layer's input."""
        gated = ACTIVATIONS["gelu_tanh"](linear(x, self.gate[...])) * layer_input
        return x + normalize(linear(gated, self.project[...]), self.config.norm, self.norm[...])
