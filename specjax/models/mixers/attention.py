"""Attention with key heads that query heads share (Ainslie et al. 2023)."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

from ...kernels.gpu.attention import Scores
from ..attention import attend, join, rotate_and_attend, rotate_keys
from ..kinds import LayerConfig, MixerConfig
from ..layers import check_division, linear, matrix, normalize, param, rms_norm, value_of
from ..rope import Rope, rotate
from ..stacks import HeadRows, Part, Stack


@dataclasses.dataclass(frozen=True)
class AttentionConfig(MixerConfig):
    """Attention of H query heads and K key heads of size D.

    Attributes:
      num_heads, num_kv_heads, head_dim: H, K and D; K divides H, D is even.
      rope: rotary positions.
      scores: window or chunk, scale and bound of the scores.
      qkv_bias, out_bias: whether the projections have biases.
      qk_norm: whether queries and keys are normed: each head, or with ``whole_qk_norm`` all heads
        together.
      norm_after: whether queries and keys are normed after they are rotated.
      plain_qk_norm: whether each head's queries and keys are normed, without weights (Llama 4).
      temperature: t and a of a factor on queries that grows with their position p, 1 + a log(1 +
        floor((p + 1) / t)) (Llama 4; Nakanishi 2025, arXiv 2501.19399); None for no factor.
      value_norm: whether each head's values are normed, without weights.
      keys_as_values: whether the values are the keys before norm and rotation.
      sinks: whether each query head has a sink, see ``attention.attend``.
      output_gate: whether a gate for each dimension of a query head multiplies the values that the
        head attends to (Qiu et al. 2025).
      reads: the layer whose keys and values this layer reads; None for a layer with its own.
      kv_copies: the number of equal copies of each key head, included in K; see
        ``ModelConfig.split_over``.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope = Rope()
    scores: Scores = Scores()
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    whole_qk_norm: bool = False
    norm_after: bool = False
    plain_qk_norm: bool = False
    temperature: tuple[int, float] | None = None
    value_norm: bool = False
    keys_as_values: bool = False
    sinks: bool = False
    output_gate: bool = False
    reads: int | None = None
    kv_copies: int = 1

    @property
    def row_shapes(self) -> tuple[tuple[int, int], ...]:
        return () if self.reads is not None else ((self.num_kv_heads, self.head_dim),) * 2

    @property
    def source(self) -> int | None:
        return self.reads

    @property
    def stacked(self) -> tuple[int, ...]:
        """The heads that ``Attention.qkv`` stacks for each key head: queries, keys and values.

        With an output gate each query is followed by its gate.
        """
        G = self.num_heads // self.num_kv_heads * (2 if self.output_gate else 1)
        return (G,) if self.reads is not None else (G, 1) if self.keys_as_values else (G, 1, 1)

    @property
    def stacks(self) -> dict[str, Stack]:
        """Queries, keys and values, by key head.

        A norm of all heads together has the order of the heads.
        """
        K, D, copies = self.num_kv_heads, self.head_dim, self.kv_copies
        head = self._rotated_head()
        gated = HeadRows(2 * D, (*(head.order or ((0, D),)), (D, 2 * D)), head.rotated)
        queries = Part(gated if self.output_gate else head, self.num_heads // K)
        keys, values = Part(head, copies=copies), Part(HeadRows(D), copies=copies)
        qkv = Stack(K, (queries, keys, values)[: len(self.stacked)])
        one = Stack(1, (Part(head),))
        all_queries, all_keys = Stack(self.num_heads, (Part(head),)), Stack(K, (keys,))
        return {
            "qkv": qkv,
            "qkv_bias": qkv,
            "q_norm": all_queries if self.whole_qk_norm else one,
            "k_norm": all_keys if self.whole_qk_norm else one,
        }

    def _rotated_head(self) -> HeadRows:
        """The rows of a query or a key, in the order of ``rope.rotate``.

        There, dimension i is paired with dimension i + D / 2. In a checkpoint, the rotated
        dimensions come first. "proportional" positions rotate whole heads, some by the frequency
        zero.
        """
        D = self.head_dim
        size = self.rope.rotated_size(D)
        size = D if self.rope.rope_type == "proportional" else size
        if size == 0:
            return HeadRows(D)
        half = size // 2
        middle = size + (D - size) // 2
        return HeadRows(D, ((0, half), (size, middle), (half, size), (middle, D)), (0, size))

    def count_weights(self, width: int) -> int:
        projected = self.num_kv_heads * sum(self.stacked) + self.num_heads
        return width * projected * self.head_dim

    def split_over(self, devices: int) -> "AttentionConfig":
        check_division(devices, "attention heads", self.num_heads)
        copies = math.lcm(self.num_kv_heads, devices) // self.num_kv_heads
        return dataclasses.replace(self, num_kv_heads=self.num_kv_heads * copies, kv_copies=self.kv_copies * copies)


class Attention(nnx.Module):
    """Attention of a layer.

    Rows that are computed with one another lie together, so that they stay on one device when the
    matrix is split. ``qkv`` [K * (G + 2) * D, E] stacks the query heads, the key and the value of
    each key head, as far as the layer has them. ``out`` is [E, H * D], and ``sinks`` [H].

    In trained heads attention may read ``inputs`` vectors of width E side by side.
    """

    qkv: nnx.Param
    out: nnx.Param
    qkv_bias: nnx.Param | None
    out_bias: nnx.Param | None
    q_norm: nnx.Param | None
    k_norm: nnx.Param | None
    sinks: nnx.Param | None

    def __init__(self, config: LayerConfig, keys: jax.Array, dtype, *, inputs: int = 1):
        mixer = config.mixer
        E = config.width
        assert isinstance(mixer, AttentionConfig)
        H, K, D = mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
        rows = K * sum(mixer.stacked) * D
        self.config = mixer
        self.norm = config.norm
        self.qkv = matrix(keys[0], (rows, inputs * E), ("heads", "embed"), dtype)
        self.out = matrix(keys[1], (E, H * D), ("embed", "heads"), dtype, 0.02 / (2 * config.depth) ** 0.5)
        self.qkv_bias = param(jnp.zeros(rows, dtype), ("heads",)) if mixer.qkv_bias else None
        self.out_bias = param(jnp.zeros(E, dtype), ("embed",)) if mixer.out_bias else None

        def norm_weight(heads):
            size = (heads if mixer.whole_qk_norm else 1) * D
            return param(jnp.full(size, 1 - self.norm.offset, dtype), (None,))

        self.q_norm = norm_weight(H) if mixer.qk_norm else None
        self.k_norm = norm_weight(K) if mixer.qk_norm and mixer.reads is None else None
        self.sinks = param(jnp.zeros(H, dtype), ("heads",)) if mixer.sinks else None

    @jax.named_scope("attention")
    def __call__(self, normed, nodes, past, rows):
        attended, new = self.attend(normed, nodes, past, rows)
        if rows is not None and self.config.reads is None:
            new = join(rows, new)
        return linear(attended, self.out[...], value_of(self.out_bias)), new

    def attend(self, normed, nodes, past, rows):
        """The values that heads attend to, float32 [B, N, H * D], and the rows of the N nodes."""
        config = self.config
        projected, angles, gates = self._project(normed, nodes)
        mask = nodes.seen(config.scores)
        if config.reads is not None:
            queries = rotate(projected, *angles)
            return attend(queries, past, nodes.length, rows, mask, nodes.positions, config.scores), ()
        attended, new = rotate_and_attend(
            projected, angles, past, nodes.length, rows, mask, nodes.positions, config.scores, nodes.dtype,
            sinks=value_of(self.sinks), bias=nodes.bias,
        )  # fmt: skip
        return (attended if gates is None else attended * jax.nn.sigmoid(gates)), new

    def keys_values(self, normed, nodes) -> tuple:
        """The rows of N positions, keys and values [B, K, N, D]. Attention is not computed."""
        projected, angles, _ = self._project(normed, nodes)
        return rotate_keys(projected, angles, nodes.dtype)

    def queries(self, normed, nodes):
        """The rotated queries float32 [B, N, K, G, D] of N positions, without attention."""
        projected, angles, _ = self._project(normed, nodes)
        return rotate(projected[..., :-2, :], *angles)

    def _project(self, normed, nodes):
        """Queries, keys and values float32 [B, N, K, G + 2, D]; angles; output gates or None.

        Queries and keys are still to be rotated by the angles. A layer that ``reads`` another's
        keys has queries only. Gates are [B, N, H * D].
        """
        config = self.config
        angles = nodes.angles(config.rope, config.head_dim)
        B, N, _ = normed.shape
        K = config.num_kv_heads
        G = config.num_heads // K
        D = config.head_dim
        qkv = linear(normed, self.qkv[...], value_of(self.qkv_bias)).reshape(B, N, K, -1, D)
        gates = None
        if config.output_gate:
            gates = qkv[..., 1 : 2 * G : 2, :].reshape(B, N, -1)
            qkv = jnp.concatenate([qkv[..., 0 : 2 * G : 2, :], qkv[..., 2 * G :, :]], -2)
        if config.temperature is not None:
            period, weight = config.temperature
            factor = 1 + weight * jnp.log1p(((nodes.positions + 1) // period).astype(jnp.float32))
            qkv = qkv.at[..., :G, :].multiply(factor[..., None, None, None])
        if not (config.qk_norm or config.plain_qk_norm or config.value_norm or config.keys_as_values):
            return qkv, angles, gates
        if config.norm_after:
            qkv = jnp.concatenate([rotate(qkv[..., :-1, :], *angles), qkv[..., -1:, :]], -2)
            angles = jnp.ones_like(angles[0]), jnp.zeros_like(angles[1])
        parts = [self._normed(self.q_norm, qkv[..., :G, :])]
        if config.reads is None:
            values = qkv[..., -1:, :]
            parts.append(self._normed(self.k_norm, qkv[..., G : G + 1, :]))
            parts.append(rms_norm(values, jnp.ones(D), self.norm.eps) if config.value_norm else values)
        return jnp.concatenate(parts, -2), angles, gates

    def _normed(self, weight: nnx.Param | None, heads):
        """Heads float32 [B, N, K, heads, D], normed one by one or all together."""
        if weight is None:
            return rms_norm(heads, jnp.ones(heads.shape[-1]), self.norm.eps) if self.config.plain_qk_norm else heads
        if not self.config.whole_qk_norm:
            return normalize(heads, self.norm, weight[...])
        return normalize(heads.reshape(*heads.shape[:2], -1), self.norm, weight[...]).reshape(heads.shape)
