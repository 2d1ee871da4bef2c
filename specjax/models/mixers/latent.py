"""Multi-head latent attention (DeepSeek-V2, 2405.04434, section 2.1).

A token keeps one row for all heads: a compressed vector c and a rotated key k. The keys of head i
are ``(W_UK,i c, k)`` and its values ``W_UV,i c``. They are never computed. The query is multiplied
by W_UK,i instead, and the weighted sum of the rows by W_UV,i (section 2.1.2 calls this absorption).
So all heads attend to the rows themselves, which are both keys and values.

A prompt takes more operations this way: a score costs R + Dr products instead of Dn + Dr. For a few
nodes over a long past, reading the rows costs more than the products.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from ...core.stored_rows import store
from ...kernels.gpu.attention import Scores
from ...parallel import each_part_of_queries
from ..attention import attend, join
from ..kinds import LayerConfig, MixerConfig
from ..layers import check_division, linear, matrix, param, rms_norm, value_of
from ..quantised_weights import Quantised
from ..rope import Rope, rotate
from ..stacks import HeadRows, Part, Stack

NORM_EPS = 1e-6
"""The constant under the root of the norms of compressed vectors, which no option changes."""


@dataclasses.dataclass(frozen=True)
class LatentAttentionConfig(MixerConfig):
    """Latent attention of H heads.

    Attributes:
      num_heads: H.
      rank: R, the size of the compressed vector c of keys and values.
      query_rank: Rq, the size of the compressed vector of queries; None for queries that are
        projected from the stream.
      key_dim: Dn, the dimensions of a head's queries and keys without positions.
      rope_dim: Dr, the dimensions with rotary positions. All heads share those of the key.
      value_dim: Dv, the dimensions of a head's values.
      rope: rotary positions.
      bias: whether the compressing projections and the output have biases.
    """

    num_heads: int
    rank: int
    query_rank: int | None
    key_dim: int
    rope_dim: int
    value_dim: int
    rope: Rope = Rope()
    bias: bool = False

    @property
    def row_shapes(self) -> tuple[tuple[int, int], ...]:
        return ((1, self.rank + self.rope_dim),)

    @property
    def query_dim(self) -> int:
        """Dn + Dr."""
        return self.key_dim + self.rope_dim

    @property
    def scores(self) -> Scores:
        """How the scores are scaled: by the size of the heads before absorption."""
        return Scores(scale=self.query_dim**-0.5 * self.rope.score_factor)

    @property
    def stacks(self) -> dict[str, Stack]:
        """``down`` takes compressed queries from one matrix, and rows from another.

        ``query`` takes queries of the stream from one matrix, and compressed queries from another.
        ``up_key`` and ``up_value`` take parts of one matrix.
        """
        H, R, Rq = self.num_heads, self.rank, self.query_rank or 0
        down = Stack(1, (Part(HeadRows(Rq)), Part(_rotated_end(R, self.rope_dim))))
        query = Part(_rotated_end(self.key_dim, self.rope_dim))
        absent = query._replace(heads=0)
        keys, values = Part(HeadRows(self.key_dim)), Part(HeadRows(self.value_dim))
        return {
            "down": down,
            "down_bias": down,
            "query": Stack(H, (absent, query) if Rq else (query, absent)),
            "up_key": Stack(H, (keys, values._replace(used=False))),
            "up_value": Stack(H, (keys._replace(used=False), values)),
        }

    def count_weights(self, width: int) -> int:
        H, R = self.num_heads, self.rank
        compressing = width * ((self.query_rank or 0) + R + self.rope_dim)
        expanding = H * (self.query_dim * (self.query_rank or width) + (self.key_dim + self.value_dim) * R)
        return compressing + expanding + H * self.value_dim * width

    def split_over(self, devices: int) -> "LatentAttentionConfig":
        check_division(devices, "attention heads", self.num_heads)
        return self


def _rotated_end(before: int, rotated: int) -> HeadRows:
    """A head of ``before`` rows, followed by ``rotated`` rows with rotary positions."""
    half, end = before + rotated // 2, before + rotated
    return HeadRows(end, ((0, before), (before, half), (half, end)), (before, rotated))


class LatentAttention(nnx.Module):
    """Latent attention of a layer.

    Parameters: ``down`` [Rq + R + Dr, E] stacks W_DQ, W_DKV and W_KR.
    ``query`` [H * (Dn + Dr), Rq or E] stacks W_UQ and W_QR of each head. ``up_key`` [H * Dn, R] is
    W_UK, ``up_value`` [H * Dv, R] is W_UV, and ``out`` [E, H * Dv] is W_O. ``query_norm`` [Rq] and
    ``row_norm`` [R] norm the compressed vectors.

    A mesh splits the heads. Every device compresses all tokens and has the whole cache.
    """

    query_norm: nnx.Param | None
    down_bias: nnx.Param | None
    out_bias: nnx.Param | None

    def __init__(self, config: LayerConfig, keys: jax.Array, dtype):
        mixer, E = config.mixer, config.width
        assert isinstance(mixer, LatentAttentionConfig)
        H, R, Rq = mixer.num_heads, mixer.rank, mixer.query_rank
        compressed = (Rq or 0) + R + mixer.rope_dim
        down, query, up_key, up_value = jax.random.split(keys[0], 4)
        self.config = mixer
        self.down = matrix(down, (compressed, E), (None, "embed"), dtype)
        self.query = matrix(query, (H * mixer.query_dim, Rq or E), ("heads", None), dtype)
        self.up_key = matrix(up_key, (H * mixer.key_dim, R), ("heads", None), dtype)
        self.up_value = matrix(up_value, (H * mixer.value_dim, R), ("heads", None), dtype)
        scale = 0.02 / (2 * config.depth) ** 0.5
        self.out = matrix(keys[1], (E, H * mixer.value_dim), ("embed", "heads"), dtype, scale)
        self.query_norm = param(jnp.ones(Rq, dtype), (None,)) if Rq else None
        self.row_norm = param(jnp.ones(R, dtype), (None,))
        self.down_bias = param(jnp.zeros(compressed, dtype), (None,)) if mixer.bias else None
        self.out_bias = param(jnp.zeros(E, dtype), ("embed",)) if mixer.bias else None

    @jax.named_scope("attention")
    def __call__(self, normed, nodes, past, rows):
        config = self.config
        B, N, _ = normed.shape
        queries, new = self._project(normed, nodes.angles(config.rope, config.rope_dim))
        new = (store(new[:, None], nodes.dtype),)
        new = new if rows is None else join(rows, new)

        def attend_to_rows(queries, past, length, new, mask, positions):
            both = None if past is None else past * 2
            return attend(queries, both, length, new * 2, mask, positions, config.scores)

        summed = each_part_of_queries(
            attend_to_rows, queries[:, :, None], past, nodes.length, new, nodes.mask, nodes.positions
        )
        summed = summed.reshape(B, N, config.num_heads, -1)[..., : config.rank]
        values = self._expand(summed)
        return linear(values.reshape(B, N, -1), self.out[...], value_of(self.out_bias)), new

    def _project(self, normed, angles) -> tuple[jax.Array, jax.Array]:
        """Absorbed queries float32 [B, N, H, R + Dr], and rows float32 [B, N, R + Dr]."""
        config = self.config
        down = linear(normed, self.down[...], value_of(self.down_bias))
        first, R = config.query_rank or 0, config.rank
        row = rms_norm(down[..., first : first + R], self.row_norm[...], NORM_EPS)
        rows = jnp.concatenate([row, rotate(down[..., first + R :], *angles)], -1)
        if self.query_norm is not None:
            normed = rms_norm(down[..., :first], self.query_norm[...], NORM_EPS)
        queries = linear(normed, self.query[...]).reshape(*normed.shape[:2], config.num_heads, -1)
        absorbed = self._absorb(queries[..., : config.key_dim])
        return jnp.concatenate([absorbed, rotate(queries[..., config.key_dim :], *angles)], -1), rows

    def _absorb(self, queries: jax.Array) -> jax.Array:
        """Queries [B, N, H, Dn], times W_UK; float32 [B, N, H, R].

        The heads come first, here and in ``_expand``: XLA:CPU lacks the other 16-bit products.
        """
        weight = self._of_heads(self.up_key)
        queries = queries.astype(weight.dtype).transpose(2, 0, 1, 3)
        return jnp.einsum("hbnd,hdr->hbnr", queries, weight, preferred_element_type=jnp.float32).transpose(1, 2, 0, 3)

    def _expand(self, rows: jax.Array) -> jax.Array:
        """Sums of compressed vectors [B, N, H, R], times W_UV; float32 [B, N, H, Dv]."""
        weight = self._of_heads(self.up_value)
        rows = rows.astype(weight.dtype).transpose(2, 0, 1, 3)
        # XLA:CPU reads the left operand as it lies, see ``layers.multiply_in_parts``.
        return jnp.einsum("hdr,hbnr->hdbn", weight, rows, preferred_element_type=jnp.float32).transpose(2, 3, 0, 1)

    def _of_heads(self, weight: nnx.Param) -> jax.Array:
        """W_UK or W_UV by head, [H, ..., R]. Numbers of fewer bits are widened here."""
        matrix = weight[...]
        matrix = matrix.dequantise() if isinstance(matrix, Quantised) else matrix
        return matrix.reshape(self.config.num_heads, -1, self.config.rank)
