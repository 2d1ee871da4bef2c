"""The decoder-only transformer: one forward for training, prefill, plain decoding and trees.

Modules hold parameters and the names of their axes. A call reads the cache and never writes it. It
returns the key/value rows of its nodes, and ``cache.commit`` writes the accepted ones.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from ..cache import KVCache
from ..parallel import whole_features
from .attention import Seen, join, rotate_and_attend, rotate_keys, within
from .base import Output
from .config import ModelConfig
from .layers import linear, lookup, matrix, param, rms_norm, rotary, rotate, value_of


@dataclasses.dataclass(frozen=True)
class Skip:
    """The sub-layers that a forward skips, given by the numbers of their layers. Static."""

    attention: tuple[int, ...] = ()
    mlp: tuple[int, ...] = ()


class Layer(nnx.Module):
    """A decoder layer: attention and a gated MLP.

    Rows that are computed with one another lie together, so that they stay on one device when the
    matrix is split. ``qkv`` [K * (G + 2) * D, E] stacks the query heads, the key and the value of
    each key head. ``gate_up`` [P * 2 * F / P, E] stacks a part of the gate and the same part of the
    up projection for each of P ``config.mlp_parts``.

    Trained heads use two variations. Attention may read ``inputs`` vectors of width E side by side.
    ``normed`` says whether the layer norms the input of attention.
    """

    qkv: nnx.Param
    out: nnx.Param
    gate_up: nnx.Param
    down: nnx.Param
    qkv_bias: nnx.Param | None
    out_bias: nnx.Param | None
    gate_up_bias: nnx.Param | None
    down_bias: nnx.Param | None

    def __init__(self, config: ModelConfig, key: jax.Array, dtype, *, inputs: int = 1, normed: bool = True):
        E, F = config.hidden_size, config.intermediate_size
        H, K, D = config.num_heads, config.num_kv_heads, config.head_dim
        shapes = {"qkv": ((H + 2 * K) * D, inputs * E), "out": (E, H * D), "gate_up": (2 * F, E), "down": (E, F)}
        axes = {"qkv": ("heads", "embed"), "out": ("embed", "heads")}
        axes |= {"gate_up": ("mlp", "embed"), "down": ("embed", "mlp")}
        biased = {"qkv": config.qkv_bias, "out": config.out_bias, "gate_up": config.mlp_bias, "down": config.mlp_bias}
        for (name, shape), k in zip(shapes.items(), jax.random.split(key, 4)):
            scale = 0.02 if name in ("qkv", "gate_up") else 0.02 / (2 * config.num_layers) ** 0.5
            setattr(self, name, matrix(k, shape, axes[name], dtype, scale))
            setattr(self, f"{name}_bias", param(jnp.zeros(shape[0], dtype), axes[name][:1]) if biased[name] else None)
        self.attention_norm = param(jnp.ones(E, dtype), ("embed",)) if normed else None
        self.mlp_norm = param(jnp.ones(E, dtype), ("embed",))
        self.q_norm = param(jnp.ones(D, dtype), (None,)) if config.qk_norm else None
        self.k_norm = param(jnp.ones(D, dtype), (None,)) if config.qk_norm else None

    def __call__(self, x, config, angles, positions, mask, past, length, rows, window, dtype, attention=True, mlp=True):
        """The residual stream float32 [B, N, E] after the layer, and the layer's ``Output.rows``.

        ``past`` and ``rows`` are those of this layer, or None. ``attention`` and ``mlp`` say
        whether the layer runs these sub-layers.
        """
        new_rows = None
        if attention:
            normed = x if self.attention_norm is None else rms_norm(x, self.attention_norm[...], config.norm_eps)
            added, new_rows = self.attention(normed, config, angles, positions, mask, past, length, rows, window, dtype)
            x = x + added
        if mlp:
            x = self.mlp(x, config)
        return x, new_rows

    @jax.named_scope("attention")
    def attention(self, normed, config: ModelConfig, angles, positions, mask, past, length, rows, window, dtype):
        """The output of attention float32 [B, N, E], and the layer's rows.

        ``normed``: float32 [B, N, inputs * E].
        """
        attended, new = self.attend(normed, config, angles, positions, mask, past, length, rows, window, dtype)
        if rows is not None:
            new = join(rows, new)
        return linear(attended, self.out[...], value_of(self.out_bias)), new

    def attend(self, normed, config: ModelConfig, angles, positions, mask, past, length, rows, window, dtype):
        """The values that the heads attend to, float32 [B, N, H * D], and the rows of the N nodes."""
        qkv = self._project(normed, config)
        return rotate_and_attend(qkv, angles, past, length, rows, mask, positions, window, dtype)

    def keys_values(self, normed, config: ModelConfig, angles, dtype) -> tuple:
        """The rows of N positions, keys and values [B, K, N, D]. Attention is not computed."""
        return rotate_keys(self._project(normed, config), angles, dtype)

    def queries(self, x, config: ModelConfig, angles):
        """The queries of N positions, rotated, float32 [B, N, K, G, D]. Attention is not computed."""
        normed = x if self.attention_norm is None else rms_norm(x, self.attention_norm[...], config.norm_eps)
        return rotate(self._project(normed, config)[..., :-2, :], *angles)

    def _project(self, normed, config: ModelConfig):
        """Queries, keys and values float32 [B, N, K, G + 2, D], not rotated."""
        B, N, _ = normed.shape
        K, G, D, eps = config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_dim, config.norm_eps
        qkv = linear(normed, self.qkv[...], value_of(self.qkv_bias)).reshape(B, N, K, G + 2, D)
        if self.q_norm is None or self.k_norm is None:
            return qkv
        q, k = rms_norm(qkv[..., :G, :], self.q_norm[...], eps), rms_norm(qkv[..., G : G + 1, :], self.k_norm[...], eps)
        return jnp.concatenate([q, k, qkv[..., G + 1 :, :]], -2)

    @jax.named_scope("mlp")
    def mlp(self, x, config: ModelConfig):
        return x + linear(self.units(x, config), self.down[...], value_of(self.down_bias))

    def units(self, x, config: ModelConfig):
        """The gated units of the MLP, float32 [B, N, F]."""
        normed = rms_norm(x, self.mlp_norm[...], config.norm_eps)
        parts = linear(normed, self.gate_up[...], value_of(self.gate_up_bias))
        parts = parts.reshape(*x.shape[:-1], config.mlp_parts, 2, -1)
        gated = jax.nn.silu(parts[..., 0, :]) * parts[..., 1, :]
        return gated.reshape(*x.shape[:-1], -1)


class Decoder(nnx.Module):
    """A decoder-only language model.

    It has ``embed`` [V, E], layers, a final norm, and ``head`` [V, E] unless the embedding is tied.
    """

    def __init__(self, config: ModelConfig, key: jax.Array, dtype=None):
        dtype = jnp.dtype(dtype or config.dtype)
        embed_key, head_key, *keys = jax.random.split(key, config.num_layers + 2)
        shape = (config.vocab_size, config.hidden_size)
        self.config = config
        self.embed = matrix(embed_key, shape, ("table", "width"), dtype)
        self.layers = nnx.List([Layer(config, k, dtype) for k in keys])
        self.norm = param(jnp.ones(config.hidden_size, dtype), ("embed",))
        self.head = None if config.tie_embeddings else matrix(head_key, shape, ("vocab", "embed"), dtype)

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        mask: jax.Array | Seen,
        cache: KVCache | None = None,
        *,
        rows: tuple | None = None,
        taps: tuple[int, ...] = (),
        rope_lengths: jax.Array | None = None,
        row_positions: jax.Array | None = None,
        skip: Skip = Skip(),
        computed: tuple | None = None,
    ) -> Output:
        """Scores N nodes that follow the cache.

        Args:
          tokens, positions: int32 [B, N].
          mask: bool [B, N, M] or [N, M], the uncommitted rows that each node sees, its own
            included: a lower triangle for a chain, the ancestors for a tree. Training passes
            ``attention.Seen``, which takes less memory.
          cache: the committed past, which every node sees; None in training.
          rows: uncommitted rows of an earlier call. In ``mask`` they come before the nodes' own.
          taps: the layers whose input to return.
          rope_lengths: see ``layers.rotary``.
          row_positions: int32 [B, M], positions of all rows, for a model with attention windows.
          skip: the sub-layers to skip.
          computed: results of the first layers for the same nodes, from an earlier call: the
            residual stream float32 [B, N, E] that enters the next layer, and the nodes' rows of
            each of these layers. These layers do not run, and have no taps.
        """
        dtype = self.embed[...].dtype if cache is None else cache.layers[0][0].dtype
        x, done = (
            (whole_features(lookup(self.embed[...], tokens).astype(jnp.float32)), ()) if computed is None else computed
        )
        options = dict(rows=rows, taps=taps, rope_lengths=rope_lengths, row_positions=row_positions)
        x, new_rows, tapped = run_layers(
            self.layers, self.config, x, positions, mask, cache, dtype, done=done, skip=skip, **options
        )
        return Output(rms_norm(x, self.norm[...], self.config.norm_eps), new_rows, tapped)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits float32 [..., V] of hidden states [..., E]."""
        return whole_features(linear(hidden, (self.embed if self.head is None else self.head)[...]))


def run_layers(
    layers, config: ModelConfig, x, positions, mask, cache: KVCache | None, dtype,
    *, rows=None, taps=(), rope_lengths=None, row_positions=None, skip=Skip(), done=(),
):  # fmt: skip
    """The residual stream float32 [B, N, E] after the layers, the rows of all layers, and the taps.

    Args:
      x: float32 [B, N, E], the input of the first layer that runs.
      dtype: the type of the rows.
      done: the nodes' rows of the first layers, which do not run.

    The other arguments are those of ``Decoder``.
    """
    angles = rotary(positions, config, rope_lengths)
    length = jnp.zeros(x.shape[0], jnp.int32) if cache is None else cache.held
    row_positions = positions if row_positions is None else row_positions
    tapped, new_rows = {}, list(done)
    for i in range(len(done), config.num_layers):
        if i in taps:
            tapped[i] = x
        window = config.windows[i] if config.windows else None
        seen = mask if window is None else within(mask, positions, row_positions, window)
        past = None if cache is None else cache.layers[i]
        earlier = None if rows is None else rows[i]
        runs = i not in skip.attention, i not in skip.mlp
        x, layer_rows = layers[i](x, config, angles, positions, seen, past, length, earlier, window, dtype, *runs)
        new_rows.append(layer_rows)
    if config.num_layers in taps:
        tapped[config.num_layers] = x
    return x, tuple(new_rows), tuple(tapped[i] for i in taps)
