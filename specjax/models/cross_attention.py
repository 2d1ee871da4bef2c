"""Cross-attention: the nodes of a decoder attend to the outputs of an encoder."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from ..core.stored_rows import store
from ..kernels.gpu.attention import Scores
from .attention import attend
from .layers import linear, matrix, param, value_of


@dataclasses.dataclass(frozen=True)
class CrossConfig:
    """Attention of H heads of size D to an encoder's outputs.

    Attributes:
      num_heads, head_dim: H and D.
      scale: see ``kernels.gpu.attention.Scores``.
      biased: whether the projections have biases.
    """

    num_heads: int
    head_dim: int
    scale: float | None = None
    biased: bool = False

    def count_weights(self, width: int) -> int:
        """The number of weights in the matrices, for a stream of ``width``."""
        return 4 * width * self.num_heads * self.head_dim


class CrossAttention(nnx.Module):
    """The cross-attention of a layer.

    ``query``, ``key`` and ``value`` are [H * D, E], and ``out`` is [E, H * D]. The keys and values
    of the encoder's outputs are computed once and lie in ``KVCache.source``.
    """

    def __init__(self, config: CrossConfig, width: int, keys: jax.Array, dtype):
        rows = config.num_heads * config.head_dim
        self.config = config
        self.query, self.key, self.value = (matrix(key, (rows, width), ("heads", "embed"), dtype) for key in keys[:3])
        self.out = matrix(keys[3], (width, rows), ("embed", "heads"), dtype)

        def bias(size, axis):
            return param(jnp.zeros(size, dtype), (axis,)) if config.biased else None

        self.query_bias, self.key_bias, self.value_bias = (bias(rows, "heads") for _ in range(3))
        self.out_bias = bias(width, "embed")

    @jax.named_scope("cross_attention")
    def __call__(self, normed: jax.Array, source: tuple, length: jax.Array) -> jax.Array:
        """The output float32 [B, N, E] for the normed stream [B, N, E].

        Args:
          source: the result of ``keys_values``.
          length: int32 [B], the number of the encoder's outputs.
        """
        queries = self._heads(normed, self.query, self.query_bias)[:, :, :, None]
        scores = Scores(scale=self.config.scale)
        positions = jnp.zeros(normed.shape[:2], jnp.int32)
        attended = attend(queries, source, length, None, None, positions, scores)
        return linear(attended, self.out[...], value_of(self.out_bias))

    def keys_values(self, outputs: jax.Array, dtype) -> tuple:
        """Keys and values [B, H, S, D] of an encoder's outputs float32 [B, S, E]."""
        keys = self._heads(outputs, self.key, self.key_bias)
        values = self._heads(outputs, self.value, self.value_bias)
        return store(keys.transpose(0, 2, 1, 3), dtype), store(values.transpose(0, 2, 1, 3), dtype)

    def _heads(self, x: jax.Array, weight: nnx.Param, bias: nnx.Param | None) -> jax.Array:
        """The projection of x [B, N, E] by heads, float32 [B, N, H, D]."""
        return linear(x, weight[...], value_of(bias)).reshape(*x.shape[:2], self.config.num_heads, -1)
