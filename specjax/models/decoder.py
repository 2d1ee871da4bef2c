"""The decoder-only transformer: one forward for training, prefill, plain decoding and trees.

Modules hold parameters and the names of their axes, nothing else. A call reads the cache and never writes it; it returns the
key/value rows it computed, and ``cache.commit`` writes those that were accepted.
"""

import jax
import jax.numpy as jnp
from flax import nnx, struct

from ..cache import KVCache
from ..config import ModelConfig
from .attention import attend
from .layers import linear, lookup, rms_norm, rotary, rotate


@struct.dataclass
class Output:
    """What a forward computed for N nodes.

    Attributes:
      hidden: float32 [B, N, E], after the final norm; ``Decoder.logits`` maps it to the vocabulary.
      rows: for each layer keys and values [B, K, M, D]: the uncommitted rows passed in, then those of the nodes.
      taps: float32 [B, N, E] for each layer asked for: the residual stream entering that layer.
      logits: float32 [B, N, V] after each node, where they were computed (``decode.forward``).
    """

    hidden: jax.Array
    rows: tuple
    taps: tuple = ()
    logits: jax.Array | None = None


class Layer(nnx.Module):
    """Attention and gated MLP. ``qkv`` stacks, for each key head, its query heads, the key and the value: [K * (G + 2) * D, E],
    so that heads stay together when it is split over devices. ``gate_up`` stacks the gate on the up projection: [2 * F, E]."""

    def __init__(self, config: ModelConfig, key: jax.Array, dtype):
        E, F, H, K, D = config.hidden_size, config.intermediate_size, config.num_heads, config.num_kv_heads, config.head_dim
        shapes = {"qkv": ((H + 2 * K) * D, E), "out": (E, H * D), "gate_up": (2 * F, E), "down": (E, F)}
        axes = {"qkv": ("heads", "embed"), "out": ("embed", "heads"), "gate_up": ("mlp", "embed"), "down": ("embed", "mlp")}
        biased = {"qkv": config.qkv_bias, "out": config.out_bias, "gate_up": config.mlp_bias, "down": config.mlp_bias}
        for (name, shape), k in zip(shapes.items(), jax.random.split(key, 4)):
            scale = 0.02 if name in ("qkv", "gate_up") else 0.02 / (2 * config.num_layers) ** 0.5
            setattr(self, name, _param(jax.random.normal(k, shape, jnp.float32).astype(dtype) * scale, axes[name]))
            setattr(self, f"{name}_bias", _param(jnp.zeros(shape[0], dtype), axes[name][:1]) if biased[name] else None)
        self.attention_norm = _param(jnp.ones(E, dtype), ("embed",))
        self.mlp_norm = _param(jnp.ones(E, dtype), ("embed",))
        self.q_norm = _param(jnp.ones(D, dtype), (None,)) if config.qk_norm else None
        self.k_norm = _param(jnp.ones(D, dtype), (None,)) if config.qk_norm else None

    def __call__(self, x, config: ModelConfig, angles, positions, mask, past, length, rows, window, dtype):
        """x float32 [B, N, E] to the same; also the rows of ``Output``. ``past`` and ``rows`` are this layer's, or None."""
        B, N, _ = x.shape
        K, G, D, eps = config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_dim, config.norm_eps
        with jax.named_scope("attention"):
            qkv = linear(rms_norm(x, self.attention_norm[...], eps), self.qkv[...], _value(self.qkv_bias)).reshape(B, N, K, G + 2, D)
            q, k, v = qkv[..., :G, :], qkv[..., G, :], qkv[..., G + 1, :]
            if self.q_norm is not None:
                q, k = rms_norm(q, self.q_norm[...], eps), rms_norm(k, self.k_norm[...], eps)
            q, k = rotate(q, *angles), rotate(k, *angles)
            k, v = (a.transpose(0, 2, 1, 3).astype(dtype) for a in (k, v))
            if rows is not None:
                k, v = (jnp.concatenate([old, new], 2) for old, new in zip(rows, (k, v)))
            x = x + linear(attend(q, past, length, (k, v), mask, positions, window), self.out[...], _value(self.out_bias))
        with jax.named_scope("mlp"):
            gate, up = jnp.split(linear(rms_norm(x, self.mlp_norm[...], eps), self.gate_up[...], _value(self.gate_up_bias)), 2, -1)
            x = x + linear(jax.nn.silu(gate) * up, self.down[...], _value(self.down_bias))
        return x, (k, v)


class Decoder(nnx.Module):
    """A language model: ``embed`` [V, E], the layers, a final norm, and ``head`` [V, E] unless it is the embedding."""

    def __init__(self, config: ModelConfig, key: jax.Array, dtype=None):
        dtype = jnp.dtype(dtype or config.dtype)
        embed_key, head_key, *keys = jax.random.split(key, config.num_layers + 2)
        shape = (config.vocab_size, config.hidden_size)
        self.config = config
        self.embed = _param(jax.random.normal(embed_key, shape, jnp.float32).astype(dtype) * 0.02, ("vocab", "embed"))
        self.layers = nnx.List([Layer(config, k, dtype) for k in keys])
        self.norm = _param(jnp.ones(config.hidden_size, dtype), ("embed",))
        tied = config.tie_embeddings
        self.head = None if tied else _param(jax.random.normal(head_key, shape, jnp.float32).astype(dtype) * 0.02, ("vocab", "embed"))

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        mask: jax.Array,
        cache: KVCache | None = None,
        *,
        rows: tuple | None = None,
        taps: tuple[int, ...] = (),
        rope_lengths: jax.Array | None = None,
        row_positions: jax.Array | None = None,
    ) -> Output:
        """Scores N nodes that follow the cache.

        Args:
          tokens, positions: int32 [B, N].
          mask: bool [B, N, M] or [N, M]: which of the uncommitted rows each node sees, its own included. A chain passes a lower triangle,
            a tree its ancestors.
          cache: the committed past, visible to every node.
          rows: uncommitted rows of an earlier call, before the nodes' own in ``mask``.
          taps: layers whose input is returned.
          rope_lengths: see ``layers.rotary``.
          row_positions: int32 [B, M], positions of all rows; needed only where ``rows`` is given and the model has attention windows.
        """
        config = self.config
        angles = rotary(positions, config, rope_lengths)
        length = jnp.zeros(tokens.shape[0], jnp.int32) if cache is None else cache.length
        dtype = self.embed[...].dtype if cache is None else cache.layers[0][0].dtype
        x = lookup(self.embed[...], tokens).astype(jnp.float32)
        row_positions = positions if row_positions is None else row_positions
        tapped, new_rows = {}, []
        for i, layer in enumerate(self.layers):
            if i in taps:
                tapped[i] = x
            window = config.windows[i] if config.windows else None
            seen = mask if window is None else mask & (row_positions[:, None, :] > positions[:, :, None] - window)
            past = None if cache is None else cache.layers[i]
            x, layer_rows = layer(x, config, angles, positions, seen, past, length, None if rows is None else rows[i], window, dtype)
            new_rows.append(layer_rows)
        if len(self.layers) in taps:
            tapped[len(self.layers)] = x
        return Output(rms_norm(x, self.norm[...], config.norm_eps), tuple(new_rows), tuple(tapped[i] for i in taps))

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Float32 [..., V] of hidden states [..., E]."""
        return linear(hidden, (self.embed if self.head is None else self.head)[...])


def _param(value: jax.Array, axes: tuple) -> nnx.Param:
    return nnx.Param(value, axes=axes)


def _value(param: nnx.Param | None) -> jax.Array | None:
    return None if param is None else param[...]
