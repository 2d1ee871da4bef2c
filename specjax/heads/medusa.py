"""Heads that look only at the target's last hidden state: Medusa (Cai et al. 2024, 2401.10774) and Hydra (Ankner et al. 2024, 2402.05109).

Head k says the token k + 1 places after the one that the target itself says next. A Medusa head knows nothing of the tokens between; a
Hydra head reads their embeddings.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from ..models.decoder import Decoder
from ..models.layers import linear, matrix, param, rms_norm, value_of
from .eagle import embeddings


@dataclasses.dataclass(frozen=True)
class MedusaConfig:
    """Medusa and Hydra heads.

    Attributes:
      target_size, target_layers, vocab_size: the target's.
      num_heads: how many tokens are drafted.
      num_layers: blocks of each head. In the published code these are one block applied again and again.
      hydra: whether head k also reads the embeddings of the k + 1 tokens since the hidden state.
      head_bias: whether the output matrices have one; Hydra's do.
      own_embedding: whether the checkpoint brings token embeddings (Hydra); else the target's serve.
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
    dtype: str = "float32"

    @property
    def kind(self) -> str:
        return "hydra" if self.hydra else "medusa"

    @property
    def taps(self) -> tuple[int, ...]:
        return (self.target_layers,)


class MedusaHead(nnx.Module):
    """``x + silu(linear(x))`` and an output matrix. A Hydra head's block maps its wider input down, in a residual path of its own."""

    def __init__(self, config: MedusaConfig, k: int, key: jax.Array, dtype):
        E, wide = config.target_size, config.target_size * (k + 2)
        block, rest, head = jax.random.split(key, 3)
        shape = (E, wide if config.hydra else E)
        self.linear = param(jnp.zeros(shape, dtype), ("embed", None)) if not config.hydra else matrix(block, shape, ("embed", None), dtype)
        self.linear_bias = param(jnp.zeros(E, dtype), ("embed",))
        self.residual = matrix(rest, (E, wide), ("embed", None), dtype) if config.hydra else None
        self.residual_bias = param(jnp.zeros(E, dtype), ("embed",)) if config.hydra else None
        self.head = matrix(head, (config.vocab_size, E), ("vocab", "embed"), dtype)
        self.head_bias = param(jnp.zeros(config.vocab_size, dtype), ("vocab",)) if config.head_bias else None

    def __call__(self, x: jax.Array, num_layers: int) -> jax.Array:
        """Float32 [..., V] of x float32 [..., E], or what Hydra joined."""
        for _ in range(num_layers):
            kept = x if self.residual is None else linear(x, self.residual[...], value_of(self.residual_bias))
            x = kept + jax.nn.silu(linear(x, self.linear[...], value_of(self.linear_bias)))
        return linear(x, self.head[...], value_of(self.head_bias))


class MedusaHeads(nnx.Module):
    """All heads of a target."""

    def __init__(self, config: MedusaConfig, key: jax.Array, dtype=None):
        dtype = jnp.dtype(dtype or config.dtype)
        embed, *keys = jax.random.split(key, config.num_heads + 1)
        self.config = config
        self.heads = nnx.List([MedusaHead(config, k, key, dtype) for k, key in enumerate(keys)])
        shape = (config.vocab_size, config.target_size)
        self.embed = matrix(embed, shape, ("vocab", "embed"), dtype) if config.own_embedding else None

    def fuse(self, target: Decoder, taps: tuple) -> jax.Array:
        """The last hidden states float32 [B, N, E], after the final norm."""
        return rms_norm(taps[0], target.norm[...], target.config.norm_eps)

    def logits(self, target: Decoder, k: int, hidden: jax.Array, tokens: jax.Array | None = None) -> jax.Array:
        """Float32 [..., V], what head k says.

        Args:
          hidden: float32 [..., E], of the last token that the target has read.
          tokens: int32 [..., k + 1], for Hydra: the root and the k tokens drafted after it.
        """
        if self.config.hydra:
            read = embeddings(self.embed, target, tokens)
            hidden = jnp.concatenate([hidden, read.reshape(*hidden.shape[:-1], -1)], -1)
        return self.heads[k](hidden, self.config.num_layers)
