"""Heads that look only at the target's last hidden state: Medusa (Cai et al. 2024, 2401.10774) and Hydra (Ankner et al. 2024, 2402.05109).

Head k says the token k + 1 places after the one that the target itself says next. A Medusa head knows nothing of the tokens between; a
Hydra head reads their embeddings. In Hydra++ the hidden states first pass a decoder layer with a cache of its own, the prefix layer.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from ..models.config import ModelConfig
from ..models.decoder import Decoder, Layer, Output, run_layers
from ..models.layers import linear, matrix, param, rms_norm, value_of
from .eagle import embeddings


@dataclasses.dataclass(frozen=True)
class MedusaConfig:
    """Medusa and Hydra heads.

    Attributes:
      target_size, target_layers, vocab_size: the target's.
      num_heads: how many tokens are drafted.
      num_layers: blocks of each head. In published checkpoints those after the first may all hold the same weights.
      hydra: whether head k also reads the embeddings of the k + 1 tokens since the hidden state.
      head_bias: whether the output matrices have one; Hydra's do.
      own_embedding: whether the checkpoint brings token embeddings (Hydra); else the target's serve.
      layers: the prefix layer, or several, as wide as the target; None for none.
      dtype: of the weights.
    """

    target_size: int
    target_layers: int
    vocab_size: int
    num_heads: int = 5
    num_layers: int = 1
    hydra: bool = False
    head_bias: bool = False
    own_embedding: bool = False
    layers: ModelConfig | None = None
    dtype: str = "float32"

    @property
    def kind(self) -> str:
        return "hydra" if self.hydra else "medusa"

    @property
    def taps(self) -> tuple[int, ...]:
        return (self.target_layers,)


class ResBlock(nnx.Module):
    """``x + silu(linear(x))``. Where x, [..., inputs * E], is wider than the output, [..., E], the residual path is a linear map as well."""

    def __init__(self, size: int, inputs: int, key: jax.Array, dtype):
        first, rest = jax.random.split(key)
        shape, axes = (size, inputs * size), ("embed", None)
        self.linear = matrix(first, shape, axes, dtype, 0.0 if inputs == 1 else 0.02)
        self.linear_bias = param(jnp.zeros(size, dtype), ("embed",))
        self.residual = None if inputs == 1 else matrix(rest, shape, axes, dtype)
        self.residual_bias = None if inputs == 1 else param(jnp.zeros(size, dtype), ("embed",))

    def __call__(self, x: jax.Array) -> jax.Array:
        kept = x if self.residual is None else linear(x, self.residual[...], value_of(self.residual_bias))
        return kept + jax.nn.silu(linear(x, self.linear[...], value_of(self.linear_bias)))


class MedusaHead(nnx.Module):
    """Blocks and an output matrix. The first block of Hydra's head k reads k + 2 vectors: the hidden state and k + 1 embeddings."""

    def __init__(self, config: MedusaConfig, k: int, key: jax.Array, dtype):
        head, *keys = jax.random.split(key, config.num_layers + 1)
        E, V = config.target_size, config.vocab_size
        self.blocks = nnx.List([ResBlock(E, k + 2 if config.hydra and j == 0 else 1, key, dtype) for j, key in enumerate(keys)])
        self.head = matrix(head, (V, E), ("vocab", "embed"), dtype)
        self.head_bias = param(jnp.zeros(V, dtype), ("vocab",)) if config.head_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Float32 [..., V] of x float32 [..., E], or of what Hydra joined."""
        for block in self.blocks:
            x = block(x)
        return linear(x, self.head[...], value_of(self.head_bias))


class MedusaHeads(nnx.Module):
    """All heads of a target. With a prefix layer this is a ``FeatureHead``, which knows hidden states and no tokens; ``norm`` follows it."""

    def __init__(self, config: MedusaConfig, key: jax.Array, dtype=None):
        dtype, shape = jnp.dtype(dtype or config.dtype), (config.vocab_size, config.target_size)
        embed, prefix, *keys = jax.random.split(key, config.num_heads + 2)
        self.config = config
        self.heads = nnx.List([MedusaHead(config, k, key, dtype) for k, key in enumerate(keys)])
        self.embed = matrix(embed, shape, ("vocab", "embed"), dtype) if config.own_embedding else None
        layers = jax.random.split(prefix, config.layers.num_layers) if config.layers else ()
        self.layers = nnx.List([Layer(config.layers, key, dtype) for key in layers])
        self.norm = param(jnp.ones(config.target_size, dtype), ("embed",)) if config.layers else None

    modules = property(lambda self: (self,))

    def fuse(self, target: Decoder, taps: tuple) -> jax.Array:
        """The last hidden states float32 [B, N, E], after the final norm."""
        return rms_norm(taps[0], target.norm[...], target.config.norm_eps)

    def __call__(self, target, tokens, features, positions, mask, cache=None, *, rows=None, row_positions=None) -> Output:
        """What the heads read: without a prefix layer the features as they are."""
        config = self.config.layers
        if config is None:
            return Output(features, ())
        dtype = self.norm[...].dtype if cache is None else cache.layers[0][0].dtype
        x, new_rows, _ = run_layers(self.layers, config, features, positions, mask, cache, dtype, rows=rows, row_positions=row_positions)
        return Output(rms_norm(x, self.norm[...], config.norm_eps), new_rows)

    def logits(self, target: Decoder, k: int, hidden: jax.Array, tokens: jax.Array | None = None) -> jax.Array:
        """Float32 [..., V], what head k says.

        Args:
          hidden: float32 [..., E], what a call made of the token before the root: the newest that the target has read.
          tokens: int32 [..., k + 1], for Hydra: the root and the k tokens drafted after it. Their leading axes may be longer than those
            of ``hidden``.
        """
        if self.config.hydra:
            read = embeddings(self.embed, target, tokens).reshape(*tokens.shape[:-1], -1)
            hidden = jnp.concatenate([jnp.broadcast_to(hidden, (*tokens.shape[:-1], hidden.shape[-1])), read], -1)
        return self.heads[k](hidden)
